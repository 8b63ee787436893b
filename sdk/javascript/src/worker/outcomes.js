/** How a task can end, as a handler says it and as it is told. */

/** Thrown by a handler to fail its task with more to say than a message. Any other error fails it too. */
export class Failure extends Error {
  /**
   * @param {string} message for the consumer to read
   * @param {{ retryable?: boolean, cause?: unknown }} [options]
   */
  constructor(message, { retryable, ...options } = {}) {
    super(message, options);
    this.name = 'Failure';
    this.retryable = retryable;
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
 * What is told of a task that has ended: the `data` of its last message, as JSON.
 *
 * @typedef {{ success: boolean, data: string }} Verdict
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
 * @param {boolean} [retryable]
 * @returns {Verdict}
 */
export function failure(errorMessage, retryable) {
  return { success: false, data: JSON.stringify({ messageType: 'failure', errorMessage, retryable }) };
}

/**
 * The failure that something thrown stands for. Never throws, whatever it is.
 *
 * @param {unknown} thrown
 */
export function failureOf(thrown) {
  return failure(described(thrown), thrown instanceof Failure ? thrown.retryable : undefined);
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
