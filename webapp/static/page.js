// The address decides the view: #/, #/series/BTCUSDT/1h/spot, #/models, #/runs. State that is worth a link is in it.

import { fetched, messageOf, published } from "./api.js";
import { announce, h, loading, marked, problem } from "./dom.js";
import { listen } from "./keys.js";
import { watch } from "./refresh.js";

const VIEWS = ["overview", "series", "models", "runs"];
const PATIENCE_MS = 150; // the view before stays so long, then the page says that the next one is loading
const root = document.getElementById("view");
let shown = null; // {title, refresh, keys, shown, close}; null while one is on its way, and where there is none
let turn = 0, opening = null; // the view that was opened last, until it is shown

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // a % that begins no code
  }
}

function parse(hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?");
  const [view = "overview", ...parts] = path.split("/").filter(Boolean).map(decoded);
  const options = Object.fromEntries(new URLSearchParams(query));
  if (view === "series") return { view, symbol: parts[0], timeframe: parts[1], market: parts[2], options };
  if (VIEWS.includes(view)) return { view, options };
  // #BTCUSDT/1h/spot, as links were before there were views
  return { redirect: `#/series/${[view, ...parts].map(encodeURIComponent).join("/")}` };
}

function open() {
  const route = parse(location.hash);
  if (!route.redirect) return (opening = openView(route));
  location.replace(route.redirect);
  return opening;
}

async function openView(route) {
  const mine = (turn += 1);
  for (const link of document.querySelectorAll("[data-view]")) {
    if (link.dataset.view === route.view) link.setAttribute("aria-current", "page");
    else if (route.view === "series" && link.dataset.view === "overview") link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
  const next = h("div", { class: `view-${route.view}` });
  root.setAttribute("aria-busy", "true");
  const wait = setTimeout(() => { if (mine === turn) { leave(); root.replaceChildren(loading()); } }, PATIENCE_MS);
  try {
    const { open: build } = await fetched(import(`./${route.view}.js`));
    const made = await build(next, route, (options) => { if (mine === turn) remember(options); });
    if (mine !== turn) { // another view was opened meanwhile
      made.close?.();
      return;
    }
    leave();
    shown = made;
  } catch (error) {
    if (mine !== turn) return;
    leave();
    next.replaceChildren(h("h1", {}, "Nothing to show here"), problem(messageOf(error)));
  } finally {
    clearTimeout(wait);
  }
  root.removeAttribute("aria-busy");
  root.replaceChildren(next);
  document.title = `${shown?.title || "cpb"} · cpb forecasts`;
  Promise.resolve(shown?.shown?.()).catch((error) => next.prepend(problem(messageOf(error))));
  if (mine > 1) {
    root.focus({ preventScroll: true });
    window.scrollTo(0, 0);
  }
}

const isOpening = () => root.hasAttribute("aria-busy");

function leave() {
  shown?.close?.();
  shown = null;
}

// Keeps a view's state in its address without opening it again.
function remember(options) {
  const [path] = (location.hash || "#/").split("?");
  const query = new URLSearchParams(Object.entries(options).filter(([, value]) => value));
  history.replaceState(null, "", query.size ? `${path}?${query}` : path);
}

async function changed(parts) {
  if (!shown && !isOpening()) { // nothing could be shown before
    await open();
    return;
  }
  while (isOpening()) await opening; // it may have asked before the change
  if (await shown?.refresh(parts)) announce(`Updated: ${[...parts].join(", ")}.`);
}

function fault(error) {
  const known = document.getElementById("fault");
  if (!error) {
    known?.remove();
    if (known && !shown && !isOpening()) open();
  } else if (!known) {
    const text = `${messageOf(error)} This page asks again every ${published ? "5 minutes" : "10 seconds"}.`;
    root.before(h("p", { id: "fault", class: "card problem", role: "alert" }, marked(text)));
  }
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address belongs to the views
  root.focus();
});
const theme = document.getElementById("theme");
theme.value = window.cpbTheme.choice();
theme.addEventListener("change", () => window.cpbTheme.choose(theme.value));
window.addEventListener("hashchange", open);
listen(() => shown?.keys || {});
await watch({ onchange: changed, onfault: fault }); // which opens the view, unless the service does not answer
if (!turn) await open();
