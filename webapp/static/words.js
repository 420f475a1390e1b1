// Words for figures. Live and replayed forecasts are never one figure, and few days are no result.

import { chip, h } from "./dom.js";
import { age, count, dayAndTime, duration, hour, interval, known, time } from "./format.js";

export const MARKETS = { spot: "Binance spot", um: "USDT futures", cm: "coin futures", own: "own candles", sim: "simulated market" };
export const SIMULATED = "cpb's simulator generated these prices; what a model learns from them has no value on a real market.";
export const RATIO = "CRPS ratio to the random walk with EWMA volatility: below 1 is better";

// The chances that are scored, by the names that columns and metrics have for them.
export const CHANCES = { touch: "the chances of a touch", first: "the chances of a target before a stop", above: "the chances of a close above a price" };

const RELATIONS = [["better than", "better"], ["worse than", "worse"], ["no different", "no different"], ["better", "better"], ["worse", "worse"]];

// "better", "worse" or "no different" of a verdict's sentence; "untested" where there is none.
export function relation(verdict) {
  if (!verdict) return "untested";
  const found = RELATIONS.find(([start]) => verdict.startsWith(start));
  return found ? found[1] : verdict;
}

const MARKS = { better: "✓", worse: "✗", "no different": "≈" };

// `short`: on a phone the mark alone is seen.
export function verdictChip(verdict, short = false) {
  const word = relation(verdict);
  const kind = word === "better" || word === "worse" ? word : "";
  const made = chip(`${MARKS[word] || "?"} `, kind, verdict || "no finding of this model on a test span is stored");
  made.append(h("span", { class: short ? "word" : null }, word));
  return made;
}

export function simulatedChip(market) {
  return market === "sim" ? chip("simulated", "sim", SIMULATED) : null;
}

// Which market something is of, where that is not spot.
export function marketChip(market) {
  return market === "spot" ? null : simulatedChip(market) || chip(MARKETS[market] || market);
}

// The runs of the flow that have not ended.
export function atWork(runs) {
  return runs.filter((r) => r.status === "RUNNING");
}

export function seriesName({ symbol, timeframe, market }) {
  const where = market === "spot" ? "" : ` (${MARKETS[market] || market})`;
  return `${symbol}${where} · ${timeframe}`;
}

export function seriesLink({ symbol, timeframe, market }) {
  return `#/series/${encodeURIComponent(symbol)}/${encodeURIComponent(timeframe)}/${market}`;
}

export function kindOf(live) {
  return live ? "live" : "replayed";
}

// Whether a row of the record has days enough for an interval; without one its figures are not shown.
export function isTold(entry) {
  return known(entry.crps_ratio_low) && known(entry.crps_ratio_high);
}

// The record's part of a row of the overview, with the names that the record itself has.
export function recordOf(row) {
  return { live: row.record_live, days: row.record_days, verdict: row.record_verdict, crps_ratio: row.record_ratio,
    crps_ratio_low: row.record_low, crps_ratio_high: row.record_high };
}

// "10 h" from the forecast's origin to its last step.
export function horizon({ issued_at: from, range_at: to }) {
  return duration((Date.parse(to) - Date.parse(from)) / 1000);
}

const DAY_MS = 86_400_000;

// The end of a step: the hour alone, where a day holds the forecast that was issued then.
export function byTime(by, issued) {
  return Date.parse(by) - issued < DAY_MS ? hour(by) : time(by);
}

// A chance in whole per cent, which is never said to be none or certain.
export function chance(probability) {
  return percentWords(Math.round(100 * probability));
}

function percentWords(whole) {
  return whole < 1 ? "under 1 %" : whole > 99 ? "over 99 %" : `${whole} %`;
}

// What comes first of a target and a stop, in whole per cent that add up to 100.
export function firstWords({ target_first: target, stop_first: stop, neither, by }, issued) {
  const exact = [target, stop, neither].map((share) => 100 * share), whole = exact.map(Math.floor);
  const byRest = [0, 1, 2].sort((a, b) => exact[b] - whole[b] - (exact[a] - whole[a]));
  for (const i of byRest.slice(0, Math.round(100 - whole[0] - whole[1] - whole[2]))) whole[i] += 1;
  const [t, s, n] = whole.map(percentWords);
  return { target: t, stop: s, sentence: `target first ${t}, stop first ${s}, neither ${n} by ${byTime(by, issued)}` };
}

// When a forecast was stored, which is not its origin: a replay's origin may be years ago.
export function storedWords({ made_at: at, live }) {
  return `${at ? age(at) || dayAndTime(at) : "not recorded"}, ${kindOf(live)}`;
}

export function recordWords(entry) {
  const days = count(entry.days, "complete day");
  if (!isTold(entry)) return `too few to tell, ${days}`;
  return `${interval(entry.crps_ratio_low, entry.crps_ratio_high)}, ${entry.verdict}, ${days}`;
}

// "3" of "cpb-BTCUSDT-1h/3"
export function versionOf(name) {
  return name ? name.split("/").at(-1) : "–";
}
