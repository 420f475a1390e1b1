// A crosshair with the price at the right and the time below, a box beside it that says how likely the price is
// reached, and the values of the candle or step under it as text.

import { h } from "./dom.js";
import { change, number, priceFormat, time } from "./format.js";

const GAP_PX = 12, FINGER_PX = 44; // between the box and the pointer, and what a finger covers

// `chances` tells how likely the price under the crosshair is reached.
export function crosshair(host, readout, chances) {
  const vertical = h("div", { class: "cross vertical", hidden: true });
  const horizontal = h("div", { class: "cross horizontal", hidden: true });
  const priceTag = h("span", { class: "cross tag", hidden: true });
  const timeTag = h("span", { class: "cross tag", hidden: true });
  const box = h("div", { class: "cross box", hidden: true });
  const parts = [vertical, horizontal, priceTag, timeTag];
  let slots = [], at = -1, level = null, format = String, forecast = null;

  // One slot per time that has a candle, a step of the forecast, or both.
  function set(figure, { steps, last_close: last }) {
    const known = new Map();
    const candles = figure.data.find((trace) => trace.type === "candlestick");
    const volume = figure.data.find((trace) => trace.yaxis === "y2");
    candles?.x.forEach((x, i) => known.set(Date.parse(x), { at: Date.parse(x), candle: {
      open: candles.open[i], high: candles.high[i], low: candles.low[i], close: candles.close[i], volume: volume?.y[i] } }));
    for (const step of steps) {
      const when = Date.parse(step.target_time);
      known.set(when, { ...known.get(when), at: when, step });
    }
    slots = [...known.values()].sort((a, b) => a.at - b.at);
    forecast = last;
    format = priceFormat(last ?? candles?.close.at(-1) ?? 1);
    if (!parts[0].isConnected) host.append(...parts, box);
    hide();
    tell(slots.at(-1));
  }

  function hide() {
    for (const part of [...parts, box]) part.hidden = true;
    chances.forget();
  }

  // `x`: where the pointer is, which the box stands beside; the vertical line is at the slot's time.
  function place(price, slot, { x = null, finger = false } = {}) {
    const { xaxis, yaxis, yaxis2 } = host._fullLayout;
    const [left, width, top] = [xaxis._offset, xaxis._length, yaxis._offset];
    const bottom = yaxis2 ? yaxis2._offset + yaxis2._length : top + yaxis._length;
    const middle = left + xaxis.c2p(slot.at);
    level = price;
    for (const part of parts) part.hidden = false;
    Object.assign(vertical.style, { left: `${middle}px`, top: `${top}px`, height: `${bottom - top}px` });
    timeTag.textContent = time(slot.at);
    Object.assign(timeTag.style, { left: `${Math.max(left, Math.min(left + width - 96, middle - 48))}px`, top: `${bottom}px` });
    const y = top + yaxis.c2p(price);
    const inside = y >= top && y <= top + yaxis._length;
    box.hidden = horizontal.hidden = priceTag.hidden = !inside;
    Object.assign(horizontal.style, { left: `${left}px`, top: `${y}px`, width: `${width}px` });
    priceTag.textContent = format(price);
    Object.assign(priceTag.style, { left: `${left + width}px`, top: `${y - 10}px` });
    const moved = forecast ? h("span", {}, " ", change(price, forecast)) : null;
    const say = (lines) => {
      box.replaceChildren(h("div", {}, h("b", {}, format(price)), moved ?? ""), ...lines.map((line) => h("div", { class: "chance" }, line)));
      if (inside) beside(x ?? middle, y, finger, [left, left + width], top);
    };
    say([]);
    chances.ask(price, slot.at, (lines) => {
      say(lines);
      readout.append(h("span", { class: "quiet" }, `. ${format(price)}: ${lines.join(", ")}`));
    });
  }

  // Above the pointer and right of it, or where there is room; above a finger, or in the corner that is farther from it.
  function beside(x, y, finger, [left, right], top) {
    const { offsetWidth: width, offsetHeight: height } = box;
    const above = y - height - (finger ? FINGER_PX : GAP_PX);
    const free = finger ? x - width / 2 : x + GAP_PX + width <= right ? x + GAP_PX : x - GAP_PX - width;
    const corner = x > (left + right) / 2 ? left : right - width;
    Object.assign(box.style, {
      left: `${Math.max(left, Math.min(right - width, finger && above < top ? corner : free))}px`,
      top: `${above >= top ? above : finger ? top : y + GAP_PX}px` });
  }

  function nearest(when) {
    let low = 0, high = slots.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (slots[middle].at < when) low = middle; else high = middle;
    }
    return Math.abs(slots[low].at - when) <= Math.abs(slots[high].at - when) ? low : high;
  }

  // The crosshair at a place in the window; a finger may leave the plot, a mouse hides it there.
  function point({ clientX, clientY }, finger = false) {
    if (!host._fullLayout || !slots.length) return;
    const frame = host.getBoundingClientRect();
    const { xaxis, yaxis } = host._fullLayout;
    const inside = (value, length) => (finger ? Math.max(0, Math.min(length, value)) : value);
    const x = inside(clientX - frame.left - xaxis._offset, xaxis._length);
    const y = inside(clientY - frame.top - yaxis._offset, yaxis._length);
    if (x < 0 || x > xaxis._length) { hide(); return; }
    at = nearest(xaxis.p2c(x));
    readout.setAttribute("aria-live", "off"); // a moving pointer would produce too much speech
    place(yaxis.p2c(y), slots[at], { x: x + xaxis._offset, finger });
    tell(slots[at]);
  }

  function step(by) {
    if (!slots.length) return;
    const [from, to] = host._fullLayout.xaxis.range.map((text) => host._fullLayout.xaxis.d2c(text));
    if (at < 0 || slots[at].at < from || slots[at].at > to) at = nearest(to);
    else at = Math.max(0, Math.min(slots.length - 1, at + by));
    show(slots[at].candle?.close ?? slots[at].step.q50);
  }

  // The price at the crosshair, up or down.
  function lift(by) {
    if (at < 0) { step(0); return; }
    const [low, high] = host._fullLayout.yaxis.range;
    show(Math.max(low, Math.min(high, level + by * (high - low) / 40)));
  }

  function show(price) {
    readout.setAttribute("aria-live", "polite");
    place(price, slots[at]);
    tell(slots[at]);
  }

  function tell(slot) {
    if (!slot) { readout.textContent = ""; return; }
    const { candle: c, step: s } = slot;
    const candle = c && `open ${format(c.open)} high ${format(c.high)} low ${format(c.low)} close ${format(c.close)}`
      + `${c.volume === undefined || c.volume === null ? "" : ` volume ${number(c.volume)}`}`;
    const range = s && `80 % of closes between ${format(s.q10)} and ${format(s.q90)} `
      + `(${change(s.q10, forecast)} to ${change(s.q90, forecast)}), median ${format(s.q50)}`;
    const came = s && c ? `; it was ${format(c.close)} (${change(c.close, forecast)})` : "";
    readout.textContent = `${time(slot.at)}: ${range ? range + came : candle}`;
  }

  return { set, hide, step, lift, point };
}
