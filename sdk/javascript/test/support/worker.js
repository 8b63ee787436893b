/** Workers inside a test, and things that handlers and tests tell each other. */

import { Worker } from '@relais/sdk/worker';
import { PATIENCE, within } from './process.js';

/** Keeps what is logged; a failing test shows it. */
export class Log {
  lines = /** @type {string[]} */ ([]);
  info = this.#write.bind(this, 'INFO');
  warn = this.#write.bind(this, 'WARN');
  error = this.#write.bind(this, 'ERROR');

  /**
   * @param {string} level
   * @param {string} message
   * @param {Record<string, unknown>} [fields]
   */
  #write(level, message, fields) {
    this.lines.push(`${level} ${message} ${JSON.stringify(fields ?? {})}`);
  }
}

/** Something that happens once, and can be waited for under a limit. @template T */
export class Event {
  #resolve = /** @type {(value: T) => void} */ (() => {});
  #promise;

  /** @param {string} what */
  constructor(what) {
    this.what = what;
    /** @type {Promise<T>} */
    this.#promise = new Promise((resolve) => (this.#resolve = resolve));
  }

  /** @param {T} value */
  happens(value) {
    this.#resolve(value);
  }

  /** @returns {Promise<T>} */
  wait() {
    return within(PATIENCE, this.what, this.#promise);
  }
}

/**
 * A worker that runs beside the test. `stop` ends it and brings its report; at the end of the test it ends in any case.
 *
 * @param {import('node:test').TestContext} t
 * @param {import('@relais/sdk/worker').WorkerOptions} options
 * @param {import('@relais/sdk/worker').Handler} handler
 */
export function start(t, options, handler) {
  const log = new Log();
  const worker = new Worker({ logger: log, ...options });
  const running = worker.run(handler);
  running.catch(() => {});
  t.after(async () => {
    worker.stop({ now: true });
    await within(PATIENCE, 'the worker ends', running.catch(() => {}));
  });
  const end = () => within(PATIENCE, 'the worker ends', running);
  return {
    worker, log, end,
    stop: (/** @type {{ now?: boolean }} */ how = {}) => {
      worker.stop(how);
      return end();
    },
  };
}

/**
 * Looks again and again, at most every few milliseconds, for what can not be waited for otherwise.
 *
 * @template T
 * @param {string} what
 * @param {() => Promise<T> | T} look brings something as soon as it is so
 * @returns {Promise<NonNullable<T>>}
 */
export async function eventually(what, look) {
  const deadline = Date.now() + PATIENCE;
  for (;;) {
    const found = await look();
    if (found) return /** @type {NonNullable<T>} */ (found);
    if (Date.now() > deadline) throw new Error(`not within ${PATIENCE / 1000} s: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
