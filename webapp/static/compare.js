// Two models side by side: by coin as a figure, and on one series figure by figure.

import { ask, maybe, get, ofSeries } from "./api.js";
import { card, downloads, fill, h, loading, offer, select } from "./dom.js";
import { asOf, dayAndTime, known, percent } from "./format.js";
import { figure, theme } from "./plot.js";
import { table } from "./table.js";
import { CHANCES, versionOf } from "./words.js";

// What is better: a lower figure, a higher one, or the one nearer to what it promises.
const ratio = (v) => v.toFixed(4), share = (v) => percent(v, 1);
const FIGURES = [
  ["test_crps_ratio", "CRPS ratio", (v) => v, ratio], ["test_mae_ratio", "MAE ratio", (v) => v, ratio], ["test_directional_accuracy", "direction", (v) => -v, share],
  ...Object.keys(CHANCES).map((name) => [`test_${name}_brier_ratio`, `${name} ratio`, (v) => v, ratio]),
  ...[50, 80, 90].map((band) => [`test_coverage_${band}`, `inside ${band} %`, (v) => Math.abs(v - band / 100), share]),
];

// `asked.a`, `asked.b`, `asked.coin`: what is compared, kept in the address by `keep`.
export function sideBySide(asked, keep) {
  const choices = h("div", { class: "toolbar" }), list = h("div", {}, loading()), links = h("div");
  let where = null, ready = false, models = new Map(), turn = 0;
  const chart = figure(() => (ready ? ask("/api/figures/compare", { ...where, models: `${asked.a},${asked.b}`, theme: theme() }) : null));
  const runs = [null, null]; // of the two models on the chosen series
  const losses = runs.map((_, i) => figure(() => (runs[i] ? ask(`/api/figures/losses/${runs[i]}`, { theme: theme() }) : null)));
  const section = card("Two models side by side", { id: "compare", aside: links }, choices, chart.frame, list,
    h("div", { class: "pair" }, losses.map((one) => one.frame)));

  // Each step is left out where another choice has begun meanwhile.
  async function load(...of) {
    const mine = (turn += 1), isNewest = () => mine === turn;
    ready = false;
    for (const step of [() => fill(list, () => choose(isNewest, ...of)), chart.load, () => ready && fill(list, () => show(isNewest)), ...losses.map((one) => one.load)]) {
      if (isNewest()) await step();
    }
  }

  async function choose(isNewest, market, timeframe, rows) {
    where = { market, timeframe };
    models = named(rows.filter((r) => r.timeframe === timeframe));
    const names = [...models.keys()];
    section.hidden = names.length < 2;
    if (section.hidden) return;
    if (!names.includes(asked.a)) asked.a = names[0];
    if (!names.includes(asked.b) || asked.b === asked.a) asked.b = names.find((n) => n !== asked.a);
    const coins = (await get(ask("/api/overview", { market }))).rows.filter((r) => r.timeframe === timeframe).map((r) => r.symbol).sort();
    if (!isNewest()) return;
    if (!coins.includes(asked.coin)) asked.coin = coins[0];
    const pick = (name) => async (value) => { keep({ [name]: value }); await load(market, timeframe, rows); };
    offer(choices,
      select("First model", names.map((n) => [n, n]), asked.a, pick("a")), select("Second model", names.map((n) => [n, n]), asked.b, pick("b")),
      ...(coins.length ? [select("On", coins.map((c) => [c, `${c} ${timeframe}`]), asked.coin, pick("coin"))] : []));
    ready = true;
  }

  async function show(isNewest) {
    const series = asked.coin && { ...where, symbol: asked.coin };
    const pair = [asked.a, asked.b].map((name) => models.get(name));
    const found = series && await maybe(ofSeries("models", series));
    if (!isNewest()) return;
    const [a, b] = pair.map((model) => found?.models.find((m) => m.architecture === model?.architecture && presetOf(m) === model?.preset));
    links.replaceChildren(series ? downloads(ofSeries("models", series), "the models of this series") : "");
    runs.splice(0, 2, a?.run_id, b?.run_id);
    if (!a || !b) {
      list.replaceChildren(h("p", { class: "note" }, `${a ? asked.b : asked.a} has no judged model of ${asked.coin || "any series"} ${where.timeframe}.`));
      return;
    }
    const same = a.test_span !== null && a.test_span === b.test_span;
    const columns = [{ key: "what", label: same ? "on the same test span" : "each on its own test span", text: true, cell: (r) => r.label },
      { key: "a", label: asked.a, cell: (r) => r.a, kind: (r) => (r.best === 0 ? "best" : "") },
      { key: "b", label: asked.b, cell: (r) => r.b, kind: (r) => (r.best === 1 ? "best" : "") }];
    list.replaceChildren(table({ caption: `${asked.a} and ${asked.b} on ${asked.coin} ${where.timeframe}: ${same ? "✓ has the better figure, which may be due to chance; see the paired test"
      : "not judged on the same test span, so that their figures do not rank them"}`, columns, rows: rowsOf(a, b, same) }));
  }

  return { section, load };
}

// Models by their names: as `model_names` of tasks/figures/board.py has them, which the figures show.
function named(rows) {
  const several = (name) => new Set(rows.filter((r) => r.architecture === name).map(presetOf)).size > 1;
  return new Map(rows.map((r) => [several(r.architecture) ? `${r.architecture}/${presetOf(r)}` : r.architecture, { architecture: r.architecture, preset: presetOf(r) }]));
}

const presetOf = (one) => one.preset || "unknown";

// `same`: both were judged on one test span; only then is one of two figures the better one.
function rowsOf(a, b, same) {
  const figures = FIGURES.filter(([key]) => known(a.metrics[key]) || known(b.metrics[key])).map(([key, label, cost, shown]) => {
    const [x, y] = [a.metrics[key], b.metrics[key]];
    const best = same && known(x) && known(y) && cost(x) !== cost(y) ? Number(cost(x) > cost(y)) : null;
    const cell = (value, i) => (known(value) ? `${best === i ? "✓ " : ""}${shown(value)}` : "–");
    return { label, best, a: cell(x, 0), b: cell(y, 1) };
  });
  const span = (m) => (known(m.metrics.test_crps_ratio_low) ? `${m.metrics.test_crps_ratio_low.toFixed(4)} to ${m.metrics.test_crps_ratio_high.toFixed(4)}` : "–");
  const text = (label, of) => ({ label, best: null, a: of(a), b: of(b) });
  return [figures[0], text("95 % interval", span), ...figures.slice(1), text("serves as", (m) => (m.serves ? `${m.serves}, version ${versionOf(m.model_version)}` : "–")),
    text("preset", (m) => m.preset || "–"), text("test span", (m) => (m.test_span ? m.test_span.split("/").map((t) => t.slice(0, 10)).join(" to ") : "not known")), text("candles up to", (m) => asOf(m.as_of)), text("trained", (m) => dayAndTime(m.trained_at)),
    text("run", (m) => m.run_id.slice(0, 8))].filter(Boolean);
}
