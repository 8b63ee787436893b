/** What a window and a claim are, and what both kinds of deduplication check. */

import { milliseconds } from '../duration.js';

export const DAY = 24 * 3_600_000;

const LONGEST_ID = 1024;
const LONGEST_CONSUMER = 255;

/** The claim ran out because Redis could not be reached. The handler was told to stop. */
export class ClaimExpired extends Error {
  /** @param {string} [message] */
  constructor(message) {
    super(message);
    this.name = 'ClaimExpired';
  }
}

/** @param {string} text @param {number} longest */
const fits = (text, longest) => Buffer.byteLength(text) <= longest && !text.includes('\0');

/**
 * A duration that is longer than nothing, in milliseconds.
 *
 * @param {number | string} duration
 * @param {string} name
 */
export function span(duration, name) {
  const millis = milliseconds(duration, name);
  if (!(millis > 0 && millis < Infinity)) throw new TypeError(`${name} must be longer than zero`);
  return Math.max(1, Math.round(millis));
}

/** @param {string} consumer may be empty */
export function checkName(consumer) {
  if (!fits(consumer, LONGEST_CONSUMER)) {
    throw new TypeError(`a consumer's name has at most ${LONGEST_CONSUMER} bytes, and no zero byte`);
  }
  return consumer;
}

/** @param {string} id */
export function checkId(id) {
  if (typeof id !== 'string' || id === '' || !fits(id, LONGEST_ID)) {
    throw new TypeError(`a message id has 1 to ${LONGEST_ID} bytes, and no zero byte`);
  }
  return id;
}

/**
 * Whether a repeat finds the mark.
 *
 * @param {number} window
 * @param {number | string} longestRetry
 */
export function checkWindow(window, longestRetry) {
  const longest = milliseconds(longestRetry, 'longestRetry');
  if (window > longest) return;
  throw new RangeError(
    `the window of deduplication is ${window / 1000} s, and a message may be retried ${longest / 1000} s after it was ` +
    'first delivered: the window must be longer',
  );
}
