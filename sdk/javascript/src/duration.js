/** Durations: milliseconds, or text as people write it (`250ms`, `30s`, `5m`, `1h30m`, `7d`). */

/** The longest first. @type {Record<string, number>} */
const UNITS = { d: 86_400_000, h: 3_600_000, m: 60_000, s: 1_000, ms: 1 };

/**
 * @param {number | string} duration
 * @param {string} name what it is, for the error message
 * @returns {number} milliseconds
 */
export function milliseconds(duration, name) {
  if (typeof duration === 'number' && duration >= 0) return duration;
  if (typeof duration === 'string' && /^(\d+(ms|[dhms]))+$/.test(duration)) {
    const parts = duration.matchAll(/(\d+)(ms|[dhms])/g);
    return [...parts].reduce((sum, [, number, unit]) => sum + Number(number) * (UNITS[String(unit)] ?? 0), 0);
  }
  throw new TypeError(`${name} must be milliseconds or text like 30s, 5m or 250ms, and not ${JSON.stringify(duration)}`);
}

/**
 * As the server reads it.
 *
 * @param {number} millis
 */
export function written(millis) {
  if (!(millis >= 0 && millis < Infinity)) throw new TypeError(`the server takes no duration like ${millis}`);
  let left = Math.ceil(millis);
  let text = '';
  for (const [unit, factor] of Object.entries(UNITS)) {
    if (left >= factor) text += `${Math.floor(left / factor)}${unit}`;
    left %= factor;
  }
  return text || '0s';
}
