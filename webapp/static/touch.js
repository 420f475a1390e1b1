// The chance that a price is reached: marks at the right edge of the chart, and the chance at the crosshair's price.

import { get, ofSeries } from "/static/api.js";
import { percent, priceFormat, time } from "/static/format.js";

const SETTLE_MS = 120; // while the crosshair moves, only the price where it rests is asked for
const APART_PX = 12; // of labels; marks that are closer have none
const LABEL_PX = 40, WORD_PX = 70; // right of the origin, for a label, and for one that says what it is

export function touchChances(series) {
  let stops = [], issued = 0, timer = 0, wanted = null;

  // Only the newest forecast has chances, and only where its model has a table of extremes.
  async function load(forecast, isNewest) {
    const asked = isNewest && forecast.steps.length;
    stops = asked ? (await get(ofSeries("touch", series)).catch(() => ({ stops: [] }))).stops : [];
    issued = Date.parse(forecast.issued_at);
  }

  // Shapes and annotations of a chart with the marks, where the last step is in view; labels where they cover no candle.
  function marks({ shapes = [], annotations = [] }, [from, until], [low, high], width, height) {
    const color = getComputedStyle(document.documentElement).getPropertyValue("--soft").trim();
    const shown = stops.filter(({ by }) => Date.parse(by) <= until);
    const free = width * (until - issued) / (until - from);
    const labelled = [];
    for (const stop of free < LABEL_PX ? [] : shown.toReversed()) { // the outermost first
      const y = height * (stop.price - low) / (high - low);
      if (!labelled.some((other) => Math.abs(other.y - y) < APART_PX)) labelled.push({ ...stop, y });
    }
    return {
      shapes: [...shapes, ...shown.map(({ price }) => ({ type: "line", xref: "paper", xsizemode: "pixel", xanchor: 1, x0: -10, x1: 0, y0: price, y1: price, line: { color, width: 2 } }))],
      annotations: [...annotations, ...labelled.map(({ price, probability }, i) => ({
        xref: "paper", x: 1, xanchor: "right", xshift: -11, y: price, yanchor: "middle", showarrow: false, borderpad: 0,
        text: `${i < 2 && free > WORD_PX ? "reached: " : ""}${percent(probability)}`, font: { size: 11, color } }))],
    };
  }

  function told() {
    if (!stops.length) return "";
    const format = priceFormat(stops[0].price);
    return `Reached by ${time(stops[0].by)}: ${stops.map((stop) => `${format(stop.price)} with a chance of ${percent(stop.probability)}`).join(", ")}.`;
  }

  // Answers with a text once the price has rested: by the time, if a step ends then, else by the last step.
  function ask(price, when, answer) {
    clearTimeout(timer);
    wanted = price;
    if (!stops.length) return;
    timer = setTimeout(async () => {
      const { touch } = await get(ofSeries("touch", series, { price })).catch(() => ({ touch: [] }));
      if (wanted !== price || !touch.length) return; // the crosshair has moved on
      const { probability, by } = touch.find((chance) => Date.parse(chance.by) === when) || touch.at(-1);
      answer(`reached by ${time(by)}: ${probability < 0.005 ? "under 1 %" : percent(probability)}`);
    }, SETTLE_MS);
  }

  function forget() {
    clearTimeout(timer);
    wanted = null;
  }

  return { load, marks, told, ask, forget, trace: () => ({ x: stops.map((stop) => stop.by), y: stops.map((stop) => stop.price) }) };
}
