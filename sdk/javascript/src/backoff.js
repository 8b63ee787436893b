/** How long to wait before the next try. */

import { onAbort } from './abort.js';

const FIRST = 100;
const LONGEST = 5_000;

/** Waits of 100 ms, 200 ms, 400 ms… up to 5 s, each shortened by up to half of it, so that not all come at once. */
export class Backoff {
  #first;
  #failures = 0;

  /** @param {number} [first] the first wait, where it is not 100 ms */
  constructor(first = FIRST) {
    this.#first = first;
  }

  /** The next wait, in milliseconds. */
  next() {
    const whole = Math.min(this.#first * 2 ** this.#failures, LONGEST);
    this.#failures += 1;
    return whole * (1 - Math.random() / 2);
  }

  /** It worked: the next failure starts over. */
  reset() {
    this.#failures = 0;
  }
}

/**
 * Resolves after a while; rejects with the signal's reason if that comes first.
 *
 * @param {number} millis
 * @param {AbortSignal} [signal]
 * @returns {Promise<void>}
 */
export function pause(millis, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      unlisten();
      resolve();
    }, millis);
    const unlisten = onAbort(signal, () => {
      clearTimeout(timer);
      reject(signal?.reason);
    });
  });
}
