// Candles, then the forecast's fan, in one SVG. Each candle and step has one slot; slots are equally wide.

import { change, clock, priceFormat, time } from "/static/format.js";

const SVG = "http://www.w3.org/2000/svg";
const BANDS = [["b90", "q05", "q95"], ["b80", "q10", "q90"], ["b50", "q25", "q75"]];

function node(name, attributes, parent) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (parent) parent.append(element);
  return element;
}

export function draw(container, readout, forecast, candles) {
  const width = Math.max(320, container.clientWidth || 800);
  const height = width < 560 ? 300 : 380;
  const issued = Date.parse(forecast.issued_at);
  const shown = width < 560 ? 32 : 60;
  const past = candles.filter((c) => Date.parse(c.close_time) <= issued).slice(-shown);
  const came = new Map(candles.filter((c) => Date.parse(c.close_time) > issued).map((c) => [Date.parse(c.close_time), c]));
  const slots = [...past.map((c) => ({ at: Date.parse(c.close_time), candle: c })),
    ...forecast.steps.map((s) => ({ at: Date.parse(s.target_time), step: s, candle: came.get(Date.parse(s.target_time)) }))];
  const format = priceFormat(forecast.last_close);

  const values = slots.flatMap((s) => [...(s.candle ? [s.candle.low, s.candle.high] : []),
    ...(s.step ? [s.step.q05, s.step.q95] : [])]);
  values.push(forecast.last_close);
  const low = Math.min(...values), high = Math.max(...values), pad = (high - low || high * 0.01) * 0.06;
  const ticks = round(low - pad, high + pad, height < 320 ? 4 : 6);
  const right = 14 + 7.2 * Math.max(...ticks.map((t) => format(t).length));
  const box = { left: 4, right: width - right, top: 8, bottom: height - 24 };
  const each = (box.right - box.left) / slots.length;
  const x = (i) => box.left + (i + 0.5) * each;
  const y = (v) => box.bottom - ((v - (low - pad)) / (high - low + 2 * pad)) * (box.bottom - box.top);

  const svg = node("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: "0" });
  svg.setAttribute("aria-label", describe(forecast, format));
  axes(svg, ticks, slots, { x, y, box, format });
  fan(svg, forecast, past.length, { x, y });
  for (const [i, slot] of slots.entries()) if (slot.candle && !slot.step) candle(svg, slot.candle, x(i), y, each);
  realised(svg, slots, forecast, past.length, { x, y });
  node("line", { class: "now", x1: x(past.length - 0.5), x2: x(past.length - 0.5), y1: box.top, y2: box.bottom }, svg);
  pointer(svg, readout, slots, forecast, { x, box, each, width, format });
  container.replaceChildren(svg);
  return came.size > 0 && slots.some((s) => s.step && s.candle);
}

function axes(svg, ticks, slots, { x, y, box, format }) {
  for (const tick of ticks) {
    node("line", { class: "grid", x1: box.left, x2: box.right, y1: y(tick), y2: y(tick) }, svg);
    node("text", { class: "tick", x: box.right + 8, y: y(tick) + 4 }, svg).textContent = format(tick);
  }
  const step = slots.length > 1 ? slots.at(-1).at - slots.at(-2).at : 3600000;
  const daily = step >= 4 * 3600000;
  const every = Math.ceil((daily ? 80 : 60) / (x(1) - x(0)));
  let day = 0;
  for (let i = Math.ceil(22 / (x(1) - x(0))); i < slots.length; i += every) {
    const today = Math.floor(slots[i].at / 86400000); // a label on a new day shows the date
    const label = node("text", { class: "tick", x: x(i), y: box.bottom + 18, "text-anchor": "middle" }, svg);
    label.textContent = clock(slots[i].at, daily || today !== day);
    day = today;
  }
}

function candle(svg, c, at, y, each) {
  const body = Math.max(1.5, Math.min(11, each * 0.62));
  const top = y(Math.max(c.open, c.close)), bottom = y(Math.min(c.open, c.close));
  node("line", { class: "wick", x1: at, x2: at, y1: y(c.high), y2: y(c.low) }, svg);
  node("rect", { class: c.close >= c.open ? "up" : "down", x: at - body / 2, y: top, width: body, height: Math.max(1, bottom - top) }, svg);
}

function fan(svg, forecast, first, { x, y }) {
  const origin = [x(first - 1), y(forecast.last_close)];
  for (const [name, lowest, highest] of BANDS) {
    const upper = forecast.steps.map((s, i) => [x(first + i), y(s[highest])]);
    const lower = forecast.steps.map((s, i) => [x(first + i), y(s[lowest])]).reverse();
    node("polygon", { class: `band ${name}`, points: [origin, ...upper, ...lower].map((p) => p.join()).join(" ") }, svg);
  }
  const middle = [origin, ...forecast.steps.map((s, i) => [x(first + i), y(s.q50)])];
  node("polyline", { class: "middle", points: middle.map((p) => p.join()).join(" ") }, svg);
}

function realised(svg, slots, forecast, first, { x, y }) {
  const points = [[x(first - 1), y(forecast.last_close)]];
  for (const [i, slot] of slots.entries()) {
    if (!slot.step || !slot.candle) continue;
    points.push([x(i), y(slot.candle.close)]);
    node("circle", { class: "dot", cx: x(i), cy: y(slot.candle.close), r: 3 }, svg);
  }
  if (points.length > 1) node("polyline", { class: "real", points: points.map((p) => p.join()).join(" ") }, svg);
}

function pointer(svg, readout, slots, forecast, { x, box, each, width, format }) {
  const cursor = node("line", { class: "cursor", y1: box.top, y2: box.bottom, visibility: "hidden" }, svg);
  let current = slots.length - 1;
  const show = (i) => {
    current = Math.max(0, Math.min(slots.length - 1, i));
    cursor.setAttribute("x1", x(current));
    cursor.setAttribute("x2", x(current));
    cursor.setAttribute("visibility", "visible");
    readout.textContent = tell(slots[current], forecast, format);
  };
  const move = (event) => {
    const scale = width / svg.getBoundingClientRect().width;
    show(Math.floor(((event.clientX - svg.getBoundingClientRect().left) * scale - box.left) / each));
  };
  svg.addEventListener("pointermove", move);
  svg.addEventListener("pointerdown", move);
  svg.addEventListener("pointerleave", () => cursor.setAttribute("visibility", "hidden"));
  svg.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by) { event.preventDefault(); show(current + by); }
  });
  readout.textContent = tell(slots.at(-1), forecast, format);
}

function tell(slot, forecast, format) {
  if (!slot.step) {
    const c = slot.candle;
    return `${time(slot.at)}: open ${format(c.open)}, high ${format(c.high)}, low ${format(c.low)}, close ${format(c.close)}`;
  }
  const s = slot.step;
  const real = slot.candle ? `; it was ${format(slot.candle.close)} (${change(slot.candle.close, forecast.last_close)})` : "";
  return `${time(slot.at)}: 80 % of closes between ${format(s.q10)} and ${format(s.q90)} `
    + `(${change(s.q10, forecast.last_close)} to ${change(s.q90, forecast.last_close)}), median ${format(s.q50)}${real}`;
}

function describe(forecast, format) {
  const last = forecast.steps.at(-1);
  return `Forecast of ${forecast.symbol} ${forecast.timeframe}: ${forecast.steps.length} candles after `
    + `${time(forecast.issued_at)} the close lies between ${format(last.q10)} and ${format(last.q90)} with 80 % probability.`;
}

// Round numbers inside [low, high].
function round(low, high, count) {
  const raw = (high - low) / count;
  const unit = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * unit).find((s) => s >= raw);
  const ticks = [];
  for (let i = Math.ceil(low / step); i * step <= high; i += 1) ticks.push(i * step);
  return ticks;
}
