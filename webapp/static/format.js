// Numbers and times as text.

const LOCALE = "en-GB";

// Five significant digits at least, and the cents of large prices: 108,250.12 and 0.00001234.
export function priceFormat(reference) {
  const magnitude = Math.floor(Math.log10(Math.abs(reference) || 1));
  const digits = Math.max(2, Math.min(12, 4 - magnitude));
  return (value) => value.toLocaleString(LOCALE, { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

export function time(value) {
  return new Date(value).toLocaleString(LOCALE, {
    timeZone: "UTC", day: "numeric", month: "short", hour: "2-digit", minute: "2-digit",
  });
}

export function dayAndTime(value) {
  return new Date(value).toLocaleString(LOCALE, {
    timeZone: "UTC", year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit",
  });
}

export function day(value) {
  return new Date(value).toLocaleString(LOCALE, { timeZone: "UTC", year: "numeric", month: "short", day: "numeric" });
}

export function clock(value, daily) {
  const options = daily ? { day: "numeric", month: "short" } : { hour: "2-digit", minute: "2-digit" };
  return new Date(value).toLocaleString(LOCALE, { timeZone: "UTC", ...options });
}

export function percent(share, digits = 0) {
  return `${(100 * share).toFixed(digits)} %`;
}

export function change(value, reference) {
  const move = 100 * (value / reference - 1);
  return `${move >= 0 ? "+" : "−"}${Math.abs(move).toFixed(2)} %`;
}

export function age(value) {
  const minutes = Math.round((Date.now() - new Date(value)) / 60000);
  if (minutes < 0) return "";
  if (minutes < 120) return `${minutes} minutes ago`;
  if (minutes < 48 * 60) return `${Math.round(minutes / 60)} hours ago`;
  return `${Math.round(minutes / 1440)} days ago`;
}
