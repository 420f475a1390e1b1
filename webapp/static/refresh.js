// Asks every ten seconds what has changed, of a published page every five minutes; not in a hidden tab, and at once when it is shown again.

import { get, published } from "./api.js";

const PERIOD_MS = published ? 300_000 : 10_000;
const ALL_MS = 300_000; // ages and staleness change without a write

// `onchange` gets the parts that have changed since it was last called: at first all, so that what is shown is never older
// than what later answers are compared with. The first time is awaited, in a hidden tab too.
export async function watch({ onchange, onfault }) {
  let known = {}, asking = false, newest = 0;

  async function look() {
    if (asking) return;
    asking = true;
    try {
      const now = await get("/api/changes");
      onfault(null);
      const due = Date.now() - newest > ALL_MS;
      const changed = Object.keys(now).filter((part) => due || now[part] !== known[part]);
      if (changed.length) {
        await onchange(new Set(changed));
        newest = Date.now();
      }
      known = now; // not before: what could not be loaded is asked for again
    } catch (error) {
      onfault(error);
    } finally {
      asking = false;
    }
  }

  const lookIfSeen = () => { if (!document.hidden) look(); };
  setInterval(lookIfSeen, PERIOD_MS);
  document.addEventListener("visibilitychange", lookIfSeen);
  await look();
}
