// A target and a stop: two lines over the chart with handles, two fields for their prices, and which of them is
// reached first. The chances are the service's.

import { get, messageOf, ofSeries } from "./api.js";
import { button, h, sentence } from "./dom.js";
import { change, priceFormat } from "./format.js";
import { firstWords } from "./words.js";

const SETTLE_MS = 120; // while a line moves, only the prices where it rests are asked for
const STOP_CHANCE = 0.05, REWARD = 2; // of the first prices: the stop is reached with it, the target is as often as far
const STEP = 0.001; // of the last close, about, for a key; ten times with the page keys, a tenth under a pointer
const FIT = 4; // lines within so many of the stop's first distance widen the chart; others wait at its edge
const EDGE = 0.03; // of the chart's height: a line that was left there moves the scale
const KEYS = { ArrowUp: 1, ArrowRight: 1, ArrowDown: -1, ArrowLeft: -1, PageUp: 10, PageDown: -10 };

// `onleft` is called when a line was left near the chart's upper or lower edge, or outside; `onchosen` with the chosen
// prices, which `asked` may hold as texts.
export function targetAndStop(series, host, { asked = {}, onleft, onchosen }) {
  const state = { shown: false, chosen: false, stops: [], last: 1, issued: 0, by: null, format: String, step: 1, known: false, turn: 0, timer: 0, first: null };
  const target = level("target", "Target"), stop = level("stop", "Stop");
  const levels = [target, stop];
  const told = h("p", { id: "first-told", role: "status", "aria-live": "polite", "aria-atomic": "true" });
  const sides = [["long", "Long"], ["short", "Short"]].map(([side, name]) => button(name, () => choose(side), {
    "data-side": side, title: `stop at the price that is reached with a chance of ${100 * STOP_CHANCE} %, target ${REWARD} times as far` }));
  const fields = h("div", { class: "levels" }, h("div", { class: "sides", role: "group", "aria-label": "side" }, sides), levels.map((l) => l.field));
  const box = h("div", { class: "first", role: "group", "aria-label": "target and stop", hidden: true }, fields, told);

  function level(key, name) {
    const made = { key, name, price: null, text: null };
    made.line = h("div", { class: `level ${key}`, hidden: true });
    made.label = h("span", { class: `level-label ${key}`, hidden: true });
    made.handle = h("div", { class: `handle ${key}`, role: "slider", tabindex: "0", "aria-label": name, "aria-orientation": "vertical", hidden: true });
    made.input = h("input", { type: "text", id: `${key}-price`, inputmode: "decimal", autocomplete: "off", spellcheck: "false", "aria-describedby": "first-told",
      onchange: () => typed(made) });
    made.field = h("span", { class: "field" }, h("label", { for: `${key}-price` }, name), " ", made.input);
    made.handle.addEventListener("keydown", (event) => {
      if (!KEYS[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      event.stopPropagation(); // the chart's own keys pan
      move(made, made.price + KEYS[event.key] * state.step, state.step);
      left(made);
    });
    drag(made);
    return made;
  }

  function drag(made) {
    let grip = null; // between the pointer and the line
    made.handle.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      event.preventDefault();
      event.stopPropagation();
      made.handle.focus({ preventScroll: true });
      made.handle.setPointerCapture(event.pointerId);
      grip = event.clientY - made.handle.getBoundingClientRect().top - made.handle.offsetHeight / 2;
    });
    made.handle.addEventListener("pointermove", (event) => {
      if (grip === null) return;
      const { yaxis } = host._fullLayout;
      const y = event.clientY - grip - host.getBoundingClientRect().top - yaxis._offset;
      move(made, yaxis.p2c(Math.max(0, Math.min(yaxis._length, y))), state.step / 10);
    });
    const end = () => {
      if (grip === null) return;
      grip = null;
      left(made);
    };
    made.handle.addEventListener("pointerup", end);
    made.handle.addEventListener("pointercancel", end);
  }

  // The prices that the newest forecast gives, and what was chosen stays. Without chances of both there are no lines.
  async function load({ steps, last_close: last, issued_at: issued }, { stops, note }) {
    clearTimeout(state.timer);
    state.turn += 1;
    Object.assign(state, { stops, shown: stops.length > 0, issued: Date.parse(issued), by: steps.at(-1)?.target_time });
    box.hidden = !state.shown && !note;
    fields.hidden = !state.shown;
    told.removeAttribute("aria-busy");
    told.replaceChildren(...(note ? sentence(note) : []));
    if (state.shown) {
      told.setAttribute("aria-busy", "true");
      told.replaceChildren("Loading …");
      Object.assign(state, { last, format: priceFormat(last), step: 10 ** Math.floor(Math.log10(STEP * last)) });
      if (!state.chosen) bracket("long");
      if (!state.known) for (const made of levels) if (asked[made.key]) take(made, asked[made.key]);
      state.known = true;
      write();
      await ask();
    }
    place();
  }

  // The stop where the forecast reaches it with a small chance, the target on the other side.
  function bracket(side) {
    const found = state.stops.find((s) => s.probability === STOP_CHANCE && s.side === (side === "long" ? "down" : "up"));
    set(stop, found.price, state.step / 10);
    set(target, state.last + REWARD * (state.last - found.price), state.step / 10);
  }

  function choose(side) {
    bracket(side);
    changed();
    onleft();
  }

  // After every change of a line by the reader.
  function changed() {
    state.chosen = true;
    write();
    place();
    told.setAttribute("aria-busy", "true");
    clearTimeout(state.timer);
    state.turn += 1; // an answer to other prices is not shown
    state.timer = setTimeout(ask, SETTLE_MS);
  }

  function set(made, value, step) {
    made.price = Number((Math.max(1, Math.round(value / step)) * step).toPrecision(12));
    made.text = null;
  }

  // By pointer or key, as far as the last close: on the other side it would be no target of that stop.
  function move(made, value, step) {
    const side = Math.sign(made.price - state.last), fine = state.step / 10;
    const nearest = side > 0 ? (Math.floor(state.last / fine) + 1) * fine : (Math.ceil(state.last / fine) - 1) * fine;
    set(made, value, step);
    if (side && Math.sign(made.price - state.last) !== side) set(made, nearest, fine);
    changed();
  }

  function left(made) {
    const { yaxis } = host._fullLayout;
    const share = yaxis.c2p(made.price) / yaxis._length;
    if (share < EDGE || share > 1 - EDGE) onleft();
  }

  function typed(made) {
    const text = made.input.value.trim();
    if (text === shown(made)) return;
    if (text) take(made, text); else made.text = null; // an emptied field has its price again
    made.input.value = shown(made);
    changed();
    left(made);
  }

  // A price as it is written here, grouped or not; any other text is the service's to refuse.
  function take(made, text) {
    const value = Number(/^\d{1,3}(,\d{3})+(\.\d+)?$/.test(text) ? text.replaceAll(",", "") : text);
    const isPrice = text !== "" && value > 0 && value < Infinity;
    made.text = isPrice ? null : text;
    if (isPrice) made.price = value;
    state.chosen = true;
  }

  const shown = (made) => made.text ?? state.format(made.price);

  function write() {
    for (const made of levels) {
      if (made.input !== document.activeElement) made.input.value = shown(made); // what is being typed stays
      made.input.toggleAttribute("aria-invalid", made.text !== null);
      const said = { valuenow: made.price, valuemin: 0, valuemax: Math.max(2 * state.last, made.price), valuetext: `${state.format(made.price)} (${change(made.price, state.last)})` };
      for (const [name, value] of Object.entries(said)) made.handle.setAttribute(`aria-${name}`, value);
    }
    const side = target.price > state.last && stop.price < state.last ? "long" : target.price < state.last && stop.price > state.last ? "short" : null;
    for (const each of sides) each.setAttribute("aria-pressed", String(each.dataset.side === side));
  }

  async function ask() {
    clearTimeout(state.timer);
    const turn = (state.turn += 1);
    const prices = Object.fromEntries(levels.map((l) => [l.key, l.text ?? l.price]));
    let found = null, fault = null;
    try { found = await get(ofSeries("first", series, prices)); } catch (error) { fault = messageOf(error); }
    if (turn !== state.turn) return; // a line has moved on
    told.removeAttribute("aria-busy");
    if (state.chosen && host.isConnected && levels.every((l) => l.text === null)) onchosen(prices);
    const row = found?.first.at(-1);
    if (found && !row) { state.shown = false; fields.hidden = true; fault = found.note; place(); } // a model of an older format
    state.first = row ? firstWords(row, state.issued) : null;
    told.replaceChildren(...(row ? [state.first.sentence] : fault ? sentence(fault) : []));
    told.classList.toggle("problem", !row);
    label();
  }

  function label() {
    for (const made of levels) made.label.textContent = state.first ? `${made.name} first ${state.first[made.key]}` : made.name;
  }

  // Lines, labels and handles where the price axis has their prices; outside of it, at its edge with an arrow.
  function place() {
    if (!host._fullLayout?.yaxis) return;
    const { xaxis, yaxis } = host._fullLayout;
    const highest = Math.max(target.price, stop.price);
    for (const made of levels) {
      if (!made.line.isConnected) host.append(made.line, made.label, made.handle);
      for (const part of [made.line, made.label, made.handle]) part.hidden = !state.shown;
      if (!state.shown) continue;
      const y = yaxis.c2p(made.price), inside = Math.max(0, Math.min(yaxis._length, y));
      const top = Math.round(yaxis._offset + inside);
      made.line.hidden = made.label.hidden = y !== inside;
      Object.assign(made.line.style, { left: `${xaxis._offset}px`, top: `${top}px`, width: `${xaxis._length}px` });
      Object.assign(made.label.style, { left: `${xaxis._offset + 2}px`, top: `${top}px` });
      made.label.classList.toggle("below", made.price === highest); // where it stays in the plot
      made.handle.textContent = `${y < inside ? "↑ " : y > inside ? "↓ " : ""}${state.format(made.price)}`;
      const edge = xaxis._offset + xaxis._length;
      Object.assign(made.handle.style, { left: `${Math.min(edge, host.clientWidth - made.handle.offsetWidth)}px`, top: `${top}px` });
    }
  }

  const trace = () => {
    const near = !state.shown ? [] : levels.filter((l) => Math.abs(l.price - state.last) <= FIT * Math.max(...state.stops.map((s) => Math.abs(s.price - state.last))));
    return { x: near.map(() => state.by), y: near.map((l) => l.price) };
  };

  return { box, load, place, trace };
}
