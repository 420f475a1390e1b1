// Which version serves the series after each run, and why.

import { maybe, ofSeries } from "./api.js";
import { card, downloads, fill, h, loading, marked, sentence } from "./dom.js";
import { dayAndTime } from "./format.js";
import { figure, theme } from "./plot.js";
import { table } from "./table.js";

const NEWEST = 20;

export function decisionsCard(series) {
  const note = h("p", { class: "note" }, loading("span"));
  const list = h("div");
  let found = [];
  const chart = figure(() => (found.length > 1 ? ofSeries("figures/decisions", series, { theme: theme() }) : null));
  const section = card("The champion's decisions", { id: "decisions", aside: downloads(ofSeries("decisions", series), "the decisions", { csv: true }) }, note, chart.frame, list);

  async function load() {
    await fill(note, newest);
    await chart.load();
  }

  async function newest(isNewest) {
    const answer = await maybe(ofSeries("decisions", series));
    if (!isNewest()) return;
    found = answer ? answer.decisions : [];
    note.replaceChildren(...(found.length ? ["What each run decided about this series, newest first. ", ...(answer.note ? sentence(answer.note) : [])] : sentence(answer?.note || "no decision is stored for this series")));
    list.replaceChildren(found.length ? table({ caption: found.length > NEWEST ? `The newest ${NEWEST} of ${found.length} decisions` : "Decisions", columns: COLUMNS, rows: found.slice(0, NEWEST), cards: true }) : "");
  }

  return { section, load };
}

const COLUMNS = [
  { key: "at", label: "decided (UTC)", text: true, cell: (d) => dayAndTime(d.decided_at) },
  { key: "outcome", label: "outcome", text: true, cell: (d) => d.outcome },
  { key: "version", label: "champion after it", text: true, cell: (d) => (d.version_number ? `version ${d.version_number}` : "–") },
  { key: "rule", label: "rule", text: true, cell: (d) => d.rule },
  { key: "reason", label: "reason", text: true, kind: () => "wide", cell: (d) => (d.reason ? marked(d.reason) : "–") },
];
