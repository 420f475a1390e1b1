// Questions to the service. Whatever goes wrong with one is a sentence: what the browser says of it reaches no one.

// Whether the page was published as files: `published.js` then answers in the place of the service.
export const published = "published" in document.documentElement.dataset;

export const AWAY = window.cpbAway;
const TIMEOUT_MS = 60_000;
const FILES = /^\/api\/(overview|leaderboard|forecast|decisions)(\/|\?|$)/; // of a published page, that can be taken along

// Where a path of the service is, wherever the page lies: below a name of its own, or below another page's.
export function address(path) {
  return new URL(`..${path}`, import.meta.url).href;
}

// Where an answer can be taken along; null where a published page has none.
export function fileOf(path, kind = "json") {
  if (published) return FILES.test(path) ? address(`${path.split("?")[0]}.${kind}`) : null;
  return address(kind === "json" ? path : `${path}${path.includes("?") ? "&" : "?"}format=${kind}`);
}

// An error whose message is for people; `status` is the answer's, none where nothing answered.
export class PageError extends Error {
  constructor(text, status = null) {
    super(text);
    this.status = status;
  }
}

// What people are told of any error: of one that nobody foresaw, where it can be read.
export function messageOf(error) {
  if (error instanceof PageError) return error.message;
  console.error(error);
  return "This page has failed; reload it. The browser's console has the details.";
}

// The status and the JSON of an answer, which may be a refusal.
export async function answered(path) {
  let answer = null;
  try {
    answer = await fetch(address(path), { signal: AbortSignal.timeout(TIMEOUT_MS) });
    return { status: answer.status, ok: answer.ok, body: await answer.json() };
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw new PageError(AWAY); // not reached, cut off, or too late
    if (answer.ok) throw new PageError("What answers at this address is not `cpb serve`: its answer is not JSON.", answer.status);
    throw new PageError(`The service failed (${answer.status}); the log of \`cpb serve\` has the details.`, answer.status);
  }
}

// An answer that is no success is one sentence in `detail`.
export async function get(path) {
  if (published) return (await import("./published.js")).answer(path);
  const { status, ok, body } = await answered(path);
  if (!ok) throw new PageError(typeof body?.detail === "string" ? body.detail : `${path} answered ${status}`, status);
  return body;
}

// A view or a library of the page, which the service sends when it is first needed.
export async function fetched(loading) {
  try {
    return await loading;
  } catch {
    throw new PageError(AWAY);
  }
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
