// The answers of a page that was published as files: a file for each question about what was stored (webapp/published.py),
// chances of prices computed from the tables in them, and what is out of date by the visitor's clock.

import { AWAY, PageError } from "./api.js";
import { arrayOf, chancesOf } from "./chances.js";
import { age } from "./format.js";

const STOPS = [0.25, 0.1, 0.05]; // of which the prices are marked, as webapp/one_series.py has them
const MIN_PRICE = 1e-12, MAX_PRICE = 1e12; // as schemas/forecasting.py has them
const OLD_MS = 36 * 3_600_000; // after a missed night the page says so
const UNTOLD = "The model's table of extremes does not know which of two prices is reached first: train it again.";

const LEVELS = Array.from({ length: 19 }, (_, i) => `q${String(5 * (i + 1)).padStart(2, "0")}`);
const STORED = new Set(["leaderboard", "forecast", "forecasts", "ledger", "decisions"]);

let made = null; // when the files were made that are kept here
const kept = new Map();

async function fetched(name, options) {
  let answer = null;
  try {
    answer = await fetch(new URL(`..${name}.json`, import.meta.url), options);
    if (answer.ok) return await answer.json();
  } catch {
    throw new PageError(AWAY);
  }
  throw new PageError("A file of this page is not there; ask who has published it", answer.status);
}

// A file, asked for once until the page is made again. What is returned is everybody's: it is never changed.
function read(name) {
  if (!kept.has(name)) {
    const reading = fetched(name, { cache: "no-cache" });
    kept.set(name, reading);
    reading.catch(() => kept.delete(name));
  }
  return kept.get(name);
}

export async function answer(path) {
  const { pathname, searchParams: asked } = new URL(path, import.meta.url);
  const [, , part, ...names] = pathname.split("/");
  if (part === "changes") return changes();
  if (part === "overview") return overview(asked.get("market"));
  if (part === "figures") return figure(pathname, names, asked);
  if (part in QUESTIONS) return chances(part, names.join("/"), asked);
  if (part === "forecasts" && asked.has("until")) return { forecasts: [] }; // the newest alone is here
  if (!STORED.has(part)) throw new PageError("This page was published without an answer to this; who runs cpb sees it with `cpb serve`");
  return read(pathname);
}

// One token for all parts: the page is made as a whole.
async function changes() {
  const about = await fetched("/page", { cache: "no-cache" });
  if (about.made !== made) kept.clear();
  made = about.made;
  say(about);
  return Object.fromEntries(["candles", "forecasts", "ledger", "board"].map((name) => [name, made]));
}

function say({ nightly }) {
  const isOld = Date.now() - Date.parse(made) > OLD_MS, place = document.getElementById("made");
  const when = `made ${made.slice(0, 10)} ${made.slice(11, 16)} UTC (${age(made) || "now"})`;
  place.textContent = `This page was ${when}${nightly ? ", refreshed by the night" : ""}${isOld ? "; nothing has refreshed it since, and prices and forecasts are of then" : ""}.`;
  place.classList.toggle("problem", isOld);
}

async function overview(market) {
  const found = await read("/api/overview");
  if (market && market !== found.market) throw new PageError(`This page shows the market ${found.market} alone`, 404);
  const rows = found.rows.map((row) => ({ ...row, stale: found.market !== "sim" && Date.parse(row.range_at) < Date.now() ? "all candles of its newest forecast have closed" : null }));
  return { ...found, rows, stale: "all candles of their newest forecasts have closed, and newer ones come when this page is made again" };
}

// A figure in the colours of a theme: as tasks/figures/themes.py fills them in.
async function figure(pathname, [chart, symbol], asked) {
  const [drawn, { themes, data_keys: dataKeys }] = await Promise.all([read(symbol ? pathname : `/api/figures/${chart}.${asked.get("timeframe")}`), read("/api/themes")]);
  const { roles, template } = themes[asked.get("theme") || "light"];
  const isData = (key, value) => dataKeys.includes(key) && (value === null || Array.isArray(value) || typeof value !== "object");
  const filled = (value) => {
    if (typeof value === "string") return roles[value] ?? value;
    if (Array.isArray(value)) return value.map(filled);
    if (!value || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, isData(key, inner) ? inner : filled(inner)]));
  };
  const { data, layout } = filled(drawn);
  return { data, layout: { template: structuredClone(template), ...layout } };
}

// Of each question: the prices that are asked about, and what a forecast says of them. Of closes a model without a
// table tells, too.
const QUESTIONS = {
  touch: {
    none: { touch: [], stops: [] },
    asked: (given) => (given.has("price") ? given.get("price").split(",").map((text) => priceOf(text, "price")) : []),
    told(of, prices) {
      const touch = prices.flatMap((price) => of.steps(of.chances.touch(price), { price, side: price < of.last ? "down" : "up" }));
      const stops = STOPS.flatMap((probability) => ["up", "down"].map((side) => ({ probability, side, price: of.chances.stop(probability, side)?.at(-1), by: of.by.at(-1) })));
      const far = stops.find(({ price }) => price === undefined);
      return far ? { ...this.none, note: `The stop on the side ${far.side} with the chance ${far.probability} lies too far from the close to be told` } : { touch, stops };
    },
  },
  above: {
    asked: (given) => [priceOf(given.get("price") ?? "", "price")],
    told: (of, [price]) => ({ above: of.steps(of.chances.above(price), { price }) }),
  },
  first: {
    none: { first: [] },
    asked: (given) => ["target", "stop"].map((option) => priceOf(given.get(option) ?? "", option)),
    told(of, [target, stop]) {
      if (!of.chances.first) return { ...this.none, note: `${of.name}: ${UNTOLD}` };
      const found = of.chances.first(target, stop);
      if (!found) {
        throw new PageError(`${of.name}: The target ${grouped(target)} and the stop ${grouped(stop)} do not lie on opposite sides of the last close, ${grouped(of.last)}: give one price above it and one below.`, 422);
      }
      const side = target > stop ? "long" : "short";
      return { first: found.map(([won, lost], i) => ({ target, stop, side, target_first: won, stop_first: lost, neither: Math.max(1 - won - lost, 0), by: of.by[i] })) };
    },
  },
};

async function chances(part, place, given) {
  const question = QUESTIONS[part], prices = question.asked(given);
  const [forecast, table] = await Promise.all([read(`/api/forecast/${place}`), read(`/api/extremes/${place}`)]);
  const { market, symbol, timeframe, issued_at, model_version, last_close } = forecast;
  const about = { market, symbol, timeframe, issued_at, model_version, last_close, note: null };
  if (table.note && question.none) return { ...about, ...question.none, note: table.note };
  const close = forecast.steps.map((step) => LEVELS.map((name) => step[name]));
  const by = forecast.steps.map((step) => step.target_time);
  return { ...about, ...question.told({
    by, last: last_close, name: `${market === "spot" ? "" : `${market} `}${symbol} ${timeframe}`,
    steps: (probabilities, rest) => probabilities.map((probability, i) => ({ ...rest, probability, by: by[i] })),
    chances: chancesOf({ distance: table.distance && arrayOf(table.distance), first: table.first && arrayOf(table.first) }, close, last_close),
  }, prices) };
}

// The sentences of the service, of schemas/forecasting.py.
function priceOf(text, option) {
  const value = text.trim() ? Number(text) : NaN;
  if (value >= MIN_PRICE && value <= MAX_PRICE) return value;
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
  throw new PageError(`${option} ${quote}${text.slice(0, 40)}${quote} is not one price: write a number without commas from 1e-12 to 1e12, as in 98000`, 422);
}

const grouped = (price) => price.toLocaleString("en-GB", { maximumSignificantDigits: 15 });
