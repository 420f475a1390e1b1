// Active trainings with their progress, and the newest runs.

import { get } from "./api.js";
import { card, downloads, h, marked, sentence } from "./dom.js";
import { asOf, count, dayAndTime, duration, known, number } from "./format.js";
import { table } from "./table.js";
import { atWork, marketChip } from "./words.js";

export async function open(root) {
  const now = h("div"), list = h("div");

  async function load() {
    const found = await get("/api/runs");
    now.replaceChildren(...(found.trainings.length ? found.trainings.map(training) : [h("p", { class: "note" }, noTraining(found))]));
    list.replaceChildren(...(found.runs.length && found.note ? [h("p", { class: "notice" }, sentence(found.note))] : []),
      found.runs.length ? table({ caption: "The newest runs", columns: COLUMNS, rows: found.runs, cards: true })
      : h("p", { class: "note" }, sentence(found.note || "no run is stored yet; `cpb train-all` makes one")));
  }

  await load();
  root.append(h("h1", {}, "Runs"), card("Active trainings", {}, now), card("Newest runs", { note: marked("`cpb ui` shows each in MLflow."), aside: downloads("/api/runs", "the runs") }, list));
  return {
    title: "Runs",
    async refresh(changed) {
      if (!changed.has("runs")) return false;
      await load();
      return true;
    },
  };
}

// An active run without a training fetches candles, judges or forecasts.
function noTraining({ runs, active }) {
  const now = atWork(runs);
  if (!now.length && active) return "No fleet is being trained on this machine now; a run is active before or after training, such as a backtest, which is not among the runs below.";
  if (!now.length) return "No training is active on this machine.";
  return `No fleet is being trained on this machine now; ${count(now.length, "run")} ${now.length === 1 ? "is" : "are"} active before or after training `
    + `(fetching candles, judging, forecasting), or on another machine: ${now.map((r) => r.name).join("; ")}.`;
}

function training(t) {
  const where = t.symbols.length > 3 ? count(t.symbols.length, "coin") : t.symbols.join(", ");
  const name = `${t.architecture} · ${where} · ${t.timeframes.join(", ")} · ${t.preset}`;
  const share = known(t.epoch) && t.epochs ? t.epoch / t.epochs : null;
  const facts = [known(t.epoch) ? `epoch ${t.epoch} of at most ${t.epochs}` : "no epoch has ended yet", known(t.train_loss) && `training loss ${t.train_loss.toFixed(4)}`,
    known(t.val_loss) && `validation loss ${t.val_loss.toFixed(4)}`, known(t.windows_per_s) && `${number(t.windows_per_s)} windows/s`,
    known(t.eta_seconds) && `about ${duration(t.eta_seconds)} of training left`, `on ${t.device}`, `since ${dayAndTime(t.since)}`].filter(Boolean);
  return h("div", { class: "training" }, h("h3", {}, name, " ", marketChip(t.market)),
    h("progress", { max: "1", value: share === null ? null : share, "aria-label": `progress of ${name}` }), h("p", { class: "note" }, facts.join(" · ")));
}

const COLUMNS = [
  { key: "name", label: "run", text: true, kind: () => "wide", cell: (r) => [r.name, " ", marketChip(r.market)] },
  { key: "status", label: "state", text: true, cell: (r) => r.outcome || r.status.toLowerCase() },
  { key: "start", label: "started (UTC)", text: true, cell: (r) => dayAndTime(r.started_at) },
  { key: "took", label: "took", cell: (r) => (r.ended_at ? duration((Date.parse(r.ended_at) - Date.parse(r.started_at)) / 1000) : "–") },
  { key: "what", label: "trained", text: true, kind: () => "wide", cell: (r) => [r.architectures, r.coins, r.timeframes].map((names) => names.join(", ")).filter(Boolean).join(" · ") || "–" },
  { key: "preset", label: "preset", text: true, cell: (r) => r.preset || "–" },
  { key: "asof", label: "candles up to", text: true, cell: (r) => asOf(r.as_of) },
  { key: "id", label: "run id", text: true, cell: (r) => h("code", {}, r.run_id.slice(0, 8)) },
];
