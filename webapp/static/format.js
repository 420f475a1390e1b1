// Numbers and times as text. Times are UTC.

const LOCALE = "en-GB";

// Five significant digits at least, and the cents of large prices: 108,250.12 and 0.00001234.
export function priceFormat(reference) {
  const magnitude = Math.floor(Math.log10(Math.abs(reference) || 1));
  const digits = Math.max(2, Math.min(12, 4 - magnitude));
  return (value) => value.toLocaleString(LOCALE, { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

export function price(value) {
  return known(value) ? priceFormat(value)(value) : "–";
}

export function known(value) {
  return value !== null && value !== undefined && !Number.isNaN(value);
}

export function number(value, digits = 0) {
  return known(value) ? value.toLocaleString(LOCALE, { minimumFractionDigits: digits, maximumFractionDigits: digits }) : "–";
}

function text(value, options) {
  return known(value) ? new Date(value).toLocaleString(LOCALE, { timeZone: "UTC", ...options }) : "–";
}

export function time(value) {
  return text(value, { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
}

export function hour(value) {
  return text(value, { hour: "2-digit", minute: "2-digit" });
}

export function dayAndTime(value) {
  return text(value, { year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });
}

export function day(value) {
  return text(value, { year: "numeric", month: "short", day: "numeric" });
}

export function percent(share, digits = 0) {
  return known(share) ? `${(100 * share).toFixed(digits)} %` : "–";
}

export function change(value, reference) {
  return signed(value / reference - 1);
}

// A share as a move: +1.25 %; a true minus, as wide as the plus.
export function signed(share) {
  return known(share) ? `${share >= 0 ? "+" : "−"}${Math.abs(100 * share).toFixed(2)} %` : "–";
}

export function interval(low, high, digits = 3) {
  return known(low) && known(high) ? `${low.toFixed(digits)} to ${high.toFixed(digits)}` : "–";
}

export function count(n, one, many = `${one}s`) {
  return `${number(n)} ${n === 1 ? one : many}`;
}

export function age(value) {
  const minutes = Math.round((Date.now() - new Date(value)) / 60000);
  if (minutes < 0) return "";
  if (minutes < 120) return `${count(minutes, "minute")} ago`;
  if (minutes < 48 * 60) return `${count(Math.round(minutes / 60), "hour")} ago`;
  return `${count(Math.round(minutes / 1440), "day")} ago`;
}

export function duration(seconds) {
  if (!known(seconds)) return "–";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 48 * 3600 ? `${+(seconds / 3600).toFixed(1)} h` : `${+(seconds / 86400).toFixed(1)} days`;
}

// Length of a candle in seconds: 15m, 1h, 1d.
export function seconds(timeframe) {
  const units = { s: 1, m: 60, h: 3600, d: 86400, w: 604800 };
  return parseInt(timeframe, 10) * units[timeframe.slice(-1)];
}

// The instant up to which a run saw candles, as MLflow has it; "newest" is kept.
export function asOf(text) {
  return text && !Number.isNaN(Date.parse(text)) ? day(text) : text || "–";
}
