// The price chart: 500 candles at first and more at the left edge; pan, zoom and crosshair by mouse, fingers and keys.

import { get, messageOf, ofSeries, published } from "./api.js";
import { crosshair } from "./crosshair.js";
import { h, loading, sentence } from "./dom.js";
import { seconds } from "./format.js";
import { targetAndStop } from "./lines.js";
import { draw, theme } from "./plot.js";
import { pointers } from "./pointers.js";
import { touchChances } from "./touch.js";

const FIRST = 500, MORE = 1000, MOST = published ? FIRST : 5000; // candles; the service gives 5,000 at most
const NEAR = 0.15; // of the shown width from the oldest loaded candle: more are asked for
const CLEAR = "rgba(0, 0, 0, 0)"; // lines are seen through the plot
const AXES_PX = 80; // what the axes take of the chart's width, before it is drawn

// `asked` and `onchosen`: the prices of target and stop, at first and as they are chosen.
export function priceChart(series, readout, { asked, onchosen }) {
  const host = h("div", { id: "chart", class: "plot price", role: "application", tabindex: "0", "aria-describedby": "chart-keys" });
  const wait = host.appendChild(loading());
  host.setAttribute("aria-busy", "true");
  const chances = touchChances(series);
  const cross = crosshair(host, readout, chances);
  const lines = targetAndStop(series, host, { asked, onchosen, onleft: fitLines });
  const state = { limit: FIRST, forecast: { steps: [], last_close: null }, issuedAt: null, until: null, range: null, width: null, x: [], asking: false, bound: false, load: 0, loading: null, held: null };
  const candle = 1000 * seconds(series.timeframe);

  // Resolves once what was asked for last is drawn.
  function load() {
    return (state.loading = loadNewest());
  }

  async function loadNewest() {
    const mine = (state.load += 1);
    const path = ofSeries("figures/forecast", series, { limit: state.limit, until: state.until, issued_at: state.issuedAt, theme: theme() });
    const figure = await get(path).catch((error) => { if (mine === state.load) throw error; });
    await state.held;
    if (mine !== state.load) { // another was asked for meanwhile
      await state.loading;
      return;
    }
    const { layout } = figure;
    const candles = figure.data.find((trace) => trace.type === "candlestick");
    state.x = candles ? candles.x.map(Date.parse) : [];
    state.first = firstView(layout.xaxis.range.map(instant));
    for (const trace of figure.data) trace.hoverinfo = "skip"; // the crosshair reads the values out
    Object.assign(layout, { hovermode: false, dragmode: "pan", uirevision: "kept", paper_bgcolor: CLEAR, plot_bgcolor: CLEAR });
    Object.assign(layout.yaxis, { fixedrange: true, showspikes: false });
    layout.xaxis.showspikes = false;
    if (state.width) { state.range = around(Date.parse(state.issuedAt), state.first, state.width); state.width = null; }
    const range = state.range || state.first;
    layout.xaxis.range = range.map(iso);
    state.plain = { shapes: layout.shapes, annotations: layout.annotations };
    fit([...figure.data, chances.trace(), lines.trace()], layout, range);
    mark(layout, range, layout.yaxis.range);
    await draw(host, figure, { scrollZoom: true, doubleClick: false });
    host.setAttribute("aria-label", `${layout.meta?.alt || "Chart."} ${chances.told()} Use the arrow keys to pan.`);
    if (!state.bound) bind();
    cross.set(figure, state.forecast);
    lines.place();
  }

  // A narrow chart begins with as many candles as can be told apart, where the forecast is among them. The labels of
  // the marks have their room at the right.
  function firstView([from, to]) {
    const narrow = Math.max(24, host.clientWidth / 8) * candle;
    const issued = Date.parse(state.forecast.issued_at);
    const start = issued < to - narrow ? from : Math.max(from, to - narrow);
    const last = Math.min(to, Math.max(state.x.at(-1) ?? 0, ...state.forecast.steps.slice(-1).map((step) => Date.parse(step.target_time))));
    const { width } = size();
    const shift = Math.max(0, (to - start) * chances.room(width) / width - (to - last));
    return [start + shift, to + shift];
  }

  function size() {
    const { xaxis, yaxis } = host._fullLayout || {};
    return { width: xaxis?._length || host.clientWidth - AXES_PX, height: yaxis?._length || host.clientHeight * 0.7 };
  }

  function mark(update, range, prices) {
    const { width, height } = size();
    Object.assign(update, chances.marks(state.plain, range, prices, width, height, state.x.at(-1) ?? 0));
  }

  function bind() {
    state.bound = true;
    host.on("plotly_relayout", (event) => {
      if (event["xaxis.range[0]"] !== undefined) moved([instant(event["xaxis.range[0]"]), instant(event["xaxis.range[1]"])]);
    });
    host.on("plotly_relayouting", (event) => {
      if (event["xaxis.range[0]"] !== undefined) state.range = [instant(event["xaxis.range[0]"]), instant(event["xaxis.range[1]"])];
      cross.hide();
    });
    host.on("plotly_afterplot", () => { cross.hide(); lines.place(); }); // the price axis may have moved under it
    host.on("plotly_doubleclick", home);
    pointers(host, { ...cross, grip });
  }

  // After each move: prices fill the height again, and candles follow where the edge comes near.
  async function moved(range) {
    state.range = range;
    await fitPrices(range);
    const width = range[1] - range[0];
    const wantsOlder = state.x.length >= state.limit && state.limit < MOST && range[0] < state.x[0] + NEAR * width;
    const wantsNewer = state.until && range[1] > state.x.at(-1) - NEAR * width && Date.parse(state.until) < Date.now();
    if ((!wantsOlder && !wantsNewer) || state.asking) return;
    state.asking = true;
    const { forecast, limit, until } = state;
    if (wantsOlder) state.limit = Math.min(MOST, state.limit + MORE);
    if (wantsNewer) { state.until = iso(Date.parse(state.until) + FIRST * candle); state.limit = Math.min(MOST, state.limit + FIRST); }
    try {
      await load();
    } catch (error) {
      if (state.forecast === forecast) Object.assign(state, { limit, until }); // the next move asks again
      readout.replaceChildren(...sentence(messageOf(error)));
    } finally {
      state.asking = false;
    }
  }

  async function fitPrices(range) {
    const update = {};
    fit([...host.data, chances.trace(), lines.trace()], update, range, (axis, value) => { update[`${axis}.range`] = value; });
    mark(update, range, update["yaxis.range"] || host._fullLayout.yaxis.range);
    await window.Plotly.relayout(host, update);
    lines.place();
  }

  function fitLines() {
    if (state.bound) fitPrices(now());
  }

  function show(range) {
    const past = state.x.length ? state.x[0] - (range[1] - range[0]) / 2 : -Infinity;
    const shift = Math.max(0, past - range[0]); // at most half a view before the oldest candle
    return window.Plotly.relayout(host, { "xaxis.range[0]": iso(range[0] + shift), "xaxis.range[1]": iso(range[1] + shift) });
  }

  const now = () => state.range || state.first;
  const pan = (share) => { const [a, b] = now(); show([a + share * (b - a), b + share * (b - a)]); };
  const zoom = (factor) => {
    const [a, b] = now();
    const width = Math.max(8 * candle, Math.min((b - a) * factor, MOST * candle));
    show([b - width, b]);
  };
  // What two fingers hold: the time between them stays there, while they move and come apart.
  function grip() {
    const [a, b] = now(), { left } = host.getBoundingClientRect();
    const { _offset: offset, _length: length } = host._fullLayout.xaxis;
    let asked = null, drawing = false;
    return async (factor, from, to) => {
      const width = Math.max(8 * candle, Math.min((b - a) / factor, MOST * candle));
      const share = (x) => (x - left - offset) / length;
      const start = a + share(from) * (b - a) - share(to) * width;
      asked = [start, start + width];
      if (drawing) return;
      drawing = true;
      while (asked) { const next = asked; asked = null; await show(next); }
      drawing = false;
    };
  }
  const home = () => show(state.first);
  const oldest = () => { const [a, b] = now(); if (state.x.length) show([state.x[0], state.x[0] + b - a]); };

  const KEYS = {
    ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1 / 0.7),
    Home: oldest, End: home, 0: home, ",": () => cross.step(-1), ".": () => cross.step(1),
    ArrowUp: () => cross.lift(1), ArrowDown: () => cross.lift(-1),
  };
  host.addEventListener("keydown", (event) => {
    const action = KEYS[event.key];
    if (!action || event.ctrlKey || event.metaKey || event.altKey || !state.bound) return;
    event.preventDefault();
    event.stopPropagation();
    action();
  });

  // While the mouse holds the chart nothing is drawn anew: plotly would lose the drag.
  host.addEventListener("mousedown", () => {
    const heard = new AbortController();
    state.held = new Promise((release) => {
      const end = ({ type, buttons }) => {
        if (type === "mousemove" && buttons) return; // without: it was let go outside of the window
        heard.abort();
        setTimeout(release); // after plotly's last move
      };
      for (const type of ["mouseup", "mousemove"]) window.addEventListener(type, end, { capture: true, signal: heard.signal });
    });
  }, true);

  // Another forecast: the newest with what is newest, or an earlier one with what came after it.
  async function choose(forecast, isNewest) {
    const width = state.range && state.range[1] - state.range[0];
    Object.assign(state, { forecast, limit: FIRST, range: null, width: null, issuedAt: null, until: null });
    if (!isNewest) {
      state.issuedAt = forecast.issued_at;
      state.until = iso(Date.parse(forecast.issued_at) + (forecast.steps.length + 60) * candle);
      state.width = width;
    }
    host.setAttribute("aria-busy", "true");
    await drawn(forecast, isNewest);
  }

  // The same view of what is newer; a view that was not moved follows the newest candle.
  async function renew(forecast) {
    if (state.issuedAt) { // the newest is chosen already, but not drawn
      await choose(forecast, true);
      return;
    }
    state.forecast = forecast;
    await drawn(forecast, true);
  }

  async function drawn(forecast, isNewest) {
    try {
      await chances.load(forecast, isNewest);
      if (state.forecast !== forecast) return; // another was chosen meanwhile
      await lines.load(forecast, chances.found());
      if (state.forecast === forecast) await load();
    } finally {
      if (state.forecast === forecast) {
        wait.remove();
        host.removeAttribute("aria-busy");
      }
    }
  }

  return { host, lines: lines.box, load, renew, choose, pan, zoom, home, loaded: () => state.x.length };
}

// The lowest and highest price (y) and the volume (y2) inside a range of time.
function fit(traces, layout, [from, to], set = (axis, value) => { layout[axis].range = value; }) {
  const ends = { y: [Infinity, -Infinity], y2: [0, 0] };
  for (const trace of traces) {
    const end = ends[trace.yaxis || "y"];
    const [low, high] = trace.type === "candlestick" ? [trace.low, trace.high] : [trace.y, trace.y];
    trace.x.forEach((x, i) => {
      const at = Date.parse(x);
      if (!(at >= from && at <= to) || low[i] === null) return;
      end[0] = Math.min(end[0], low[i]);
      end[1] = Math.max(end[1], high[i]);
    });
  }
  const pad = (ends.y[1] - ends.y[0]) * 0.06 || Math.abs(ends.y[1]) * 0.01;
  if (ends.y[0] <= ends.y[1]) set("yaxis", [ends.y[0] - pad, ends.y[1] + pad]);
  if (ends.y2[1] > 0) set("yaxis2", [0, ends.y2[1] * 1.05]);
}

// A view of this width, with an instant at the same share of it as in another view.
function around(instant_, [from, to], width) {
  const start = instant_ - width * (instant_ - from) / (to - from);
  return [start, start + width];
}

// plotly answers "2025-06-01 12:00:00.5" in UTC, without saying so.
function instant(text) {
  return typeof text === "number" ? text : Date.parse(/Z$/.test(text) ? text : `${text.replace(" ", "T")}${text.includes(":") ? "" : "T00:00"}Z`);
}

function iso(time) {
  return new Date(time).toISOString();
}
