// Asks every ten seconds what has changed, of a published page every five minutes; not in a hidden tab, and at once when it is shown again.

import { get, published } from "./api.js";

const PERIOD_MS = published ? 300_000 : 10_000;
const ALL_MS = 300_000; // ages and staleness change without a write

export function watch({ onchange, onfault }) {
  let known = null, asking = false, newest = Date.now();

  async function look() {
    if (document.hidden || asking) return;
    asking = true;
    try {
      const now = await get("/api/changes");
      onfault(null);
      const due = Date.now() - newest > ALL_MS;
      const changed = known ? Object.keys(now).filter((part) => due || JSON.stringify(now[part]) !== JSON.stringify(known[part])) : [];
      known = now;
      if (changed.length) {
        newest = Date.now();
        await onchange(new Set(changed));
      }
    } catch (error) {
      onfault(error);
    } finally {
      asking = false;
    }
  }

  setInterval(look, PERIOD_MS);
  document.addEventListener("visibilitychange", look);
  look();
}
