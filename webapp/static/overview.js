// The overview: a card for each series of a market, searched, filtered and sorted; what is asked is in the address.

import { ask, get } from "./api.js";
import { button, chip, downloads, h, marked, select, sentence } from "./dom.js";
import { count, dayAndTime, known, price, seconds, signed } from "./format.js";
import { sorted } from "./table.js";
import { MARKETS, SIMULATED, horizon, isTold, recordWords, relation, seriesLink, simulatedChip, storedWords, verdictChip, versionOf } from "./words.js";

const ORDERS = [
  { key: "symbol", label: "coin", value: (r) => r.symbol, up: true },
  { key: "change", label: "change over 24 h", value: (r) => r.change_1d, up: false },
  { key: "range", label: "width of the 80 % range", value: width, up: false },
  { key: "record", label: "live record", value: (r) => (r.record_live && isTold(recordOf(r)) ? r.record_ratio : null), up: true },
  { key: "issued", label: "newest forecast", value: (r) => r.issued_at, up: false },
];
const VERDICTS = ["better", "no different", "worse", "untested"];

export async function open(root, { options }, remember) {
  const asked = { q: "", timeframe: "", verdict: "", stale: "", sort: "symbol", market: "", ...options };
  const count_ = h("p", { class: "note", role: "status" });
  const grid = h("ul", { class: "grid" });
  const notices = h("div");
  const links = h("div");
  const toolbar = h("div", { class: "toolbar", role: "search" });
  const search = h("input", { type: "search", id: "search", autocomplete: "off", spellcheck: "false", value: asked.q, oninput: () => change("q", search.value),
    onkeydown: (event) => { if (event.key === "Enter") grid.querySelector("a")?.click(); } }); // opens the first that is found
  let rows = [], found = null;

  async function load() {
    found = await get(ask("/api/overview", { market: asked.market }));
    asked.market = found.market;
    rows = found.rows;
  }

  function change(name, value) {
    asked[name] = value;
    remember({ ...asked, sort: asked.sort === "symbol" ? "" : asked.sort, market: options.market || name === "market" ? asked.market : "" });
    show();
  }

  function controls() {
    const markets = found.markets.map((m) => m.market);
    const timeframes = [...new Set(rows.map((r) => r.timeframe))].sort((a, b) => seconds(a) - seconds(b));
    const stale = h("input", { type: "checkbox", onchange: () => change("stale", stale.checked ? "1" : "") });
    stale.checked = Boolean(asked.stale);
    toolbar.replaceChildren(h("span", { class: "field" }, h("label", { for: "search" }, "Coin"), " ", search),
      ...(markets.length > 1 ? [select("Market", markets.map((m) => [m, MARKETS[m]]), asked.market, pick)] : []),
      select("Candles", [["", "all"], ...timeframes.map((t) => [t, t])], asked.timeframe, (v) => change("timeframe", v)),
      select("Verdict", [["", "all"], ...VERDICTS.map((v) => [v, v])], asked.verdict, (v) => change("verdict", v)),
      select("Sort by", ORDERS.map((o) => [o.key, o.label]), asked.sort, (v) => change("sort", v)),
      h("label", { class: "check" }, stale, " only stale"));
  }

  async function pick(market) {
    Object.assign(asked, { market, timeframe: "" });
    await load();
    controls();
    change("market", market);
  }

  function show() {
    const order = ORDERS.find((o) => o.key === asked.sort) || ORDERS[0];
    const kept = rows.filter((r) => r.symbol.includes(asked.q.trim().toUpperCase())
      && (!asked.timeframe || r.timeframe === asked.timeframe)
      && (!asked.verdict || relation(r.verdict) === asked.verdict) && (!asked.stale || r.stale));
    const focused = document.activeElement?.closest?.(".tile")?.querySelector("a")?.getAttribute("href");
    grid.replaceChildren(...(rows.length && !kept.length ? [h("li", {}, nothingFound())] : sorted(kept, ORDERS, { key: order.key, up: order.up }).map(tile)));
    if (focused) grid.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
    count_.textContent = `${kept.length} of ${count(rows.length, "series", "series")}`;
    notices.replaceChildren(...notes(found));
    toolbar.hidden = count_.hidden = rows.length === 0;
    links.replaceChildren(...(rows.length ? [downloads(ask("/api/overview", { market: asked.market }), "the overview")] : []));
  }

  function nothingFound() {
    const clear = () => { Object.assign(asked, { q: "", timeframe: "", verdict: "", stale: "" }); search.value = ""; controls(); change("q", ""); search.focus(); };
    return h("p", { class: "note" }, asked.q && !rows.some((r) => r.symbol.includes(asked.q.trim().toUpperCase())) ? `The coin ${asked.q.trim().toUpperCase()} is unknown: nothing of it is stored. `
      : "No series fits the search and the filters. ", button("Show all", clear));
  }

  await load();
  controls();
  show();
  root.append(h("h1", { class: "quiet" }, "Overview"), notices, toolbar, h("div", { class: "headline" }, count_, links), grid);
  return {
    title: "Overview",
    keys: { "/": () => search.focus() },
    async refresh() {
      const before = JSON.stringify(rows);
      await load();
      if (JSON.stringify(rows) !== before) controls();
      show();
      return JSON.stringify(rows) !== before;
    },
  };
}

function notes({ rows, market, markets, note, stale: advice }) {
  const made = [];
  if (market === "sim" && rows.length) made.push(h("p", { class: "card notice" }, h("b", {}, "Simulated market. "), SIMULATED));
  const stale = rows.filter((r) => r.stale);
  if (stale.length) made.push(h("p", { class: "card problem" }, `${stale.length} of ${count(rows.length, "series is", "series are")} stale; `, marked(advice), "."));
  if (note) made.push(h("p", { class: "card notice" }, sentence(note), rows.some((r) => r.issued_at) ? "" : " This page then fills by itself."));
  const simulated = markets.find((m) => m.market === "sim");
  if (market !== "sim" && simulated?.forecasts && !rows.some((r) => r.issued_at)) {
    made.push(h("p", { class: "card notice" }, "The forecasts that are stored are of the simulator's prices: ", h("a", { href: "#/?market=sim" }, "show the simulated market"), "."));
  }
  return made;
}

function width(row) {
  return known(row.range_80_low) ? row.range_80_high - row.range_80_low : null;
}

// The record's part of a row, with the names that the record itself has.
function recordOf(row) {
  return { live: row.record_live, days: row.record_days, verdict: row.record_verdict, crps_ratio: row.record_ratio,
    crps_ratio_low: row.record_low, crps_ratio_high: row.record_high };
}

function tile(row) {
  const name = h("h2", {}, h("a", { href: seriesLink(row) }, row.symbol, " ", h("span", { class: "soft" }, row.timeframe)));
  const up = row.change_1d >= 0;
  const moved = known(row.change_1d) ? h("span", { class: up ? "up" : "down" }, `${up ? "▲" : "▼"} ${signed(row.change_1d / 100)}`, h("span", { class: "soft" }, " in 24 h")) : null;
  const scored = known(row.record_live);
  const facts = h("dl", {},
    fact("80 % range", known(row.range_80_low) ? `${signed(row.range_80_low / 100)} to ${signed(row.range_80_high / 100)}, ${horizon(row)} ahead` : "no forecast"),
    fact("model", row.architecture ? `${row.architecture}, version ${versionOf(row.champion)}` : "none"),
    fact("test", [verdictChip(row.verdict), known(row.crps_ratio) && ` CRPS ratio ${row.crps_ratio.toFixed(4)}`]),
    fact(scored ? (row.record_live ? "live" : "replays") : "record", scored ? `${isTold(recordOf(row)) ? `ratio ${row.record_ratio.toFixed(3)}, ` : ""}${recordWords(recordOf(row))}` : "nothing scored yet"),
    fact("origin", row.issued_at ? `${dayAndTime(row.issued_at)} UTC` : "–"),
    fact("stored", row.issued_at ? storedWords(row) : "–"));
  return h("li", {}, h("article", { class: "tile card" },
    h("div", { class: "headline" }, name, h("span", { class: "chips" }, simulatedChip(row.market), watchChip(row),
      row.stale && chip("stale", "bad", row.stale), row.standing_note && chip("stands still", "bad", row.standing_note))),
    h("div", { class: "quote" }, h("b", {}, price(row.last_close)), moved), spark(row.sparkline), facts));
}

function fact(name, value) {
  return h("div", {}, h("dt", {}, name), h("dd", {}, value));
}

function watchChip({ watch, watch_reason: reason }) {
  return watch && watch !== "fine" ? chip(`drift: ${watch}`, "bad", reason) : null;
}

// The last closes as a line; its figures stand beside it as text.
function spark(values) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [name, value] of Object.entries({ viewBox: "0 0 100 30", preserveAspectRatio: "none", class: "spark", "aria-hidden": "true" })) svg.setAttribute(name, value);
  const low = Math.min(...values), span = Math.max(...values) - low || 1;
  const points = values.map((v, i) => `${(100 * i / (values.length - 1)).toFixed(1)},${(28 - 26 * (v - low) / span).toFixed(1)}`);
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  line.setAttribute("points", points.join(" "));
  if (values.length > 1) svg.append(line);
  return svg;
}
