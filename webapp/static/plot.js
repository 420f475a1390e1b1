// Figures of the service, drawn by plotly. Its 4.8 MB are asked for with the first figure, after the first paint.

import { AWAY, PageError, address, get, messageOf } from "./api.js";
import { h, loading, sentence } from "./dom.js";

const CONFIG = { displayModeBar: false, responsive: true, displaylogo: false };
let library = null;

export function plotly() {
  library ||= new Promise((resolve, reject) => {
    const failed = () => { library = null; reject(new PageError(AWAY)); };
    document.head.append(h("script", { src: address("/plotly/plotly.min.js"), onload: () => resolve(window.Plotly), onerror: failed }));
  });
  return library;
}

// Draws in `host`, whose text alternative is the figure's own.
export async function draw(host, figure, config = {}) {
  const Plotly = await plotly();
  host.setAttribute("aria-label", figure.layout.meta?.alt || "chart");
  await Plotly.react(host, figure.data, figure.layout, { ...CONFIG, ...config });
  return Plotly;
}

// A figure that follows the theme. `path()` is requested again at each `load`; null: there is nothing to draw.
export function figure(path, { min = "16rem" } = {}) {
  const host = h("div", { class: "plot", role: "img", "aria-label": "chart" });
  host.style.minHeight = min;
  const fault = h("p", { class: "note", role: "status", hidden: true });
  const note = h("figcaption", { class: "note" });
  const wait = loading();
  const frame = h("figure", { "aria-busy": "true" }, wait, host, note, fault);
  let turn = 0;

  async function load() {
    window.addEventListener("cpb-theme", again); // not before it is on the page, and once, however often it is said
    const asked = path(), mine = (turn += 1);
    const isNewest = () => mine === turn && asked === path();
    frame.hidden = !asked;
    if (!asked) { frame.removeAttribute("aria-busy"); return; }
    frame.setAttribute("aria-busy", "true");
    try {
      const found = await get(asked);
      if (!isNewest()) return; // something else was chosen meanwhile
      await draw(host, found);
      if (found.layout.height) host.style.minHeight = ""; // which kept the place of a figure that is lower
      note.textContent = found.layout.meta?.note || "";
      host.hidden = false;
      fault.hidden = true;
    } catch (error) {
      if (!isNewest()) return;
      host.hidden = true;
      fault.replaceChildren(...sentence(messageOf(error)));
      fault.hidden = false;
    }
    wait.hidden = true;
    frame.removeAttribute("aria-busy");
  }

  const again = () => { if (host.isConnected) load(); else window.removeEventListener("cpb-theme", again); };
  return { frame, load };
}

export function theme() {
  return window.cpbTheme.resolved();
}

export function free(root) {
  for (const host of root.querySelectorAll(".js-plotly-plot")) window.Plotly.purge(host);
}

// Paper is narrower than most windows, and white.
const PAPER_PX = 680;
function allPlots(update) {
  for (const host of document.querySelectorAll(".js-plotly-plot")) window.Plotly.relayout(host, update);
}
window.addEventListener("beforeprint", () => allPlots({ width: PAPER_PX, autosize: false }));
window.addEventListener("afterprint", () => allPlots({ width: null, autosize: true }));
