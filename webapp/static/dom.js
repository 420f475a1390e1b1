// Elements as one expression; text is always text, never markup.

import { fileOf, messageOf } from "./api.js";

export function h(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "class") made.className = value;
    else if (name in made && typeof value !== "string") made[name] = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

export function select(label, options, value, onchange) {
  const id = `pick-${label.toLowerCase().replace(/[^a-z]+/g, "-")}`;
  const field = h("select", { id, onchange: () => onchange(field.value) },
    options.map(([key, text]) => h("option", { value: key }, text)));
  field.value = value;
  return h("span", { class: "field" }, h("label", { for: id }, label), " ", field);
}

// Other choices in a place: the one that has the focus keeps it, so that a key can go on choosing.
export function offer(place, ...children) {
  const focused = place.contains(document.activeElement) && document.activeElement.id;
  place.replaceChildren(...children);
  if (focused) place.querySelector(`#${focused}`)?.focus();
}

export function chip(text, kind = "", title = null) {
  return h("span", { class: `chip ${kind}`, title: title?.replaceAll("`", "") }, text);
}

export function button(text, onclick, attributes = {}) {
  return h("button", { type: "button", onclick, ...attributes }, text);
}

// Puts a command on the clipboard; where the browser has none for the page, its text is selected instead.
export function copyButton(text, code) {
  const made = button("Copy", async () => {
    try {
      await navigator.clipboard.writeText(text);
      made.textContent = "Copied";
      announce("Copied.");
    } catch {
      getSelection().selectAllChildren(code);
    }
  }, { class: "small", "aria-label": `Copy the command ${text}` });
  return made;
}

// What is shown, as a file: the same question to the API; `csv`: its list as a table, too.
export function downloads(path, what, { csv = false } = {}) {
  const json = fileOf(path);
  return json && h("p", { class: "downloads" },
    csv && h("a", { href: fileOf(path, "csv"), download: `cpb${path.split("?")[0].slice("/api".length).replaceAll("/", "-")}.csv`, "aria-label": `CSV of ${what}` }, "CSV"), " ",
    h("a", { href: json, target: "_blank", rel: "noopener", "aria-label": `JSON of ${what}, opens a new tab` }, "JSON"));
}

export function card(title, { id = null, note = null, aside = null, level = "h2" } = {}, ...content) {
  const name = id || title.toLowerCase().replace(/[^a-z]+/g, "-");
  return h("section", { class: "card", id: name, "aria-labelledby": `${name}-title` },
    h("div", { class: "headline" }, h(level, { id: `${name}-title` }, title), aside),
    note && h("p", { class: "note" }, note), content);
}

// Tells screen readers, without moving the focus.
export function announce(text) {
  document.getElementById("status").textContent = text;
}

// A sentence as it stands alone; the service's begin small and have no full stop.
export function sentence(text) {
  const whole = text[0].toUpperCase() + text.slice(1);
  return marked(/[.!?]$/.test(whole) ? whole : `${whole}.`);
}

// A command as it must be typed where `cpb serve` was started, for instance with `.venv/bin/cpb`.
export function command(text) {
  const program = document.documentElement.dataset.program || "cpb";
  return h("code", {}, text.replace(/(?<!\S)cpb(?!\S)/g, () => program));
}

// A sentence of the service: what stands between backticks is a command.
export function marked(text) {
  return text.split("`").map((part, i) => (i % 2 ? command(part) : part));
}

// What stands where something is on its way; screen readers are told, too.
export function loading(tag = "p") {
  return h(tag, { class: "note loading", role: "status" }, "Loading …");
}

export function problem(text) {
  return h("p", { class: "card problem", role: "alert" }, sentence(text));
}

const newest = new WeakMap(); // of each place, what was asked for last

// Loads what belongs into a place: it is busy until then; what goes wrong is said there. `load` gets a function that tells
// whether nothing was asked for since: an answer that comes after a newer question is not shown.
export async function fill(place, load) {
  const mine = {}, isNewest = () => newest.get(place) === mine;
  newest.set(place, mine);
  place.setAttribute("aria-busy", "true");
  try {
    await load(isNewest);
  } catch (error) {
    if (isNewest()) place.replaceChildren(h("span", { role: "status" }, sentence(messageOf(error))));
  } finally {
    if (isNewest()) place.removeAttribute("aria-busy");
  }
}
