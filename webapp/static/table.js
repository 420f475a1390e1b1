// Tables that sort by their headings, and become cards on a phone. Roles are written out: `display: block` drops them.

import { h } from "./dom.js";

// columns: {key, label, cell(row) → text or nodes, value(row) → what it sorts by, text: left-aligned, title, desk: not on a phone}
// sort: {key, up}; onsort(key) makes a heading a button; first(row): whether it comes before all others.
export function table({ caption, columns, rows, sort = null, onsort = null, cards = false, rowClass = null, first = null }) {
  const head = h("tr", { role: "row" }, columns.map((column) => heading(column, sort, onsort)));
  const body = sorted(rows, columns, sort, first).map((row) => h("tr", { role: "row", class: rowClass ? rowClass(row) : null },
    columns.map((column, i) => cell(column, row, i === 0))));
  const made = h("table", { role: "table", class: cards ? "cards" : null },
    h("caption", {}, caption), h("thead", { role: "rowgroup" }, head), h("tbody", { role: "rowgroup" }, body));
  // A region that scrolls must be reachable by keyboard.
  return h("div", { class: "scroll", role: "region", "aria-label": caption, tabindex: "0" }, made);
}

function heading(column, sort, onsort) {
  const state = sort && sort.key === column.key ? (sort.up ? "ascending" : "descending") : null;
  const arrow = state ? (sort.up ? " ▲" : " ▼") : "";
  const inside = onsort && column.value
    ? h("button", { type: "button", class: "sort", "data-key": column.key, onclick: () => onsort(column.key) }, column.label, h("span", { "aria-hidden": "true" }, arrow))
    : column.label;
  return h("th", { role: "columnheader", scope: "col", "aria-sort": state, class: [column.text && "text", column.desk && "desk"].filter(Boolean).join(" ") || null, title: column.title }, inside);
}

function cell(column, row, first) {
  const content = column.cell(row);
  const kinds = [column.text && "text", column.desk && "desk", content === "–" && "none", column.kind && column.kind(row)];
  const attributes = { "data-label": column.label, class: kinds.filter(Boolean).join(" ") || null };
  return first ? h("th", { role: "rowheader", scope: "row", ...attributes }, content) : h("td", { role: "cell", ...attributes }, content);
}

// What is not known comes last, whichever way it is sorted.
export function sorted(rows, columns, sort, first = null) {
  const column = sort && columns.find((c) => c.key === sort.key);
  if (!column?.value) return rows;
  const unknown = (value) => value === null || value === undefined || Number.isNaN(value);
  return [...rows].sort((a, b) => {
    if (first && first(a) !== first(b)) return first(b) - first(a);
    const [x, y] = [column.value(a), column.value(b)];
    if (unknown(x) || unknown(y)) return unknown(x) - unknown(y);
    const order = typeof x === "string" ? x.localeCompare(y) : x - y;
    return sort.up ? order : -order;
  });
}

// The same heading again turns the order round.
export function turned(sort, key) {
  return { key, up: sort && sort.key === key ? !sort.up : true };
}
