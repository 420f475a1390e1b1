// The page: picks a series, shows its forecast, what came true, and the architectures' standing.

import { draw } from "/static/chart.js";
import { age, change, day, dayAndTime, percent, priceFormat, time } from "/static/format.js";

const $ = (id) => document.getElementById(id);
// One market at a time: `chosen` decides it, and nothing of another one is on the page.
const state = { series: [], boards: {}, chosen: null, shown: null };
const MARKETS = { spot: "Binance spot", um: "USDT futures", cm: "coin futures", own: "own candles", sim: "simulated market" };

async function get(path) {
  const answer = await fetch(path);
  const body = await answer.json();
  if (!answer.ok) throw new Error(typeof body.detail === "string" ? body.detail : `${path} answered ${answer.status}`);
  return body;
}

function element(name, text, className) {
  const made = document.createElement(name);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

function message(text) {
  $("message").textContent = text;
  $("message").hidden = !text;
}

async function start() {
  try {
    state.series = (await get("/api/symbols")).filter((s) => s.issued_at);
  } catch (error) {
    message(`The service does not answer (${error.message}); is \`cpb serve\` still running?`);
    return;
  }
  if (state.series.length === 0) {
    message("There are no forecasts yet. Run `cpb demo` (simulated market, two minutes) or `cpb train-all`, then load this page again.");
  } else {
    fillMarkets();
    window.addEventListener("hashchange", choose);
    window.addEventListener("resize", redraw);
    await choose();
  }
  await loadBoard(state.chosen ? state.chosen.market : "");
}

function fillMarkets() {
  const markets = Object.keys(MARKETS).filter((m) => state.series.some((s) => s.market === m));
  $("market").replaceChildren(...markets.map((m) => new Option(MARKETS[m], m)));
  $("market").parentElement.hidden = markets.length < 2;
  $("market").onchange = () => go({ ...state.chosen, market: $("market").value });
  $("coin").onchange = () => go({ ...state.chosen, symbol: $("coin").value });
}

function fillCoins(series) {
  const symbols = [...new Set(series.map((s) => s.symbol))].sort();
  $("coin").replaceChildren(...symbols.map((s) => new Option(s, s)));
}

function go({ market, symbol, timeframe }) {
  location.hash = `${symbol}/${timeframe}/${market}`;
}

function seconds(timeframe) {
  const units = { s: 1, m: 60, h: 3600, d: 86400, w: 604800 };
  return parseInt(timeframe, 10) * units[timeframe.slice(-1)];
}

// Nothing of one market may stand beside another's while that is loading.
function clear() {
  for (const id of ["forecast", "ledger", "board"]) $(id).hidden = true;
  $("verdict").textContent = "";
  state.shown = null;
}

async function choose() {
  const [symbol, timeframe, asked] = decodeURIComponent(location.hash.slice(1)).split("/");
  const market = state.series.some((s) => s.market === asked) ? asked : $("market").options[0].value;
  const ofMarket = state.series.filter((s) => s.market === market);
  const ofCoin = ofMarket.filter((s) => s.symbol === symbol);
  const candidates = ofCoin.length ? ofCoin : ofMarket.filter((s) => s.symbol === ofMarket[0].symbol);
  const changed = state.chosen && state.chosen.market !== market;
  if (changed) clear();
  state.chosen = candidates.find((s) => s.timeframe === timeframe) || candidates.at(-1);
  fillCoins(ofMarket);
  $("market").value = market;
  $("coin").value = state.chosen.symbol;
  $("simulated").hidden = market !== "sim";
  if (changed) loadBoard(market);
  const buttons = candidates.sort((a, b) => seconds(a.timeframe) - seconds(b.timeframe)).map((s) => {
    const button = element("button", s.timeframe);
    button.setAttribute("aria-pressed", String(s === state.chosen));
    button.onclick = () => go(s);
    return button;
  });
  $("timeframes").replaceChildren(...buttons);
  const series = state.chosen;
  try {
    await show(series);
    message("");
  } catch (error) {
    if (state.chosen !== series) return; // another was picked meanwhile
    $("forecast").hidden = true;
    $("ledger").hidden = true;
    message(error.message);
  }
}

async function show(series) {
  const path = `${series.symbol}/${series.timeframe}`, market = `market=${series.market}`;
  const [forecast, ledger] = await Promise.all([get(`/api/forecast/${path}?${market}`), get(`/api/ledger/${path}?${market}&limit=0`)]);
  const until = encodeURIComponent(forecast.steps.at(-1).target_time);
  const stored = await get(`/api/candles/${path}?${market}&limit=80&until=${until}`).catch(() => ({ candles: [] }));
  if (state.chosen !== series) return; // another was picked meanwhile
  state.shown = { forecast, candles: stored.candles };
  const name = series.market === "spot" ? series.symbol : `${series.symbol} (${MARKETS[series.market]})`;
  $("title").textContent = `${name} · ${series.timeframe} · ${priceFormat(forecast.last_close)(forecast.last_close)}`;
  const over = Date.parse(forecast.steps.at(-1).target_time) < Date.now() ? "; all of it lies in the past, `cpb forecast` makes a new one" : "";
  $("issued").textContent = `issued ${dayAndTime(forecast.issued_at)} UTC, ${age(forecast.issued_at)}${over}`;
  $("forecast").hidden = false;
  redraw();
  steps(forecast);
  verdict();
  rates(ledger, forecast);
}

function redraw() {
  if (!state.shown) return;
  const came = draw($("chart"), $("readout"), state.shown.forecast, state.shown.candles);
  $("legend-real").hidden = !came;
}

function table(target, head, rows) {
  const line = document.createElement("tr");
  line.append(...head.map((h) => element("th", h)));
  const header = document.createElement("thead");
  header.append(line);
  const body = document.createElement("tbody");
  body.append(...rows);
  target.replaceChildren(header, body);
}

function steps(forecast) {
  const format = priceFormat(forecast.last_close);
  const rows = forecast.steps.map((s) => {
    const row = document.createElement("tr");
    row.append(...[time(s.target_time), ...["q05", "q25", "q50", "q75", "q95"].map((q) => format(s[q]))].map((t) => element("td", t)));
    row.append(element("td", `${change(s.q10, forecast.last_close)} to ${change(s.q90, forecast.last_close)}`));
    return row;
  });
  table($("steps"), ["close at", "5 %", "25 %", "median", "75 %", "95 %", "80 % move"], rows);
}

function verdict() {
  const { market, symbol, timeframe, model_version } = state.shown ? state.shown.forecast : {};
  const board = state.boards[market];
  if (!board) return;
  const champion = board.champions.find((c) => c.symbol === symbol && c.timeframe === timeframe);
  if (!champion) {
    $("verdict").textContent = `Forecast by ${model_version}; this model's test is not in the MLflow store, so take it as untested.`;
    return;
  }
  const finding = champion.verdict ? `On its test span: ${champion.verdict}.` : "It carries no verdict: take it as untested.";
  const { decision, selected_on } = champion;
  const own = champion.model_version === model_version;
  const by = own ? `${champion.architecture || "model"} (${model_version})`
    : `${model_version}; the champion now is ${champion.architecture || "a model"} (${champion.model_version})`;
  $("verdict").textContent = `Forecast by ${by}. ${finding} `
    + (selected_on ? `Its kind was selected on this span (${selected_on}): later rows are its result. ` : "")
    + "It forecasts how far the price may move, not where to."
    + (decision ? ` Newest decision (${decision.decided_at.slice(0, 10)}): ${decision.outcome}; ${decision.reason}.` : "")
    + (champion.simulated ? " It learned a simulated market: a demonstration only." : "");
}

// Live forecasts where there are any, else replays; never both in one figure.
function rates({ record, recorded_at, watch }, forecast) {
  $("ledger").hidden = false;
  $("rates").replaceChildren();
  $("record").replaceChildren();
  const own = record.filter((e) => e.kind === "series");
  const shown = own.find((e) => e.live) || own[0];
  if (!shown) {
    $("ledger-note").textContent = recorded_at
      ? `Nothing has come due yet. The first candle of this forecast closes ${dayAndTime(forecast.steps[0].target_time)} UTC; \`cpb forecast\` then scores it.`
      : "Nothing is recorded yet; `cpb forecast` scores what has come due.";
    return;
  }
  const kind = shown.live ? "live forecasts" : "replayed forecasts (made after the fact, none live yet)";
  $("ledger-note").textContent = `${shown.forecasts} ${kind} by this series' champions since ${day(shown.first)}, ${shown.rows} closes. `
    + "Measured by CRPS against the random walk with EWMA volatility, which is stored beside each forecast: below 1 is better."
    + (watch && watch.state !== "fine" ? ` Drift watch: ${watch.state}; ${watch.reason}.` : "");
  $("rates").append(ratio(shown));
  if (known(shown)) {
    const cards = [["50 % range", shown.coverage_50, 0.5], ["80 % range", shown.coverage_80, 0.8], ["90 % range", shown.coverage_90, 0.9]];
    $("rates").append(...cards.map((card) => rate(...card)));
  }
  const named = (e) => ({ pooled: `all ${e.timeframe} champions`, series: "this series' champions", version: `${e.model_version} (${e.role})` })[e.kind];
  const rows = [...record].sort((a, b) => b.live - a.live).map((e) => {
    const row = document.createElement("tr");
    const figures = known(e) ? [e.crps_ratio.toFixed(4), interval(e), percent(e.coverage_80, 1)] : [e.verdict, "–", "–"];
    row.append(...[`${named(e)}${e.live ? "" : ", replays"}`, ...figures, String(e.forecasts), String(e.days)].map((t) => element("td", t)));
    return row;
  });
  table($("record"), ["forecasts of", "CRPS ratio", "95 % interval", "inside 80 %", "forecasts", "days"], rows);
}

function known(entry) {
  return entry.crps_ratio_low !== null && entry.crps_ratio_high !== null;
}

function interval(entry) {
  return `${entry.crps_ratio_low.toFixed(4)} to ${entry.crps_ratio_high.toFixed(4)}`;
}

function ratio(entry) {
  const sure = known(entry);
  const card = element("div", "", sure ? "rate" : "rate unsure");
  card.id = "ratio";
  card.append(element("b", sure ? entry.crps_ratio.toFixed(3) : entry.verdict), element("small", "CRPS ratio to the random walk"));
  const days = `${entry.days} complete ${entry.days === 1 ? "day" : "days"}`;
  card.append(element("small", sure ? `95 % interval ${interval(entry)}: ${entry.verdict}, after ${days}` : `${days} so far`));
  return card;
}

function rate(name, value, expected) {
  const card = element("div", "", "rate");
  const bar = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  bar.setAttribute("viewBox", "0 0 100 8");
  bar.setAttribute("preserveAspectRatio", "none");
  for (const [x, width, fill] of [[0, 100, "var(--line)"], [0, 100 * value, "var(--fan)"], [100 * expected - 0.5, 1, "var(--ink)"]]) {
    const part = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    for (const [k, v] of Object.entries({ x, width, y: 0, height: 8, fill })) part.setAttribute(k, v);
    bar.append(part);
  }
  card.append(element("b", percent(value)), element("small", name), bar, element("small", `promised: ${percent(expected)}`));
  return card;
}

async function loadBoard(market) {
  let board;
  try {
    board = state.boards[market] ||= await get(`/api/leaderboard${market ? `?market=${market}` : ""}`);
  } catch (error) {
    board = { rows: [], champions: [], note: error.message };
  }
  if (state.chosen && state.chosen.market !== market) return; // another market was picked meanwhile
  verdict();
  $("board").hidden = board.rows.length === 0 && state.series.length === 0 && !board.note;
  $("board-title").textContent = `Against the random walk${market === "sim" ? " (simulated market)" : ""}`;
  $("board-note").textContent = board.verdict || board.note || "";
  const rows = [];
  let group = "";
  for (const row of board.rows) {
    if (row.timeframe !== group) rows.push(heading(group = row.timeframe));
    rows.push(boardRow(row));
  }
  $("rows").replaceChildren();
  if (rows.length) table($("rows"), ["architecture", "CRPS ratio", "95 % interval", "coins < 1", "MAE ratio", "direction", "inside 80 %", "members"], rows);
}

function heading(timeframe) {
  const row = element("tr", "", "group");
  const cell = element("td", `${timeframe} candles`);
  cell.colSpan = 8;
  row.append(cell);
  return row;
}

function boardRow(row) {
  const number = (value, digits) => (value === null || value === undefined ? "–" : value.toFixed(digits));
  const interval = row.crps_ratio_low === null ? "–" : `${number(row.crps_ratio_low, 4)} to ${number(row.crps_ratio_high, 4)}`;
  const sure = { better: "better", worse: "worse" }[row.verdict] || "";
  const line = document.createElement("tr");
  const ratio = element("td", number(row.crps_ratio, 4) + ({ better: " ▼", worse: " ▲" }[sure] || ""), sure);
  line.append(element("td", row.architecture), ratio, element("td", interval),
    element("td", row.better_share === null ? "–" : percent(row.better_share)), element("td", number(row.mae_ratio, 4)),
    element("td", row.directional_accuracy === null ? "–" : percent(row.directional_accuracy, 1)),
    element("td", row.coverage_80 === null ? "–" : percent(row.coverage_80, 1)),
    element("td", row.failed ? `${row.members} (${row.failed} failed)` : String(row.members)));
  return line;
}

start();
