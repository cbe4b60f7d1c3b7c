// Short forms of numbers, as in `miot top`.

function scaled(value, step, units) {
  let unit = 0;
  while (value >= step - 0.5 && unit + 1 < units.length) {
    value /= step;
    unit += 1;
  }
  return value.toFixed(unit > 0 && value < 99.95 ? 1 : 0) + units[unit];
}

export function count(value) {
  if (value === 0) return "0";
  return value < 9.95 && !Number.isInteger(value) ? value.toFixed(1) : scaled(value, 1000, ["", "k", "M", "G", "T", "P"]);
}

export const bytes = (value) => scaled(value, 1024, [" B", " KiB", " MiB", " GiB", " TiB", " PiB"]);

export function time(nanoseconds) {
  if (nanoseconds < 1e3) return `${Math.round(nanoseconds)} ns`;
  if (nanoseconds < 1e6) return `${(nanoseconds / 1e3).toFixed(1)} µs`;
  if (nanoseconds < 1e9) return `${(nanoseconds / 1e6).toFixed(1)} ms`;
  if (nanoseconds < 1e11) return `${(nanoseconds / 1e9).toFixed(2)} s`;
  return `${Math.round(nanoseconds / 1e9)} s`;
}

export const clock = (nanoseconds) => new Date(nanoseconds / 1e6).toISOString().slice(11, 23);
