// Shortcuts, and the dialog that lists them. Single keys can be switched off, for those who talk to their browser.

import { published } from "./api.js";
import { h } from "./dom.js";

const STORED = "cpb.keys";
const dialog = document.getElementById("keys");
const theme = document.getElementById("theme");

const EVERYWHERE = {
  "?": ["this list", () => dialog.showModal()],
  1: ["overview", () => { location.hash = "#/"; }],
  2: ["models", () => { location.hash = "#/models"; }],
  3: ["runs", () => { location.hash = "#/runs"; }],
  t: ["next theme: auto, light, dark", () => {
    theme.selectedIndex = (theme.selectedIndex + 1) % theme.options.length;
    theme.dispatchEvent(new Event("change"));
  }],
};

if (published) delete EVERYWHERE[3];

const VIEWS = [
  ["Overview", { "/": "search for a coin" }],
  ...(published ? [] : [["A series", { "[": "the forecast before", "]": "the forecast after", n: "the newest forecast" }]]),
  ["The chart, when it has the focus", {
    "← →": "pan", "+ −": "zoom", "Home End": "the oldest loaded, the newest candle", ", .": "crosshair to the candle before, after", "↑ ↓": "crosshair to a higher, a lower price", 0: "reset the view" }],
  ["Target or stop, when its handle has the focus", { "↑ ↓": "a higher, a lower price", "PageUp PageDown": "ten steps at once" }],
];

function isOn() {
  try { return localStorage.getItem(STORED) !== "off"; } catch { return true; }
}

function rows(keys) {
  return Object.entries(keys).map(([key, what]) => h("tr", {}, h("th", { scope: "row" }, key.split(" ").map((k) => [h("kbd", {}, k), " "])), h("td", {}, what)));
}

function fill() {
  const box = h("input", { type: "checkbox", id: "keys-on", onchange: () => {
    try { localStorage.setItem(STORED, box.checked ? "on" : "off"); } catch { /* lasts as long as the page */ }
  } });
  box.checked = isOn();
  const everywhere = Object.fromEntries(Object.entries(EVERYWHERE).map(([key, [what]]) => [key, what]));
  dialog.replaceChildren(
    h("h2", { id: "keys-title" }, "Keyboard"),
    ...[["Everywhere", everywhere], ...VIEWS].map(([title, keys]) => h("table", {}, h("caption", {}, title), h("tbody", {}, rows(keys)))),
    h("p", {}, h("label", {}, box, " single-key shortcuts")),
    h("button", { type: "button", onclick: () => dialog.close() }, "Close"));
}

// `ofView` returns the shown view's own keys: {"/": action}.
export function listen(ofView) {
  fill();
  document.getElementById("help").addEventListener("click", () => dialog.showModal());
  document.addEventListener("keydown", (event) => {
    const typing = event.target.matches("input:not([type=range]):not([type=checkbox]), select, textarea");
    if (typing || event.ctrlKey || event.metaKey || event.altKey || dialog.open || !isOn()) return;
    const action = ofView()[event.key] || EVERYWHERE[event.key]?.[1];
    if (!action) return;
    event.preventDefault();
    action();
  });
}
