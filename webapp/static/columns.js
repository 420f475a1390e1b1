// The overview's columns: what a series' row says in the table, and what it sorts by; the cards say the same.

import { chip, h } from "./dom.js";
import { known, percent, price, priceFormat, seconds, signed, time } from "./format.js";
import { RATIO, horizon, isTold, kindOf, recordOf, seriesLink, simulatedChip, verdictChip } from "./words.js";

const CALM = 0.8, WILD = 1.25; // of the usual width
const MIN_DAYS = 7; // as webapp/recent.py has it

const under = (text, desk = false) => h("span", { class: desk ? "under desk" : "under" }, text);
const lines = (first, ...others) => [first, ...others.filter(Boolean).map((text) => under(text))];
const share = (value, of) => (known(value) ? value / of - 1 : null);

// Whether there is a candle that the forecast has not seen.
export function isNewer(row) {
  return Boolean(row.issued_at) && Date.parse(row.closed_at) > Date.parse(row.issued_at);
}

// "80 %" of the close at the last step: in prices, and in per cent of the close at its origin.
export function rangePrices(row) {
  return [row.q10, row.q90].map(priceFormat(row.origin_close)).join(" to ");
}

export function rangeShares(row) {
  return [row.range_80_low, row.range_80_high].map((end) => signed(end / 100)).join(" to ");
}

// The close that per cent are of, where that is not the newest.
function originWords(row) {
  return isNewer(row) ? `of ${price(row.origin_close)} at ${time(row.issued_at)}` : null;
}

// A chance's price with its distance from the close at the origin.
export function stopCell(row, stop) {
  return known(stop) ? lines(priceFormat(row.origin_close)(stop), signed(share(stop, row.origin_close))) : "–";
}

export function widthWords(row) {
  if (!known(row.width_ratio)) return known(row.width_days) ? `${row.width_days} of ${MIN_DAYS} days` : "–";
  return row.width_ratio < CALM ? "calm" : row.width_ratio > WILD ? "wild" : "usual";
}

export function dayWords(row) {
  return row.day_closes ? `${row.day_inside} of ${row.day_closes}` : "–";
}

export function moved(row) {
  if (!known(row.change_1d)) return null;
  const up = row.change_1d >= 0;
  return h("span", { class: up ? "up" : "down" }, `${up ? "▲" : "▼"} ${signed(row.change_1d / 100)}`);
}

export function chipsOf(row) {
  return h("span", { class: "chips" }, simulatedChip(row.market), row.watch && row.watch !== "fine" && chip(`drift: ${row.watch}`, "bad", row.watch_reason),
    row.stale && chip("stale", "bad", row.stale), row.standing_note && chip("stands still", "bad", row.standing_note));
}

export function nameLink(row, ...rest) {
  return h("a", { href: seriesLink(row), "aria-label": `${row.symbol} ${row.timeframe}` }, row.symbol, ...rest);
}

// `up`: whether it is sorted upwards at first. `desk`: left out on a phone. `order`: its name where there is no heading.
export const COLUMNS = [
  { key: "symbol", label: "coin", text: true, up: true, value: (r) => r.symbol, cell: (r) => [nameLink(r), " ", h("span", { class: "second" }, h("span", { class: "phone soft" }, `${r.timeframe} `, verdictChip(r.verdict, true), " "), chipsOf(r))] },
  { key: "timeframe", desk: true, label: "candles", text: true, up: true, value: (r) => seconds(r.timeframe), cell: (r) => r.timeframe },
  { key: "price", label: "price", title: "the newest stored close, and when that was (UTC)", up: false, value: (r) => r.last_close,
    cell: (r) => (known(r.last_close) ? [price(r.last_close), under(time(r.closed_at), true)] : "–") },
  { key: "change", desk: true, label: "24 h", order: "change over 24 h", title: "change of the newest close over 24 hours", up: false, value: (r) => r.change_1d, cell: (r) => moved(r) || "–" },
  { key: "range", label: "80 % range", order: "width of the 80 % range", title: "80 % of closes at the time beside it are expected inside; per cent are of the close that the forecast starts from. Sorts by its width in per cent", up: false,
    value: (r) => (known(r.range_80_low) ? r.range_80_high - r.range_80_low : null), cell: (r) => (known(r.q10) ? lines(rangePrices(r), rangeShares(r), originWords(r)) : "no forecast") },
  { key: "by", desk: true, label: "at (UTC)", title: "when the candle that is forecast closes, and how far that is from the forecast's origin", up: true, value: (r) => (r.range_at ? Date.parse(r.range_at) : null),
    cell: (r) => (r.range_at ? lines(time(r.range_at), `${horizon(r)} ahead`) : "–") },
  { key: "down", desk: true, label: "5 % down", title: "the price below that is reached by then with a chance of 5 %", up: true, value: (r) => share(r.stop_5_down, r.origin_close), cell: (r) => stopCell(r, r.stop_5_down) },
  { key: "up", desk: true, label: "5 % up", title: "the price above that is reached by then with a chance of 5 %", up: false, value: (r) => share(r.stop_5_up, r.origin_close), cell: (r) => stopCell(r, r.stop_5_up) },
  { key: "width", desk: true, label: "width, 30 days", title: `width of the 80 % range over the median of the series' own forecasts of the 30 days before: under ${CALM} calm, over ${WILD} wild. It needs forecasts of ${MIN_DAYS} of these days`, up: false,
    value: (r) => r.width_ratio, cell: (r) => (known(r.width_ratio) ? lines(`× ${r.width_ratio.toFixed(2)}`, widthWords(r)) : known(r.width_days) ? lines(h("span", { class: "soft" }, "too few"), widthWords(r)) : "–") },
  { key: "day", desk: true, label: "came true", title: "forecasts of closes that came due in the 24 hours up to the newest candle, and how many of them lay inside their 80 % range", up: false,
    value: (r) => (r.day_closes ? r.day_inside / r.day_closes : null), cell: (r) => (r.day_closes ? lines(dayWords(r), `${percent(r.day_inside / r.day_closes)} ${kindOf(r.day_live)}`) : "–") },
  { key: "verdict", desk: true, label: "verdict", order: "CRPS ratio", title: `of the champion's test span, with its ${RATIO}`, text: true, up: true, value: (r) => r.crps_ratio,
    cell: (r) => lines(verdictChip(r.verdict), known(r.crps_ratio) && r.crps_ratio.toFixed(4)) },
];

// What cards are sorted by, too.
export const ORDERS = [...COLUMNS,
  { key: "record", label: "live record", up: true, value: (r) => (r.record_live && isTold(recordOf(r)) ? r.record_ratio : null) },
  { key: "issued", label: "newest forecast", up: false, value: (r) => r.issued_at }];
