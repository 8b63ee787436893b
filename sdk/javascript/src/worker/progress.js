/**
 * Progress on its way to the server. However often a handler tells it, only the newest of each task is sent, a few times a
 * second, in a lane of its own: a result never waits for it, and none follows its result. What waits when a task ends is
 * dropped, unless it failed.
 */

import { pause } from '../backoff.js';

/** At most four times a second; people who watch see no difference. */
const PAUSE = 250;

/** @template Key */
export class Progress {
  /** @type {Map<Key, number>} */
  #newest = new Map();
  /** What is being sent. @type {Map<Key, number>} */
  #sent = new Map();
  #send;
  #sending = false;
  #closed = new AbortController();

  /** @param {(batch: [Key, number][]) => Promise<void>} send may fail: newer progress will come */
  constructor(send) {
    this.#send = send;
  }

  /**
   * A task is so far. What is not a number is ignored, the rest brought between 0 and 100.
   *
   * @param {Key} key
   * @param {number} percent
   */
  put(key, percent) {
    if (typeof percent !== 'number' || Number.isNaN(percent) || this.#closed.signal.aborted) return;
    this.#newest.set(key, Math.min(Math.max(percent, 0), 100));
    if (!this.#sending) void this.#run();
  }

  /**
   * A task has ended. Brings how far it was, if it is not certain that this was told.
   *
   * @param {Key} key
   */
  forget(key) {
    const progress = this.#newest.get(key) ?? this.#sent.get(key);
    this.#newest.delete(key);
    return progress;
  }

  close() {
    this.#newest.clear();
    this.#closed.abort();
  }

  async #run() {
    this.#sending = true;
    try {
      while (this.#newest.size > 0) {
        this.#sent = this.#newest;
        this.#newest = new Map();
        await this.#send([...this.#sent]).then(() => this.#sent.clear(), () => {});
        await pause(PAUSE, this.#closed.signal);
      }
    } catch {
      // Closed.
    } finally {
      this.#sending = false;
    }
  }
}
