// A crosshair with the price at the right and the time below, and the values of the candle or step under it as text.

import { h } from "/static/dom.js";
import { change, number, priceFormat, time } from "/static/format.js";

// `chances` tells how likely the price under the crosshair is reached.
export function crosshair(host, readout, chances) {
  const vertical = h("div", { class: "cross vertical", hidden: true });
  const horizontal = h("div", { class: "cross horizontal", hidden: true });
  const priceTag = h("span", { class: "cross tag", hidden: true });
  const timeTag = h("span", { class: "cross tag", hidden: true });
  const chanceTag = h("span", { class: "cross chance", hidden: true });
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
    if (!parts[0].isConnected) host.append(...parts, chanceTag);
    hide();
    tell(slots.at(-1));
  }

  function hide() {
    for (const part of [...parts, chanceTag]) part.hidden = true;
    chances.forget();
  }

  function place(x, price, slot) {
    const { xaxis, yaxis, yaxis2 } = host._fullLayout;
    const [left, width, top] = [xaxis._offset, xaxis._length, yaxis._offset];
    const bottom = yaxis2 ? yaxis2._offset + yaxis2._length : top + yaxis._length;
    level = price;
    chanceTag.hidden = true;
    for (const part of parts) part.hidden = false;
    Object.assign(vertical.style, { left: `${x}px`, top: `${top}px`, height: `${bottom - top}px` });
    timeTag.textContent = time(slot.at);
    Object.assign(timeTag.style, { left: `${Math.max(left, Math.min(left + width - 96, x - 48))}px`, top: `${bottom}px` });
    const y = top + yaxis.c2p(price);
    const inside = y >= top && y <= top + yaxis._length;
    horizontal.hidden = priceTag.hidden = !inside;
    Object.assign(horizontal.style, { left: `${left}px`, top: `${y}px`, width: `${width}px` });
    priceTag.textContent = format(price);
    Object.assign(priceTag.style, { left: `${left + width}px`, top: `${y - 10}px` });
    chances.ask(price, slot.at, (text) => {
      chanceTag.textContent = text;
      chanceTag.hidden = !inside;
      Object.assign(chanceTag.style, { left: `${left + 4}px`, top: `${y - 22 < top ? y + 2 : y - 22}px` });
      readout.append(h("span", { class: "quiet" }, `. ${format(price)} is ${text}`));
    });
  }

  function nearest(when) {
    let low = 0, high = slots.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (slots[middle].at < when) low = middle; else high = middle;
    }
    return Math.abs(slots[low].at - when) <= Math.abs(slots[high].at - when) ? low : high;
  }

  function move(event) {
    if (!host._fullLayout || !slots.length || event.buttons) return;
    const box = host.getBoundingClientRect();
    const { xaxis, yaxis } = host._fullLayout;
    const x = event.clientX - box.left, y = event.clientY - box.top;
    if (x < xaxis._offset || x > xaxis._offset + xaxis._length) { hide(); return; }
    at = nearest(xaxis.p2c(x - xaxis._offset));
    readout.setAttribute("aria-live", "off"); // a moving pointer would produce too much speech
    place(xaxis._offset + xaxis.c2p(slots[at].at), yaxis.p2c(y - yaxis._offset), slots[at]);
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
    const { xaxis } = host._fullLayout;
    readout.setAttribute("aria-live", "polite");
    place(xaxis._offset + xaxis.c2p(slots[at].at), price, slots[at]);
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

  host.addEventListener("pointermove", move);
  host.addEventListener("pointerdown", move);
  host.addEventListener("pointerleave", hide);
  return { set, hide, step, lift };
}
