// A series of the overview as a card. Its price is the close that the forecast starts from, which per cent are of.

import { chipsOf, dayWords, isNewer, moved, nameLink, rangePrices, rangeShares, stopCell, widthWords } from "./columns.js";
import { h } from "./dom.js";
import { dayAndTime, known, price, seconds, time } from "./format.js";
import { horizon, isTold, kindOf, recordOf, recordWords, storedWords, verdictChip, versionOf } from "./words.js";

// `tools` stand beside its chips.
export function seriesCard(row, ...tools) {
  const name = h("h2", {}, nameLink(row, " ", h("span", { class: "soft" }, row.timeframe)));
  const newer = isNewer(row) && h("p", { class: "small" }, `newest close ${price(row.last_close)} at ${time(row.closed_at)}`);
  return h("li", {}, h("article", { class: "tile card" },
    h("div", { class: "headline" }, name, h("span", { class: "chips" }, chipsOf(row), tools)),
    h("div", { class: "quote" }, h("b", {}, price(row.origin_close ?? row.last_close)), moved(row), known(row.change_1d) && h("span", { class: "soft" }, "in 24 h")), newer, spark(row),
    h("dl", {}, facts(row).map(([what, value]) => h("div", {}, h("dt", {}, what), h("dd", {}, value))))));
}

const whole = (text) => h("span", { class: "whole" }, text); // never torn apart

function facts(row) {
  const scored = known(row.record_live), record = recordOf(row);
  const forecast = known(row.q10) ? [
    ["80 % range", [whole(rangePrices(row)), " ", whole(rangeShares(row))]],
    ["at", [whole(time(row.range_at)), ", ", whole(`${horizon(row)} ahead`)]],
    ["5 % prices", known(row.stop_5_down) ? [whole(stopCell(row, row.stop_5_down)[0]), " and ", whole(stopCell(row, row.stop_5_up)[0])] : "–"],
    ["30 days", known(row.width_ratio) ? `width × ${row.width_ratio.toFixed(2)}: ${widthWords(row)}` : `width: too few, ${widthWords(row)}`],
    ["last day", row.day_closes ? `${dayWords(row)} inside 80 %, ${kindOf(row.day_live)}` : "no close came due"]] : [["80 % range", "no forecast"]];
  return [...forecast, ["model", row.architecture ? `${row.architecture}, version ${versionOf(row.champion)}` : "none"],
    ["CRPS ratio", [known(row.crps_ratio) && `${row.crps_ratio.toFixed(4)} `, verdictChip(row.verdict)]],
    [scored ? (row.record_live ? "live" : "replays") : "record", scored ? `${isTold(record) ? `ratio ${row.record_ratio.toFixed(3)}, ` : ""}${recordWords(record)}` : "nothing scored yet"],
    ["origin", row.issued_at ? whole(`${dayAndTime(row.issued_at)} UTC`) : "–"], ["stored", row.issued_at ? storedWords(row) : "–"]];
}

const WIDTH = 100, HEIGHT = 30, EDGE = 2; // of the drawing, in its own units

// The last closes as a line, and the 80 % range as a fan; their figures stand beside it as text.
function spark(row) {
  const values = row.sparkline, candle = 1000 * seconds(row.timeframe);
  const at = (when) => values.length - 1 + (Date.parse(when) - Date.parse(row.closed_at)) / candle; // in candles from the first
  const fan = known(row.q10) && at(row.issued_at) >= 0 ? [[at(row.issued_at), row.origin_close], [at(row.range_at), row.q90], [at(row.range_at), row.q10]] : [];
  const line = values.map((value, i) => [i, value]), all = [...line, ...fan];
  const [low, high, end] = [Math.min(...all.map(([, y]) => y)), Math.max(...all.map(([, y]) => y)), Math.max(1, ...all.map(([x]) => x))];
  const points = (drawn) => drawn.map(([x, y]) => `${(WIDTH * x / end).toFixed(1)},${(HEIGHT - EDGE - (HEIGHT - 2 * EDGE) * (y - low) / (high - low || 1)).toFixed(1)}`).join(" ");
  const made = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", class: "spark", "aria-hidden": "true" });
  if (fan.length) made.append(shape("polygon", { points: points(fan) }));
  if (values.length > 1) made.append(shape("polyline", { points: points(line) }));
  return made;
}

function shape(tag, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}
