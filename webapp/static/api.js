// Questions to the service. An answer that is no success is one sentence in `detail`.

// Where a path of the service is, wherever the page lies: below a name of its own, or below another page's.
export function address(path) {
  return new URL(`..${path}`, import.meta.url).href;
}

export async function get(path) {
  const answer = await fetch(address(path));
  const body = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(typeof body.detail === "string" ? body.detail : `${path} answered ${answer.status}`), { status: answer.status });
  return body;
}

// A path with its options; those that are null or "" are left out.
export function ask(path, options = {}) {
  const query = new URLSearchParams(Object.entries(options).filter(([, value]) => value !== null && value !== undefined && value !== ""));
  return query.size ? `${path}?${query}` : path;
}

export function ofSeries(part, { symbol, timeframe, market }, options = {}) {
  return ask(`/api/${part}/${encodeURIComponent(symbol)}/${encodeURIComponent(timeframe)}`, { market, ...options });
}

// What the page may not have: null instead of a sentence, where the question is refused with 404.
export async function maybe(path) {
  try {
    return await get(path);
  } catch (error) {
    if (error.status === 404) return null;
    throw error;
  }
}
