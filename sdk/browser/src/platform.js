/** What the library uses of the browser, in one place, so that tests can give something else. */

/**
 * @param {Partial<import('../types/index.js').Platform>} [instead]
 * @returns {import('../types/index.js').Platform}
 */
export function platformOf(instead) {
  const { navigator, document, window, WebSocket, BroadcastChannel } = globalThis;
  return {
    fetch: (input, init) => fetch(input, init), // Called as a method of something else, browsers refuse it.
    WebSocket,
    locks: navigator?.locks,
    Channel: BroadcastChannel,
    window,
    document,
    now: Date.now,
    random: Math.random,
    after(millis, run) {
      const timer = setTimeout(run, millis);
      return () => clearTimeout(timer);
    },
    ...instead,
  };
}

/**
 * Reads what is stored under a key, or writes it. Never throws: in private windows and sandboxed frames, even looking at
 * `localStorage` may.
 *
 * @param {import('../types/index.js').Options['storage']} [given]
 * @returns {(key: string, value?: unknown) => any}
 */
export const storageOf = (given) => (key, value) => {
  try {
    const storage = /** @type {Storage} */ (given === undefined ? localStorage : given);
    if (!value) return JSON.parse(storage.getItem(key) ?? '');
    storage.setItem(key, JSON.stringify(value));
  } catch {
    // Nothing is stored, then.
  }
  return undefined;
};

/**
 * Waits that can be cut short, one at a time. After `n` failures: 1 s, 2 s, 4 s… up to 30 s, each shortened by up to half,
 * so that a server that is back is not called by all at once.
 *
 * @param {import('../types/index.js').Platform} platform
 */
export function backoffs({ after, random }) {
  let skip = () => {};
  return {
    /** @param {number} failures from 1 @returns {Promise<void>} */
    wait: (failures) => new Promise((resolve) => {
      const cancel = after(Math.min(30_000, 500 * 2 ** failures) * (1 - random() / 2), resolve);
      skip = () => {
        cancel();
        resolve();
      };
    }),
    skip: () => skip(),
  };
}

/** @param {unknown} value @returns {value is string} */
export const isText = (value) => typeof value === 'string' && value !== '';

/** Whether the same call will never succeed. @param {number | undefined} status */
export const isFinal = (status = 0) => status >= 400 && status < 500 && ![401, 408, 429].includes(status);
