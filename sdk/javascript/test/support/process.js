/** Processes and time limits. Tests wait for events, under a limit that only a broken program reaches. */

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

/** The limit of everything that a test waits for. */
export const PATIENCE = 20_000;

/**
 * @template T
 * @param {number} millis
 * @param {string} what
 * @param {Promise<T>} promise
 * @returns {Promise<T>}
 */
export async function within(millis, what, promise) {
  /** @type {NodeJS.Timeout | undefined} */
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not within ${millis / 1000} s: ${what}`)), millis);
  });
  try {
    return await /** @type {Promise<T>} */ (Promise.race([promise, late]));
  } finally {
    clearTimeout(timer);
  }
}

/**
 * The environment without what could be a setting of something that is tested.
 *
 * @param {Record<string, string>} [more]
 */
export function environment(more = {}) {
  const kept = Object.entries(process.env).filter(([name]) => !/^(RELAIS_|RUST_LOG|NODE_|HOSTNAME)/.test(name));
  return { ...Object.fromEntries(kept), ...more };
}

/**
 * How a process ended: its exit code, or the signal that killed it.
 *
 * @param {import('node:child_process').ChildProcess} child
 */
export async function ended(child) {
  if (child.exitCode === null && child.signalCode === null) {
    await within(PATIENCE, 'the process ends', once(child, 'exit'));
  }
  return child.exitCode ?? child.signalCode;
}

/** A program of ours in a process of its own, whose lines can be waited for. */
export class Program {
  #lines = /** @type {string[]} */ ([]);
  #watchers = /** @type {Set<() => void>} */ (new Set());

  /**
   * @param {string} file relative to the package
   * @param {string[]} [argumentList]
   * @param {Record<string, string>} [env]
   */
  constructor(file, argumentList = [], env = {}) {
    const root = fileURLToPath(new URL('../..', import.meta.url));
    this.child = spawn(process.execPath, [file, ...argumentList], {
      cwd: root, env: environment(env), stdio: ['ignore', 'pipe', 'pipe'],
    });
    for (const input of [this.child.stdout, this.child.stderr]) {
      createInterface({ input }).on('line', (line) => {
        this.#lines.push(line);
        for (const look of [...this.#watchers]) look();
      });
    }
    this.child.once('exit', () => setImmediate(() => [...this.#watchers].forEach((look) => look())));
  }

  /** All that it said. */
  get output() {
    return this.#lines.join('\n');
  }

  /**
   * Waits until a line contains this text.
   *
   * @param {string} text
   */
  says(text) {
    /** @type {Promise<string>} */
    const said = new Promise((resolve, reject) => {
      const look = () => {
        const line = this.#lines.find((line) => line.includes(text));
        if (line === undefined && this.child.exitCode === null && this.child.signalCode === null) return;
        this.#watchers.delete(look);
        if (line === undefined) reject(new Error(`it ended and never said "${text}":\n${this.output}`));
        else resolve(line);
      };
      this.#watchers.add(look);
      look();
    });
    return within(PATIENCE, `it says "${text}"`, said).catch((error) => {
      throw new Error(`${error.message}\n${this.output}`);
    });
  }

  /** How it ended. */
  async end() {
    return ended(this.child);
  }

  /** @param {NodeJS.Signals} signal */
  signal(signal) {
    this.child.kill(signal);
  }
}
