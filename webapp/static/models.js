// The leaderboard, sorted by any column, and two models side by side.

import { ask, get, messageOf, published } from "./api.js";
import { card, downloads, h, marked, offer, problem, select, sentence } from "./dom.js";
import { asOf, dayAndTime, interval, known, number, percent, seconds } from "./format.js";
import { figure, free, theme } from "./plot.js";
import { sideBySide } from "./compare.js";
import { table, turned } from "./table.js";
import { atWork, CHANCES, MARKETS, RATIO, SIMULATED, simulatedChip, verdictChip } from "./words.js";

export async function open(root, { options }, remember) {
  const asked = { market: "", timeframe: "", sort: "", down: "", ...options };
  const toolbar = h("div", { class: "toolbar" });
  const title = h("h1"), notices = h("div"), list = h("div"), links = h("div");
  let board = null, markets = [], first = null;
  const drawn = figure(() => board?.rows.length ? ask("/api/figures/board", { market: board.market, timeframe: shownTimeframe(), theme: theme() }) : null);
  const coins = figure(() => board?.rows.length ? ask("/api/figures/coins", { market: board.market, timeframe: shownTimeframe(), theme: theme() }) : null);
  const ofTimeframe = h("h3", {});
  const pair = sideBySide(asked, keep);

  // False: another market was picked meanwhile.
  async function load() {
    markets = (await get("/api/overview")).markets.map((m) => m.market);
    asked.market ||= markets[0] || "spot";
    const { market } = asked, answer = await get(ask("/api/leaderboard", { market }));
    // Without a finished run: one that has begun, whose models are not judged yet.
    const begun = answer.rows.length || published ? null : atWork((await get("/api/runs")).runs).find((r) => r.kind === "flow" && r.market === market);
    if (market !== asked.market) return false;
    [board, first] = [answer, begun];
    return true;
  }

  function timeframes() {
    return [...new Set(board.rows.map((r) => r.timeframe))].sort((a, b) => seconds(a) - seconds(b));
  }

  // Figures are of one timeframe: of the asked one, else of the longest, which most series have.
  function shownTimeframe() {
    return asked.timeframe || timeframes().at(-1);
  }

  function keep(changes = {}) {
    Object.assign(asked, changes);
    remember(asked);
  }

  function sortBy(key) {
    const next = turned(sort(), key);
    keep({ sort: next.key, down: next.up ? "" : "1" });
    show();
    list.querySelector(`[data-key="${key}"]`).focus();
  }

  const sort = () => (asked.sort ? { key: asked.sort, up: !asked.down } : { key: "ratio", up: true });

  function show() {
    title.replaceChildren("Models ", simulatedChip(board.market) ?? "");
    const rows = board.rows.filter((r) => !asked.timeframe || r.timeframe === asked.timeframe);
    list.replaceChildren(rows.length ? table({ caption: `Architectures against the random walk${board.market === "sim" ? ", simulated market" : ""}`,
      columns: COLUMNS, rows, sort: sort(), onsort: sortBy, cards: true }) : "");
    offer(toolbar,
      ...(markets.length > 1 ? [select("Market", markets.map((m) => [m, MARKETS[m]]), asked.market, (m) => change({ market: m, timeframe: "" }))] : []),
      select("Candles", [["", "all"], ...timeframes().map((t) => [t, t])], asked.timeframe, (t) => change({ timeframe: t })),
      phoneSort());
    notices.replaceChildren(...[board.market === "sim" && h("p", { class: "notice" }, h("b", {}, "Simulated market. "), SIMULATED),
      board.rows.length > 0 && board.note && h("p", { class: "notice" }, sentence(board.note)),
      h("p", { class: "finding" }, first && !board.verdict ? begun() : board.verdict ? ["Of the champions, the models that serve now: ", marked(board.verdict)] : sentence(board.note || "no model of this market has been judged yet; `cpb train-all` trains and judges them"))].filter(Boolean));
    links.replaceChildren(downloads(ask("/api/leaderboard", { market: board.market, timeframe: asked.timeframe }), "the leaderboard", { csv: true }));
  }

  function begun() {
    return [`A run has been active since ${dayAndTime(first.started_at)} UTC (${first.name}); its models appear here once it has ended. `,
      h("a", { href: "#/runs" }, "Its progress")];
  }

  // Cards have no headings to press.
  function phoneSort() {
    const made = select("Sort by", COLUMNS.map((c) => [c.key, c.label]), sort().key, (key) => { keep({ sort: key, down: "" }); show(); });
    made.classList.add("phone");
    return made;
  }

  async function change(changes) {
    keep(changes);
    let fault = null;
    if (changes.market !== undefined) {
      list.setAttribute("aria-busy", "true");
      try {
        if (!(await load())) return;
      } catch (error) {
        if (asked.market !== changes.market) return;
        keep({ market: board.market }); // which is still shown
        fault = problem(messageOf(error));
      }
      list.removeAttribute("aria-busy");
    }
    show();
    if (fault) notices.prepend(fault);
    await figures();
  }

  async function figures() {
    ofTimeframe.hidden = !board.rows.length;
    ofTimeframe.textContent = `On ${shownTimeframe()} candles: all coins together, and each`;
    await Promise.all([drawn.load(), coins.load(), published || pair.load(board.market, shownTimeframe(), board.rows)]);
  }

  await load();
  show();
  root.append(title, toolbar,
    card("Leaderboard", { note: `${RATIO}. A row is one run's; the figures of coins are of the newest model of each preset: of that which saw the newest candles.`, aside: links }, notices, list, ofTimeframe, drawn.frame, coins.frame), published ? "" : pair.section);
  return {
    title: "Models",
    shown: figures,
    async refresh(changed) {
      if (!changed.has("board")) return false;
      if (!(await load())) return false;
      show();
      await figures();
      return true;
    },
    close: () => free(root),
  };
}

const COLUMNS = [
  { key: "architecture", label: "architecture", text: true, value: (r) => r.architecture, cell: (r) => [r.architecture, " ", simulatedChip(r.market)] },
  { key: "timeframe", label: "candles", text: true, value: (r) => seconds(r.timeframe), cell: (r) => r.timeframe },
  { key: "ratio", label: "CRPS ratio", title: RATIO, value: (r) => r.crps_ratio, cell: (r) => (known(r.crps_ratio) ? r.crps_ratio.toFixed(4) : "–") },
  { key: "interval", label: "95 % interval", value: (r) => r.crps_ratio_high, cell: (r) => interval(r.crps_ratio_low, r.crps_ratio_high, 4) },
  { key: "verdict", label: "verdict", text: true, value: (r) => r.verdict, cell: (r) => verdictChip(r.verdict) },
  { key: "coins", label: "share < 1", title: "share of coins with a ratio below 1", value: (r) => r.better_share, cell: (r) => percent(r.better_share) },
  ...Object.entries(CHANCES).map(([name, of]) => ({ key: name, label: name, title: `Brier score of ${of} over the random walk's`, value: (r) => r[`${name}_brier_ratio`], cell: (r) => number(r[`${name}_brier_ratio`], 4) })),
  { key: "mae", label: "MAE ratio", title: "absolute error of the median over the random walk's", value: (r) => r.mae_ratio, cell: (r) => number(r.mae_ratio, 4) },
  { key: "direction", label: "direction", title: "share of moves whose sign the median had; 50 % is a coin", value: (r) => r.directional_accuracy, cell: (r) => percent(r.directional_accuracy, 1) },
  { key: "inside", label: "in 80 %", title: "share of closes inside the 80 % range", value: (r) => r.coverage_80, cell: (r) => percent(r.coverage_80, 1) },
  { key: "preset", label: "preset", text: true, value: (r) => r.preset, cell: (r) => r.preset || "–" },
  { key: "on", label: "coins", text: true, title: "by name; from four on, their number", value: (r) => String(r.coins ?? ""), cell: (r) => [String(r.coins ?? "–"), r.failed ? ` (${r.failed} failed)` : ""] },
  { key: "asof", label: "up to", title: "no candle after this was seen", text: true, value: (r) => r.as_of, cell: (r) => asOf(r.as_of) },
  { key: "run", label: "run", text: true, title: "cpb leaderboard --run takes it", value: (r) => r.flow_run, cell: (r) => (r.flow_run ? h("code", {}, r.flow_run.slice(0, 8)) : "–") },
];
