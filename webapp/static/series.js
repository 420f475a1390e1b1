// One series: its chart with the forecasts, the record, the champion's decisions, and the numbers of what is shown.

import { PageError, ask, get, maybe, messageOf, ofSeries, published } from "./api.js";
import { button, chip, command, downloads, fill, h, loading, select, sentence } from "./dom.js";
import { change, dayAndTime, known, price, priceFormat, seconds, signed, time } from "./format.js";
import { pastForecasts } from "./past.js";
import { free } from "./plot.js";
import { priceChart } from "./price.js";
import { decisionsCard } from "./decisions.js";
import { recordCard } from "./record.js";
import { table } from "./table.js";
import { MARKETS, SIMULATED, seriesLink, seriesName, simulatedChip, storedWords, verdictChip, versionOf } from "./words.js";

const PAGE = 500; // forecasts on the slider at first, and more of them at its left end

export async function open(root, route, remember) {
  if (!route.symbol) throw new PageError("The address names no series, as #/series/BTCUSDT/1h/spot does; the overview lists what is stored.");
  const overview = await get(ask("/api/overview", { market: route.market }));
  const series = pick(overview, route);
  if (!series) throw new PageError(notStored(overview, route));
  const readout = h("figcaption", { id: "readout", "aria-live": "off" });
  const chart = priceChart(series, readout, { asked: route.options, onchosen: remember });
  const past = pastForecasts((...issue) => fill(readout, () => show(...issue)), earlier);
  const parts = { head: h("div", {}, loading()), verdict: h("p", { class: "finding" }), numbers: h("div", {}, loading()), links: h("div") };
  const record = recordCard(series), decisions = decisionsCard(series);

  root.append(navigation(overview, series),
    h("section", { class: "card", "aria-labelledby": "title" }, parts.head,
      h("figure", { class: "chart" }, chart.host, readout), chart.lines, tools(chart), published ? null : past.box, parts.verdict,
      h("details", { open: window.innerWidth > 900 }, h("summary", {}, "The numbers"), parts.numbers, parts.links)),
    record.section, decisions.section);

  // `issue` null: the series has candles only.
  async function show(issue, isNewest) {
    let forecast = { steps: [], last_close: null };
    try {
      if (issue) forecast = await get(ofSeries("forecast", series, isNewest ? {} : { issued_at: issue.issued_at }));
    } catch (error) {
      if (!isChosen(issue)) return;
      for (const place of [parts.head, parts.numbers, chart.host]) {
        place.querySelector(".loading")?.remove();
        place.removeAttribute("aria-busy");
      }
      throw error;
    }
    if (!isChosen(issue)) return; // the slider has moved on
    heading(parts.head, series, issue && forecast, issue, isNewest);
    parts.numbers.replaceChildren(issue ? numbers(forecast) : "");
    parts.links.replaceChildren(files(series, issue, isNewest));
    await chart.choose(forecast, isNewest).catch(tell);
  }

  // By its time: a list that was asked for again has other objects.
  const isChosen = (issue) => !issue || past.shown()?.issued_at === issue.issued_at;
  const tell = (error) => readout.replaceChildren(...sentence(messageOf(error)));

  // Null: they could not be had.
  async function earlier(first) {
    try {
      return (await issues(series, new Date(Date.parse(first.issued_at) - 1).toISOString())).forecasts;
    } catch (error) {
      tell(error);
      return null;
    }
  }

  async function load() {
    const found = await issues(series);
    const isNewest = past.set(found.forecasts);
    parts.verdict.replaceChildren(...(found.forecasts.length ? finding(series) : sentence(overview.note || `there is no forecast of ${seriesName(series)} yet; \`${series.command}\` makes some`)));
    return { newest: found.forecasts.at(-1) || null, isNewest };
  }

  const first = await load();
  const onTheme = () => { if (chart.host.isConnected) chart.load().catch(tell); };
  window.addEventListener("cpb-theme", onTheme);
  return {
    title: seriesName(series),
    keys: { "[": past.older, "]": past.newer, n: past.newest },
    async shown() { // plotly measures what is on the page
      await fill(parts.head, () => show(first.newest, true));
      await record.load(first.newest);
      await decisions.load();
    },
    async refresh(changed) {
      if (changed.has("candles") || changed.has("forecasts") || changed.has("ledger")) {
        Object.assign(series, pick(await get(ask("/api/overview", { market: series.market })), series));
        const now = await load();
        if (now.isNewest) await renew(now.newest);
        await record.load(now.newest);
      }
      if (changed.has("board")) await decisions.load();
      return true;
    },
    close() { window.removeEventListener("cpb-theme", onTheme); free(root); },
  };

  // Loads the newest forecast again and keeps the reader's view.
  async function renew(issue) {
    const forecast = issue ? await get(ofSeries("forecast", series)) : { steps: [], last_close: null };
    if (!isChosen(issue)) return; // the reader has gone to an earlier one
    heading(parts.head, series, issue && forecast, issue, true);
    parts.numbers.replaceChildren(issue ? numbers(forecast) : "");
    await chart.renew(forecast);
  }
}

// The row of the asked series; of the coin's other candles, or none, where that is not stored.
function pick({ rows }, { symbol, timeframe }) {
  const ofCoin = rows.filter((r) => r.symbol === (symbol || "").toUpperCase());
  return ofCoin.find((r) => r.timeframe === timeframe) || (timeframe ? null : ofCoin[0]) || null;
}

function notStored({ rows, market }, { symbol, timeframe }) {
  const name = symbol.toUpperCase(), coins = [...new Set(rows.map((r) => r.symbol))].sort();
  if (coins.includes(name)) return `${name} ${timeframe} is not stored, only ${rows.filter((r) => r.symbol === name).map((r) => r.timeframe).join(", ")}`;
  const there = coins.length > 5 ? `${coins.slice(0, 5).join(", ")}, …` : coins.join(", ");
  return `The coin ${name} is unknown: of ${MARKETS[market]} ${there ? `only ${there} is stored` : "no coin is stored yet"} here; check the name, the overview lists what is stored`;
}

async function issues(series, until = null) {
  if (!series.issued_at) return { forecasts: [] };
  return (await maybe(ofSeries("forecasts", series, { limit: PAGE, until }))) || { forecasts: [] };
}

function navigation({ rows, markets }, series) {
  const go = (to) => { location.hash = seriesLink(to); };
  const coins = [...new Set(rows.map((r) => r.symbol))].sort();
  const ofCoin = (symbol) => rows.filter((r) => r.symbol === symbol).sort((a, b) => seconds(a.timeframe) - seconds(b.timeframe));
  const pickCoin = (symbol) => go(ofCoin(symbol).find((r) => r.timeframe === series.timeframe) || ofCoin(symbol)[0]);
  const links = ofCoin(series.symbol).map((r) => h("a", { href: seriesLink(r), "aria-current": r.timeframe === series.timeframe ? "true" : null }, r.timeframe));
  return h("div", { class: "toolbar" }, h("a", { href: `#/?market=${series.market}` }, "‹ Overview"),
    markets.length > 1 && select("Market", markets.map((m) => [m.market, MARKETS[m.market]]), series.market, (m) => { location.hash = `#/?market=${m}`; }),
    select("Coin", coins.map((c) => [c, c]), series.symbol, pickCoin),
    h("nav", { class: "segments", "aria-label": "Candle length" }, links));
}

function heading(target, series, forecast, issue, isNewest) {
  const standing = forecast && forecast.standing_note;
  const last = h("b", { class: "last" }, price(series.last_close));
  const moved = known(series.change_1d) ? h("span", { class: series.change_1d >= 0 ? "up" : "down" }, `${signed(series.change_1d / 100)} in 24 h`) : null;
  const chips = h("span", { class: "chips" }, simulatedChip(series.market), series.stale && chip("stale", "bad", series.stale),
    standing && chip("stands still", "bad", standing),
    series.watch && series.watch !== "fine" && chip(`drift: ${series.watch}`, "bad", series.watch_reason), issue && !isNewest && chip("an earlier forecast"));
  const over = forecast && isNewest && Date.parse(forecast.steps.at(-1).target_time) < Date.now();
  const issued = issue ? `Forecast from the close of ${dayAndTime(issue.issued_at)} UTC by version ${versionOf(issue.model_version)}; stored ${storedWords(issue)}.` : "";
  target.replaceChildren(h("div", { class: "headline" }, h("h1", { id: "title" }, seriesName(series), " ", chips), h("p", {}, last, " ", moved)),
    h("p", { class: "note" }, issued, over && !series.stale ? [" All its candles have closed", series.command && ["; ", command(series.command), " makes a new one"], "."] : "",
      ...(series.stale ? [" ", ...sentence(series.stale)] : []), ...(standing ? [" ", ...sentence(standing)] : [])),
    ...(series.market === "sim" ? [h("p", { class: "notice" }, h("b", {}, "Simulated market. "), SIMULATED)] : []));
}

function tools(chart) {
  return h("div", { class: "chart-tools", role: "group", "aria-label": "chart" },
    button("‹", () => chart.pan(-0.5), { "aria-label": "pan left" }), button("›", () => chart.pan(0.5), { "aria-label": "pan right" }),
    button("+", () => chart.zoom(0.6), { "aria-label": "zoom in" }), button("−", () => chart.zoom(1 / 0.6), { "aria-label": "zoom out" }),
    button("Reset view", chart.home),
    h("p", { id: "chart-keys", class: "small" },
      h("span", { class: "desk" }, "Drag or ← → to pan, wheel or + − to zoom, , and . for the candle before and after, ↑ ↓ for the price. "),
      "On a touch screen a tap or a drag reads prices and chances, two fingers pan and zoom. ",
      published ? "" : "Older candles load at the left edge. ", "Marks at the right edge: prices that are reached with a chance of 25, 10 and 5 %. "
      + "The handles there move target and stop; a candle that reaches both counts for the stop."));
}

function finding(series) {
  const by = series.architecture ? `${series.architecture}, version ${versionOf(series.champion)}` : null;
  return [by ? `The champion is ${by}. ` : "The champion's model is not in the MLflow store: take it as untested. ", verdictChip(series.verdict), " ",
    series.verdict ? `On its test span: ${series.verdict}. ` : by ? "It carries no verdict: take it as untested. " : "",
    series.selected_on ? `Its kind was selected on this span (${series.selected_on}): later rows are its result. ` : "",
    "It forecasts how far the price may move, not in which direction.",
    series.market === "sim" ? " It was trained on a simulated market: a demonstration only." : ""];
}

function numbers(forecast) {
  const format = priceFormat(forecast.last_close);
  const quantiles = [["q05", "5 %"], ["q10", "10 %"], ["q25", "25 %"], ["q50", "median"], ["q75", "75 %"], ["q90", "90 %"], ["q95", "95 %"]];
  const columns = [{ key: "at", label: "close at (UTC)", text: true, cell: (s) => time(s.target_time) },
    ...quantiles.map(([key, label]) => ({ key, label, cell: (s) => format(s[key]) })),
    { key: "move", label: "80 % move", cell: (s) => `${change(s.q10, forecast.last_close)} to ${change(s.q90, forecast.last_close)}` }];
  return table({ caption: `Quantiles of the close, issued ${dayAndTime(forecast.issued_at)} UTC`, columns, rows: forecast.steps });
}

function files(series, issue, isNewest) {
  if (published) return h("div", { class: "file" }, "This forecast ", downloads(ofSeries("forecast", series), "this forecast", { csv: true }));
  const candles = h("div", { class: "file" }, "Candles ", downloads(ofSeries("candles", series, { limit: 5000 }), "the newest 5,000 candles", { csv: true }));
  if (!issue) return candles;
  return h("div", { class: "files" },
    h("div", { class: "file" }, "This forecast ", downloads(ofSeries("forecast", series, isNewest ? {} : { issued_at: issue.issued_at }), "this forecast", { csv: true })),
    h("div", { class: "file" }, "All forecasts ", downloads(ofSeries("forecasts", series, { limit: 5000 }), "the list of forecasts", { csv: true })), candles);
}
