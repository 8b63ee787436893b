/**
 * What the library goes by: what the page wants, and what there is of the browser, in one place, so that tests can give
 * something else. Also the few tools that all parts use.
 */

/** @typedef {Omit<import('../types/index.js').Options, 'platform'> & import('../types/index.js').Platform} Setting */

/**
 * @param {import('../types/index.js').Options} options
 * @returns {Setting}
 */
export const settingOf = (options, browser = globalThis) => ({
  fetch,
  WebSocket: browser.WebSocket,
  locks: browser.navigator?.locks,
  Channel: browser.BroadcastChannel,
  window: browser,
  document: browser.document,
  now: Date.now,
  random: Math.random,
  after(millis, run) {
    const timer = setTimeout(run, millis);
    return () => clearTimeout(timer);
  },
  ...options.platform,
  ...options,
});

/** What comes of it; nothing, if it throws. @param {() => any} run @returns {any} */
export const orNothing = (run) => {
  try {
    return run();
  } catch {
    // Nothing, then.
  }
};

/**
 * Reads what is stored under a key, or writes it. Never throws: in private windows and sandboxed frames, even looking at
 * `localStorage` may.
 *
 * @param {Setting} setting
 * @returns {(key: string, value?: unknown) => any}
 */
export const storageOf = (setting) => (key, value) => orNothing(() => {
  const { storage = localStorage } = /** @type {any} */ (setting);
  return value ? storage.setItem(key, JSON.stringify(value)) : JSON.parse(storage.getItem(key));
});

/**
 * A timer. Set again, it forgets what it was set to before; without a time, it is only stopped.
 *
 * @param {Setting} setting
 * @returns {(millis?: number, run?: () => void) => void}
 */
export const timerOf = ({ after }) => {
  /** @type {(() => void) | undefined} */
  let cancel;
  return (/** @type {any} */ millis, run) => {
    cancel?.();
    cancel = run && after(millis, run);
  };
};

/** @param {unknown} value @returns {value is string} */
export const isText = (value) => typeof value === 'string' && !!value;

/** The texts that a value is, or has. @param {unknown} value @returns {string[]} */
export const texts = (value) => [value].flat().filter(isText);
