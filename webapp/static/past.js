// The slider over earlier forecasts: each is laid over what came true.

import { button, h } from "./dom.js";
import { dayAndTime } from "./format.js";
import { kindOf, versionOf } from "./words.js";

const SETTLE_MS = 120; // while the slider is dragged, only the forecast where it rests is requested

// `onpick(issue, isNewest)` shows an issue of /api/forecasts, the newest last; `onmore(first)` returns those before it, or null.
export function pastForecasts(onpick, onmore) {
  const slider = h("input", { type: "range", id: "past", min: "0", max: "0", step: "1" });
  const told = h("output", { for: "past" });
  const older = button("‹ Earlier", () => go(at - 1), { "aria-keyshortcuts": "[" });
  const newer = button("Later ›", () => go(at + 1), { "aria-keyshortcuts": "]" });
  const newest = button("Newest", () => go(issues.length - 1), { "aria-keyshortcuts": "n" });
  const box = h("div", { class: "past", role: "group", "aria-label": "earlier forecasts" },
    older, h("label", { for: "past" }, "Forecast"), slider, newer, newest, told);
  let issues = [], at = 0, timer = 0, isAll = false, turn = 0, asking = null;

  function say() {
    const issue = issues[at];
    const text = `${at + 1} of ${issues.length}: issued ${dayAndTime(issue.issued_at)} UTC, version ${versionOf(issue.model_version)}, ${issue.role}, ${kindOf(issue.live)}`;
    told.textContent = text;
    slider.value = String(at);
    slider.setAttribute("aria-valuetext", text);
    older.disabled = at === 0 && isAll;
    newer.disabled = newest.disabled = at === issues.length - 1;
  }

  async function go(to) {
    const mine = (turn += 1);
    if (to < 0 && !isAll) {
      asking ||= more().finally(() => { asking = null; });
      to += await asking;
      if (mine !== turn) return; // another was chosen meanwhile
    }
    at = Math.max(0, Math.min(issues.length - 1, to));
    say();
    clearTimeout(timer);
    timer = setTimeout(() => onpick(issues[at], at === issues.length - 1), SETTLE_MS);
  }

  async function more() {
    const found = await onmore(issues[0]);
    if (!found) return 0;
    isAll = found.length === 0;
    issues = [...found, ...issues];
    at += found.length;
    slider.max = String(issues.length - 1);
    say();
    return found.length;
  }

  slider.addEventListener("input", () => go(Number(slider.value)));

  // New issues: the newest stays selected where it was, and so does an earlier issue.
  function set(found) {
    const shown = issues[at], followed = at === issues.length - 1;
    const before = shown ? issues.filter((issue) => found.length && issue.issued_at < found[0].issued_at) : [];
    issues = [...before, ...found]; // pages that were loaded before stay
    box.hidden = issues.length === 0;
    if (!issues.length) return false;
    slider.max = String(issues.length - 1);
    const kept = shown && !followed ? issues.findIndex((issue) => issue.issued_at === shown.issued_at) : -1;
    at = kept >= 0 ? kept : issues.length - 1;
    say();
    return kept < 0;
  }

  return { box, set, older: () => go(at - 1), newer: () => go(at + 1), newest: () => go(issues.length - 1), shown: () => issues[at] };
}
