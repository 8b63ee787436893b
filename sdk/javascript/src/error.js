/**
 * What goes wrong between this package and a server.
 *
 * A task that fails is not here: that is a result like another, and it comes as a task whose status is FAILURE.
 */

/** A server refused, or did not answer. */
export class RelaisError extends Error {
  /**
   * @param {import('../types/index.js').Refusal} refusal
   * @param {ErrorOptions} [options]
   */
  constructor(refusal, options) {
    super(refusal.number ? `${refusal.description} (${refusal.number})` : refusal.description, options);
    this.name = 'RelaisError';
    this.number = refusal.number;
    this.description = refusal.description;
    this.details = refusal.details ?? [];
    this.status = refusal.status;
    this.retryAfter = refusal.retryAfter;
  }

  /** Whether the same call may well succeed later: the server is away, overloaded, or something before it answers. */
  get isPassing() {
    return this.status === undefined || this.status === 408 || this.status === 429 || this.status >= 500;
  }
}
