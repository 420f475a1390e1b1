// The chance that a price is reached: marks at the right edge of the chart, and the chances at the crosshair's price.

import { get, messageOf, ofSeries } from "./api.js";
import { percent, priceFormat, time } from "./format.js";
import { byTime, chance } from "./words.js";

const SETTLE_MS = 120; // while the crosshair moves, only the price where it rests is asked for
const APART_PX = 12, CLEAR_PX = 8; // between labels, else the inner has none; between the middle of one and the fan
const LABEL_PX = 40, WORD_PX = 84; // of a mark with its chance, and with the word before it
const GAP_PX = 6; // between the fan and the labels
const NARROW_PX = 600; // of a chart whose labels have no room for the word beside the fan

export function touchChances(series) {
  let stops = [], note = null, forecast = null, issued = 0, timer = 0, turn = 0;

  // Only the newest forecast has chances, and only where its model has a table of extremes.
  async function load(shown, isNewest) {
    [forecast, issued, stops, note] = [shown, Date.parse(shown.issued_at), [], null];
    if (!isNewest || !shown.steps.length) return;
    const found = await get(ofSeries("touch", series)).catch((error) => ({ stops: [], note: messageOf(error) }));
    if (forecast === shown) ({ stops, note } = found);
  }

  // How much of a chart's width the labels take, beside the fan.
  function room(width) {
    return !stops.length ? 0 : GAP_PX + (width < NARROW_PX ? LABEL_PX : WORD_PX);
  }

  // Shapes and annotations of a chart with the marks, where the last step is in view; labels where they cover neither
  // fan nor candle: right of them, or above and below the fan. `newest`: the time of the newest candle.
  function marks({ shapes = [], annotations = [] }, [from, until], [low, high], width, height, newest) {
    const color = getComputedStyle(document.documentElement).getPropertyValue("--soft").trim();
    const card = getComputedStyle(document.documentElement).getPropertyValue("--card").trim();
    const shown = stops.filter(({ by }) => Date.parse(by) <= until);
    const pixel = (high - low) / height;
    const rightOf = (time_) => width * (until - time_) / (until - from);
    const labelled = [];
    for (const stop of shown.toReversed()) { // the outermost first
      const { q05, q95 } = forecast.steps.at(-1);
      const isClear = newest <= issued && (stop.price > q95 + CLEAR_PX * pixel || stop.price < q05 - CLEAR_PX * pixel);
      const free = rightOf(isClear ? issued : Math.max(newest, Date.parse(stop.by)));
      if (free < LABEL_PX || labelled.some((other) => Math.abs(other.price - stop.price) < APART_PX * pixel)) continue;
      labelled.push({ ...stop, text: `${labelled.length < 2 && free >= WORD_PX ? "reached: " : ""}${percent(stop.probability)}` });
    }
    return {
      shapes: [...shapes, ...shown.map(({ price }) => ({ type: "line", xref: "paper", xsizemode: "pixel", xanchor: 1, x0: -10, x1: 0, y0: price, y1: price, line: { color, width: 2 } }))],
      annotations: [...annotations, ...labelled.map(({ price, text }, i) => ({ // a line of target or stop ends at an outermost label
        xref: "paper", x: 1, xanchor: "right", xshift: -11, y: price, yanchor: "middle", showarrow: false, borderpad: 0, bgcolor: i < 2 ? card : null, text, font: { size: 11, color } }))],
    };
  }

  function told() {
    if (!stops.length) return "";
    const format = priceFormat(stops[0].price);
    return `Reached by ${time(stops[0].by)}: ${stops.map((stop) => `${format(stop.price)} with a chance of ${percent(stop.probability)}`).join(", ")}.`;
  }

  // Answers with lines once the price has rested: by the time, if a step ends then, else by the last step.
  function ask(price, when, answer) {
    forget();
    const mine = turn;
    if (!stops.length) return;
    timer = setTimeout(async () => {
      const [{ touch }, { above }] = await Promise.all(["touch", "above"].map((part) => get(ofSeries(part, series, { price })).catch(() => ({ touch: [], above: [] }))));
      if (mine !== turn || !touch.length) return; // the crosshair has moved on
      const until = (chances) => chances.find((each) => Date.parse(each.by) === when) || chances.at(-1);
      const words = [[touch, "reached by"], [above, "closes above at"]].filter(([chances]) => chances.length);
      answer(words.map(([chances, what]) => `${what} ${byTime(until(chances).by, issued)}: ${chance(until(chances).probability)}`));
    }, SETTLE_MS);
  }

  function forget() {
    clearTimeout(timer);
    turn += 1;
  }

  return { load, found: () => ({ stops, note }), room, marks, told, ask, forget, trace: () => ({ x: stops.map((stop) => stop.by), y: stops.map((stop) => stop.price) }) };
}
