/** A browser whose time, network events, locks and channels a test controls. */

import { WebSocket } from 'ws';
import { connect } from 'relais-browser';

/** Time that passes when the test says so. */
export class Clock {
  time = 1_800_000_000_000;
  /** @type {Set<{ at: number, millis: number, run: () => void }>} */
  timers = new Set();
  /** @type {(() => void)[]} */
  #waiting = [];

  now = () => this.time;

  /** @param {number} millis @param {() => void} run */
  after = (millis, run) => {
    const timer = { at: this.time + millis, millis, run };
    this.timers.add(timer);
    for (const wake of this.#waiting.splice(0)) wake();
    return () => void this.timers.delete(timer);
  };

  /** @param {number} millis */
  advance(millis) {
    const end = this.time + millis;
    for (;;) {
      const [next] = [...this.timers].filter(({ at }) => at <= end).sort((one, other) => one.at - other.at);
      if (!next) break;
      this.timers.delete(next);
      this.time = Math.max(this.time, next.at);
      next.run();
    }
    this.time = end;
  }

  /** Resolves once a timer of exactly this length has just been started. @param {number} millis */
  async untilDue(millis) {
    while (![...this.timers].some((timer) => timer.millis === millis && timer.at === this.time + millis)) {
      await new Promise((resolve) => this.#waiting.push(() => resolve(undefined)));
    }
  }

  /** Resolves once a timer of exactly this length runs. @param {number} millis */
  async until(millis) {
    while (![...this.timers].some((timer) => timer.millis === millis)) {
      await new Promise((resolve) => this.#waiting.push(() => resolve(undefined)));
    }
  }
}

/** Web Locks, as far as they are used. */
class Locks {
  /** @type {Map<string, Lock>} */
  #locks = new Map();

  /** @param {string} name @param {{ steal?: boolean, signal?: AbortSignal }} options @param {() => unknown} run */
  request(name, options, run) {
    const lock = this.#locks.get(name) ?? new Lock();
    this.#locks.set(name, lock);
    return lock.request(options, run);
  }
}

class Lock {
  /** @type {{ resolve: () => void, reject: (error: Error) => void } | undefined} */
  #held;
  /** @type {(() => void)[]} */
  #queue = [];

  /** @param {{ steal?: boolean, signal?: AbortSignal }} options @param {() => unknown} run @returns {Promise<any>} */
  request({ steal, signal }, run) {
    return new Promise((resolve, reject) => {
      const take = () => {
        const mine = { resolve: () => resolve(undefined), reject };
        this.#held = mine;
        Promise.resolve(run()).then(() => {
          if (this.#held === mine) this.#next();
          resolve(undefined);
        });
      };
      const abort = () => {
        if (!this.#queue.includes(take)) return;
        this.#queue = this.#queue.filter((one) => one !== take);
        reject(new DOMException('', 'AbortError'));
      };
      if (signal?.aborted) return reject(new DOMException('', 'AbortError'));
      signal?.addEventListener('abort', abort);
      if (steal) {
        this.#held?.reject(new DOMException('', 'AbortError'));
        take();
      } else {
        this.#queue.push(take);
        if (!this.#held) queueMicrotask(() => !this.#held && this.#next());
      }
    });
  }

  #next() {
    this.#held = undefined;
    this.#queue.shift()?.();
  }
}

/** A BroadcastChannel: in order, later, to all others. */
export function channels() {
  /** @type {Set<any>} */
  const open = new Set();
  return class {
    /** @type {((event: any) => void) | null} */
    onmessage = null;

    /** @param {string} name */
    constructor(name) {
      this.name = name;
      open.add(this);
    }

    /** @param {any} message */
    postMessage(message) {
      const data = structuredClone(message);
      for (const other of open) {
        if (other !== this && other.name === this.name) queueMicrotask(() => open.has(other) && other.onmessage?.({ data }));
      }
    }

    close() {
      open.delete(this);
    }
  };
}

export class Storage {
  /** @type {Map<string, string>} */
  items = new Map();
  /** @param {string} key */
  getItem = (key) => this.items.get(key) ?? null;
  /** @param {string} key @param {string} value */
  setItem = (key, value) => void this.items.set(key, value);
  /** @param {string} key */
  removeItem = (key) => void this.items.delete(key);
}

/** Waits for something that tells nobody when it happens. @param {() => unknown} condition */
export async function soon(condition) {
  while (!condition()) await new Promise(setImmediate);
}

/** A token that says whose it is and when it expires. @param {object} claims */
export const jwt = (claims) => `h.${Buffer.from(JSON.stringify(claims)).toString('base64url')}.s`;

/** One browser; `tab` opens tabs of the same origin in it. */
export class Browser {
  clock = new Clock();
  storage = new Storage();
  locks = new Locks();
  Channel = channels();
  #t;
  #server;

  /** @param {import('node:test').TestContext} t @param {import('./server.js').Server} server */
  constructor(t, server) {
    this.#t = t;
    this.#server = server;
  }

  /** @param {Partial<import('relais-browser').Options>} [options] */
  tab(options = {}) {
    const document = Object.assign(new EventTarget(), { hidden: false });
    const window = new EventTarget();
    const { clock, locks, Channel, storage } = this;
    const { platform, ...rest } = options;
    const client = connect({
      url: this.#server.url, storage,
      ...(rest.getToken ? {} : { token: jwt({ sub: 'ann' }) }),
      ...rest,
      platform: {
        now: clock.now, after: clock.after, random: () => 0, document, window, locks: /** @type {any} */ (locks), Channel: /** @type {any} */ (Channel),
        WebSocket: /** @type {any} */ (WebSocket), ...platform,
      },
    });
    this.#t.after(() => client.close());
    return watch(client, { document, window });
  }
}

/**
 * What a page saw, and ways to wait for it.
 *
 * @template T
 * @param {import('relais-browser').Notifications} client
 * @param {T} more
 */
export function watch(client, more) {
  /** @type {{ type: string, detail: any }[]} */
  const seen = [];
  /** @type {(() => void)[]} */
  let waiting = [];
  for (const type of ['notification', 'withdrawn', 'acknowledged', 'counts', 'gap', 'audiences', 'state']) {
    client.addEventListener(type, (event) => {
      seen.push({ type, detail: /** @type {CustomEvent} */ (event).detail });
      // Not before the client has finished with the event.
      queueMicrotask(() => {
        const woken = waiting;
        waiting = [];
        for (const wake of woken) wake();
      });
    });
  }
  return {
    ...more,
    client,
    seen,
    /** The ids of the messages that were shown. */
    ids: () => seen.filter(({ type }) => type === 'notification').map(({ detail }) => detail.metadata.id),
    /** @param {string} type */
    of: (type) => seen.filter((one) => one.type === type).map(({ detail }) => detail),
    /** @param {() => unknown} condition @returns {Promise<void>} */
    async until(condition) {
      while (!condition()) await new Promise((resolve) => waiting.push(() => resolve(undefined)));
    },
    /** @param {import('relais-browser').State} state */
    async state(state) {
      await this.until(() => client.state === state);
    },
  };
}
