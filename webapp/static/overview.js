// The overview: a row or a card for each series of a market, searched, filtered, sorted and pinned. What is asked is in
// the address; the view and the pins are remembered by the browser.

import { ask, get, messageOf } from "./api.js";
import { seriesCard } from "./card.js";
import { COLUMNS, ORDERS } from "./columns.js";
import { button, copyButton, downloads, h, marked, problem, select, sentence } from "./dom.js";
import { count, number, percent, seconds } from "./format.js";
import { keep, remembered } from "./remembered.js";
import { sorted, table } from "./table.js";
import { MARKETS, SIMULATED, kindOf, relation } from "./words.js";

const VERDICTS = ["better", "no different", "worse", "untested"];
const VIEW = "cpb.overview", PINS = "cpb.pins";

const idOf = ({ market, symbol, timeframe }) => `${market}/${symbol}/${timeframe}`;

export async function open(root, { options }, remember) {
  const asked = { q: "", timeframe: "", verdict: "", stale: "", sort: "symbol", turned: "", market: "", ...options };
  const shown = h("p", { class: "note", role: "status" });
  const list = h("div", { class: "series" });
  const notices = h("div");
  const links = h("div");
  const toolbar = h("div", { class: "toolbar", role: "search" });
  const search = h("input", { type: "search", id: "search", autocomplete: "off", spellcheck: "false", value: asked.q, oninput: () => change("q", search.value),
    onkeydown: (event) => { if (event.key === "Enter") list.querySelector("a")?.click(); } }); // opens the first that is found
  const pins = new Set(remembered(PINS, []));
  const isPinned = (row) => pins.has(idOf(row));
  let rows = [], found = null;

  // False: another market was picked meanwhile.
  async function load() {
    const { market } = asked, answer = await get(ask("/api/overview", { market }));
    if (market !== asked.market) return false;
    found = answer;
    asked.market = found.market;
    rows = found.rows;
    return true;
  }

  function change(name, value) {
    Object.assign(asked, { [name]: value });
    remember({ ...asked, sort: asked.sort === "symbol" ? "" : asked.sort, market: options.market || name === "market" ? asked.market : "" });
    show();
  }

  // A heading sorts as its column does at first; again, the other way round.
  function sortBy(key) {
    asked.turned = key === asked.sort && !asked.turned ? "1" : "";
    change("sort", key);
  }

  function controls() {
    const markets = found.markets.map((m) => m.market);
    const timeframes = timeframesOf(rows), focused = document.activeElement.id;
    const stale = h("input", { type: "checkbox", onchange: () => change("stale", stale.checked ? "1" : "") });
    stale.checked = Boolean(asked.stale);
    for (const other of [...toolbar.children]) if (!other.contains(search)) other.remove(); // whoever types there goes on
    toolbar.append(...(markets.length > 1 ? [select("Market", markets.map((m) => [m, MARKETS[m]]), asked.market, pick)] : []),
      select("Candles", [["", "all"], ...timeframes.map((t) => [t, t])], asked.timeframe, (v) => change("timeframe", v)),
      select("Verdict", [["", "all"], ...VERDICTS.map((v) => [v, v])], asked.verdict, (v) => change("verdict", v)),
      select("Sort by", ORDERS.map((o) => [o.key, o.order || o.label]), asked.sort, (v) => { asked.turned = ""; change("sort", v); }),
      h("label", { class: "check" }, stale, " only stale"), views());
    if (focused) toolbar.querySelector(`#${focused}`)?.focus();
  }

  function views() {
    const chosen = remembered(VIEW, "table");
    return h("span", { class: "sides", role: "group", "aria-label": "view" }, ["table", "cards"].map((name) => button(name, () => {
      keep(VIEW, name);
      controls();
      show();
      toolbar.querySelector(`[data-as="${name}"]`).focus();
    }, { "aria-pressed": String(chosen === name), "data-as": name })));
  }

  async function pick(market) {
    Object.assign(asked, { market, timeframe: "" });
    list.setAttribute("aria-busy", "true");
    let fault = null;
    try {
      if (!(await load())) return;
    } catch (error) {
      if (asked.market !== market) return;
      fault = problem(messageOf(error));
    }
    list.removeAttribute("aria-busy");
    asked.market = found.market; // after a fault the one before is still shown
    controls();
    change("market", asked.market);
    if (fault) notices.prepend(fault);
  }

  function pinButton(row) {
    const id = idOf(row), on = pins.has(id);
    return button(on ? "★" : "☆", () => {
      pins[on ? "delete" : "add"](id);
      keep(PINS, [...pins]);
      show();
    }, { class: "pin", "data-pin": id, "aria-pressed": String(on), "aria-label": `Pin ${row.symbol} ${row.timeframe}`, title: "pinned series come first" });
  }

  function series(kept) {
    const order = ORDERS.find((o) => o.key === asked.sort) || ORDERS[0];
    const sort = { key: order.key, up: order.up !== Boolean(asked.turned) };
    const ordered = sorted(kept, ORDERS, sort, isPinned);
    if (remembered(VIEW, "table") === "cards") return h("ul", { class: "grid" }, ordered.map((row) => seriesCard(row, pinButton(row))));
    const [coin, ...rest] = COLUMNS;
    const columns = [{ ...coin, cell: (row) => [pinButton(row), " ", coin.cell(row)] }, ...rest];
    return table({ caption: `Series of ${MARKETS[found.market]}`, columns, rows: ordered, sort, onsort: sortBy, first: isPinned });
  }

  function show() {
    const kept = rows.filter((r) => r.symbol.includes(asked.q.trim().toUpperCase())
      && (!asked.timeframe || r.timeframe === asked.timeframe)
      && (!asked.verdict || relation(r.verdict) === asked.verdict) && (!asked.stale || r.stale));
    const focused = list.contains(document.activeElement) ? placeOf(document.activeElement) : null;
    list.replaceChildren(rows.length && !kept.length ? nothingFound() : kept.length ? series(kept) : "");
    if (focused) list.querySelector(focused)?.focus();
    shown.textContent = `${kept.length} of ${count(rows.length, "series", "series")}${cameTrue(kept)}`;
    notices.replaceChildren(...notes(found));
    toolbar.hidden = shown.hidden = rows.length === 0;
    links.replaceChildren(...(rows.length ? [downloads(ask("/api/overview", { market: found.market }), "the overview", { csv: true })] : []));
  }

  function nothingFound() {
    const clear = () => { Object.assign(asked, { q: "", timeframe: "", verdict: "", stale: "" }); search.value = ""; controls(); change("q", ""); search.focus(); };
    return h("p", { class: "note" }, asked.q && !rows.some((r) => r.symbol.includes(asked.q.trim().toUpperCase())) ? `The coin ${asked.q.trim().toUpperCase()} is unknown: nothing of it is stored. `
      : "No series fits the search and the filters. ", button("Show all", clear));
  }

  toolbar.append(h("span", { class: "field" }, h("label", { for: "search" }, "Coin"), " ", search));
  await load();
  controls();
  show();
  root.append(h("h1", { class: "quiet" }, "Overview"), notices, toolbar, h("div", { class: "headline" }, shown, links), list);
  return {
    title: "Overview",
    keys: { "/": () => search.focus() },
    async refresh() {
      const before = JSON.stringify(rows), choices = choicesOf(found);
      await load();
      if (choicesOf(found) !== choices) controls(); // else a list that is open stays open
      show();
      return JSON.stringify(rows) !== before;
    },
  };
}

function timeframesOf(rows) {
  return [...new Set(rows.map((r) => r.timeframe))].sort((a, b) => seconds(a) - seconds(b));
}

function choicesOf({ rows, markets }) {
  return [...markets.map((m) => m.market), ...timeframesOf(rows)].join();
}

// What finds an element again after the list has been drawn anew.
function placeOf(element) {
  const name = ["data-pin", "data-key", "href"].find((attribute) => element.hasAttribute(attribute));
  return name ? `[${name}="${CSS.escape(element.getAttribute(name))}"]` : null;
}

// What came true of the last day, of the series that are shown; live forecasts and replays are never one figure.
function cameTrue(rows) {
  const sums = [true, false].map((live) => {
    const counted = rows.filter((r) => r.day_closes && r.day_live === live);
    const sum = (name) => counted.reduce((all, r) => all + r[name], 0);
    return counted.length ? `${number(sum("day_inside"))} of ${number(sum("day_closes"))} closes inside their 80 % range (${percent(sum("day_inside") / sum("day_closes"))}, ${kindOf(live)})` : "";
  }).filter(Boolean);
  return sums.length ? `; in the last stored day ${sums.join(" and ")}` : "";
}

function notes({ rows, market, markets, note, stale: advice }) {
  const made = [];
  if (market === "sim" && rows.length) made.push(h("p", { class: "card notice" }, h("b", {}, "Simulated market. "), SIMULATED));
  const stale = rows.filter((r) => r.stale);
  if (stale.length) made.push(h("p", { class: "card problem" }, `${stale.length} of ${count(rows.length, "series is", "series are")} stale; `, withCopy(advice)));
  if (note) made.push(h("p", { class: "card notice" }, sentence(note), rows.some((r) => r.issued_at) ? "" : " This page then fills by itself."));
  const simulated = markets.find((m) => m.market === "sim");
  if (market !== "sim" && simulated?.forecasts && !rows.some((r) => r.issued_at)) {
    made.push(h("p", { class: "card notice" }, "The forecasts that are stored are of the simulator's prices: ", h("a", { href: "#/?market=sim" }, "show the simulated market"), "."));
  }
  return made;
}

function withCopy(advice) {
  const parts = marked(advice), code = parts.find((part) => part.tagName === "CODE");
  return [parts, ". ", code && copyButton(code.textContent, code)];
}
