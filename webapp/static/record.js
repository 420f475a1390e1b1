// What came true. Live forecasts and replays stand apart, each version under its own name, few days without figures.

import { maybe, ofSeries, published } from "./api.js";
import { card, downloads, fill, h, loading, marked } from "./dom.js";
import { count, day, interval, known, number, percent } from "./format.js";
import { figure, theme } from "./plot.js";
import { table } from "./table.js";
import { RATIO, isTold, kindOf, recordWords, versionOf } from "./words.js";

const BANDS = [50, 80, 90];

export function recordCard(series) {
  const note = h("p", { class: "note" }, loading("span"));
  const rates = h("div", { class: "rates" });
  const tables = h("div");
  let entries = [], shown = null; // of all versions: the live ones, else the replays
  const time = figure(() => (shown && isTold(shown) ? ofSeries("figures/record", series, { theme: theme() }) : null));
  const coverage = figure(() => (shown && isTold(shown) ? ofSeries("figures/coverage", series, { theme: theme() }) : null));
  const section = card("Forecasts against actual closes", { id: "record", aside: downloads(ofSeries("ledger", series, { limit: 5000 }), "the scored forecasts", { csv: true }) },
    note, rates, h("div", { class: "pair" }, time.frame, coverage.frame), tables);

  async function load(newest) {
    await fill(note, (isNewest) => scores(newest, isNewest));
    await time.load();
    await coverage.load();
  }

  async function scores(newest, isNewest) {
    const ledger = newest && await maybe(ofSeries("ledger", series, { limit: 0 }));
    if (!isNewest()) return;
    entries = ledger ? ledger.record : [];
    const own = entries.filter((e) => e.kind === "series");
    shown = own.find((e) => e.live) || own[0] || null;
    note.replaceChildren(...marked(shown ? about(shown, entries, newest) : nothing(ledger)));
    rates.replaceChildren(...(shown ? cards(shown) : []));
    tables.replaceChildren(...(entries.length ? [tableOf(true), tableOf(false)] : []).filter(Boolean));
  }

  function tableOf(live) {
    const shown = entries.filter((e) => e.live === live);
    if (!shown.length) return null;
    // After a store that began again a version's name may be of two models: then their weights tell them apart.
    const isShared = (e) => e.kind === "version" && shown.filter((o) => o.kind === "version" && o.model_version === e.model_version).length > 1;
    const rows = shown.map((e) => ({ ...e, weights: isShared(e) ? `, weights ${e.weights_sha256.slice(0, 8) || "unknown"}` : "" }));
    const caption = live ? "Live forecasts: made before their candles closed" : "Replays: made after the fact, no proof of anything";
    return table({ caption, columns: COLUMNS, rows, cards: true });
  }

  return { section, load };
}

function nothing(ledger) {
  if (!ledger) return "There is no forecast yet, so nothing to score.";
  if (published) return "No forecast is scored yet.";
  return ledger.recorded_at ? "No forecast is scored yet; `cpb forecast` scores each candle once it is stored." : "Nothing is recorded yet; `cpb forecast` scores the forecasts that are due.";
}

// The record of all champions of the series, and the part of the version that forecasts now.
function about(shown, entries, newest) {
  const all = `${count(shown.forecasts, `${kindOf(shown.live)} forecast`)} by all versions that have served this series, since ${day(shown.first)}, ${count(shown.rows, "close")}. `;
  const version = versionOf(newest.model_version);
  const own = entries.find((e) => e.kind === "version" && e.model_version === newest.model_version && e.weights_sha256 === (newest.weights_sha256 || e.weights_sha256) && e.live === shown.live);
  const part = own ? `Of these, ${number(own.forecasts)} are of version ${version}, which forecasts now (${recordWords(own)}). `
    : `None of these is of version ${version}, which forecasts now: its own record is empty. `;
  return `${all}${part}${RATIO}; the reference is stored beside each forecast.`;
}

function cards(entry) {
  const kind = kindOf(entry.live);
  if (!isTold(entry)) {
    return [h("div", { class: "rate unsure" }, h("b", {}, "too few to tell"), h("small", {}, `${kind}, ${count(entry.days, "complete day")} so far`),
      h("small", {}, "a finding needs 30 or more"))];
  }
  const ratio = h("div", { class: "rate", id: "ratio" }, h("small", {}, `CRPS ratio, ${kind}`), h("b", {}, entry.crps_ratio.toFixed(3)), h("small", {}, recordWords(entry)));
  return [ratio, ...BANDS.map((band) => rate(band, entry[`coverage_${band}`], kind))];
}

function rate(band, share, kind) {
  return h("div", { class: "rate" }, h("small", {}, `inside the ${band} % range, ${kind}`), h("b", {}, percent(share)),
    h("meter", { min: "0", max: "1", value: share, "aria-label": `${percent(share)} of closes inside the ${band} % range` }), h("small", {}, `promised: ${band} %`));
}

function named(entry) {
  return { pooled: `all ${entry.timeframe} champions`, series: "this series, all versions",
    version: `version ${versionOf(entry.model_version)} (${entry.role}) alone${entry.weights}` }[entry.kind];
}

const told = (cell) => (entry) => (isTold(entry) ? cell(entry) : "–");

const COLUMNS = [
  { key: "of", label: "forecasts of", text: true, cell: named },
  { key: "ratio", label: "CRPS ratio", title: RATIO, cell: (e) => (isTold(e) ? e.crps_ratio.toFixed(4) : "too few to tell") },
  { key: "interval", label: "95 % interval", cell: told((e) => interval(e.crps_ratio_low, e.crps_ratio_high, 4)) },
  { key: "verdict", label: "verdict", text: true, cell: told((e) => e.verdict) },
  { key: "inside", label: "inside 80 %", cell: told((e) => percent(e.coverage_80, 1)) },
  { key: "direction", label: "direction", title: "share of moves whose sign the median had; 50 % is a coin", cell: told((e) => (known(e.directional_accuracy) ? percent(e.directional_accuracy, 1) : "–")) },
  { key: "forecasts", label: "forecasts", cell: (e) => number(e.forecasts) },
  { key: "days", label: "days", cell: (e) => number(e.days) },
];
