/** How a task can end, as a handler says it and as it is told. */

import { milliseconds, written } from '../duration.js';

/** What a consumer is shown need not be longer; a server may refuse what is. */
const LONGEST_MESSAGE = 10_000;

const LONGEST_TRACE = 16 * 1024;

/** Thrown by a handler to fail its task with more to say than a message. Any other error fails it too. */
export class Failure extends Error {
  /**
   * @param {string} message for the consumer to read
   * @param {import('../../types/worker.js').FailureOptions} [options]
   */
  constructor(message, { retryable, retryAfter, kind, ...options } = {}) {
    super(message, options);
    this.name = 'Failure';
    this.retryable = retryable;
    this.retryAfter = retryAfter === undefined ? undefined : milliseconds(retryAfter, 'retryAfter');
    if (this.retryAfter !== undefined) written(this.retryAfter); // What is no duration is known where it was written.
    this.kind = kind;
  }
}

/** Thrown by a handler to give its task back, as if it had never had it. */
export class TryAgain extends Error {
  /** @param {string} [message] for the log */
  constructor(message = 'given back') {
    super(message);
    this.name = 'TryAgain';
  }
}

/** The reason of a context's signal: nobody waits for this result any more. */
export class Interrupted extends Error {
  /** @param {import('../../types/worker.js').InterruptedBecause} why */
  constructor(why) {
    super(`the task is no longer wanted of this worker: ${why}`);
    this.name = 'AbortError';
    this.why = why;
  }
}

/**
 * What is told of a task that has ended: the `data` of its last message, as JSON. `progress`: how far it was, to be told
 * first, for consumers see how far a failure got.
 *
 * @typedef {{ success: boolean, data: string, progress?: number }} Verdict
 */

/**
 * @param {string | undefined} response JSON
 * @returns {Verdict}
 */
export function success(response) {
  return { success: true, data: `{"messageType":"success","response":${response ?? 'null'}}` };
}

/**
 * @param {string} errorMessage
 * @param {{ retryable?: boolean, retryAfter?: string, errorKind?: string, errorTrace?: string }} [more]
 * @returns {Verdict}
 */
export function failure(errorMessage, more) {
  const data = { messageType: 'failure', errorMessage: errorMessage.slice(0, LONGEST_MESSAGE), ...more };
  // Half of a surrogate pair is no text, and would not be taken.
  const whole = (/** @type {string} */ _, /** @type {unknown} */ value) => {
    return typeof value === 'string' ? value.replace(/\p{Surrogate}/gu, '\ufffd') : value;
  };
  return { success: false, data: JSON.stringify(data, whole) };
}

/** What becomes of a task whose time is over. */
export function late() {
  return failure('It ran for longer than it may.', { errorKind: 'timeout' });
}

/**
 * How far a task is, as it is told.
 *
 * @param {number} progress
 */
export function soFar(progress) {
  return JSON.stringify({ messageType: 'progress', progress });
}

/**
 * A result that nobody takes, for its size or whatever else, would not be taken the next time either.
 *
 * @param {string} errorMessage
 */
export function unwanted(errorMessage) {
  return failure(errorMessage, { retryable: false, errorKind: 'result' });
}

/**
 * The failure that something thrown stands for. Never throws, whatever it is.
 *
 * @param {unknown} thrown
 */
export function failureOf(thrown) {
  const message = described(thrown);
  try {
    if (thrown instanceof Failure) {
      const { retryable, retryAfter, kind } = thrown;
      const wait = retryAfter === undefined ? undefined : written(retryAfter);
      return failure(message, { retryable, retryAfter: wait, errorKind: kind });
    }
    if (thrown instanceof Error) return failure(message, { errorKind: kindOf(thrown), errorTrace: traceOf(thrown) });
  } catch {
    // Something in it can not be read: the message alone must do.
  }
  return failure(message);
}

/**
 * The name of an error's type. Classes that have not set `name` all have that of `Error`.
 *
 * @param {Error} error
 */
function kindOf(error) {
  return String(error.name === 'Error' ? error.constructor.name : error.name) || undefined;
}

/**
 * The stacks of an error and of the errors behind it.
 *
 * @param {Error} error
 */
function traceOf(error) {
  const stacks = [];
  for (let one = /** @type {unknown} */ (error); one instanceof Error && stacks.length < 10; one = one.cause) {
    const stack = String(one.stack ?? described(one));
    const calls = stack.indexOf('\n    at ');
    // The message is told apart; if it is long, what follows says more.
    stacks.push(stack.length > LONGEST_TRACE && calls >= 0 ? stack.slice(calls + 1) : stack);
  }
  // The newest call comes first.
  return stacks.join('\ncaused by ').slice(0, LONGEST_TRACE);
}

/**
 * An error's message and those of the errors behind it.
 *
 * @param {unknown} thrown
 */
export function described(thrown) {
  try {
    const messages = [];
    let error = thrown;
    for (; error instanceof Error && messages.length < 10; error = error.cause) messages.push(error.message || error.name);
    if (error !== undefined && !(error instanceof Error)) messages.push(String(error));
    return messages.join(': ') || 'no message';
  } catch {
    return 'an error that can not be shown';
  }
}
