// What the browser remembers of a reader's choices. Without its storage they last as long as the page.

const kept = new Map();

export function remembered(key, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(key)) ?? kept.get(key) ?? otherwise;
  } catch {
    return kept.get(key) ?? otherwise; // storage may be switched off, or hold what others wrote
  }
}

export function keep(key, value) {
  kept.set(key, value);
  try { localStorage.setItem(key, JSON.stringify(value)); } catch { /* as said above */ }
}
