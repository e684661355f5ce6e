// Numbers as people read them.

const NOTHING = "–";
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const precise = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

/** Three significant digits below 100, whole numbers above. */
export function number(value) {
  if (value == null || !Number.isFinite(value)) return NOTHING;
  return Math.abs(value) < 100 ? precise.format(value) : whole.format(value);
}

export function decimal(value) {
  return value == null || !Number.isFinite(value) ? NOTHING : tenths.format(value);
}

export function count(value, noun) {
  return `${whole.format(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/** Seconds as ms, or as s from one second on. */
export function duration(seconds) {
  if (seconds == null || !Number.isFinite(seconds)) return NOTHING;
  return seconds < 1 ? `${number(1000 * seconds)} ms` : `${number(seconds)} s`;
}

const BYTE_UNITS = ["KiB", "MiB", "GiB", "TiB"];

export function bytes(value) {
  const power = Math.min(4, Math.max(1, Math.floor(Math.log2(value || 1) / 10)));
  return `${number(value / 1024 ** power)} ${BYTE_UNITS[power - 1]}`;
}

const timeOfDay = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const dayAndTime = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "short" });
const DAY_MS = 86_400_000;

/** When something was, in seconds since 1970: with its day where that is a day ago or more. */
export function clock(seconds) {
  const at_ms = 1000 * seconds;
  return (Date.now() - at_ms < DAY_MS ? timeOfDay : dayAndTime).format(at_ms);
}

export function percent(share) {
  return share == null ? NOTHING : `${whole.format(100 * share)} %`;
}
