/** Where a worker says what happens: by default stderr, one line each. Data goes to stdout, which is the handlers'. */

/** @typedef {import('../../types/worker.js').Logger} Logger */

/** @type {Logger} */
export const stderr = {
  info: (message, fields) => line('INFO', message, fields),
  warn: (message, fields) => line('WARN', message, fields),
  error: (message, fields) => line('ERROR', message, fields),
};

/**
 * @param {string} level
 * @param {string} message
 * @param {Record<string, unknown>} [fields]
 */
function line(level, message, fields = {}) {
  const words = Object.entries(fields).map(([name, value]) => `${name}=${JSON.stringify(value)}`);
  process.stderr.write(`${[new Date().toISOString(), level, message, ...words].join(' ')}\n`);
}

/** Whether the other side is away: the first failure says so, the next success too, and nothing is said in between. */
export class Outage {
  #log;
  #what;
  #away = false;

  /**
   * @param {Logger} log
   * @param {string} what who is away
   */
  constructor(log, what) {
    this.#log = log;
    this.#what = what;
  }

  get isOver() {
    return !this.#away;
  }

  /** @param {unknown} error */
  failed(error) {
    if (this.#away) return;
    this.#away = true;
    this.#log.warn(`${this.#what} does not answer as it should; trying again`, { error: message(error) });
  }

  worked() {
    if (!this.#away) return;
    this.#away = false;
    this.#log.info(`${this.#what} answers again`);
  }
}

/** @param {unknown} error */
export function message(error) {
  return error instanceof Error ? error.message || error.name : String(error);
}
