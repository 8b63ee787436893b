/** A task as it comes to a worker, the same over every transport. */

import { member } from '../json.js';

export class Submission {
  #text;
  #body;

  /**
   * @param {string} text the message
   * @param {boolean} [redelivered] whether somebody else may have begun it before
   */
  constructor(text, redelivered) {
    const message = JSON.parse(text);
    this.#text = text;
    this.#body = message?.data?.body;
    // There are two spellings in the field; a submission carries both, but may be of a time when it did not.
    /** @type {string} */
    this.taskId = message?.taskId ?? message?.task_id;
    if (typeof this.taskId !== 'string') throw new TypeError('the message names no task');
    /** @type {string | undefined} */
    this.messageType = message.data?.messageType ?? message.data?.message_type;
    /** @type {number | undefined} */
    this.attempt = message.attempt ?? undefined;
    /** @type {string | undefined} */
    this.correlationId = message.correlationId ?? undefined;
    /** @type {string | undefined} */
    this.traceparent = message.traceparent ?? undefined;
    /** @type {string | undefined} */
    this.tracestate = message.tracestate ?? undefined;
    const deadline = typeof message.deadline === 'string' ? Date.parse(message.deadline) : NaN;
    this.deadline = Number.isNaN(deadline) ? undefined : new Date(deadline);
    const timeout = message.timeoutMs ?? message.timeout_ms;
    /** For how many milliseconds it may be worked on, where that is for the worker to see to. @type {number | undefined} */
    this.timeout = !this.deadline && Number.isInteger(timeout) && timeout >= 0 ? timeout : undefined;
    /** How often it had changed when a broker was given it. */
    this.revision = Number.isInteger(message.revision) ? message.revision : 0;
    this.redelivered = redelivered ?? Number(this.attempt) > 1;
  }

  /** The arguments as they were written. */
  get rawBody() {
    return member(this.#text, 'data', 'body') ?? 'null';
  }

  /**
   * The arguments.
   *
   * @param {((text: string) => any) | undefined} parse
   */
  body(parse) {
    if (this.messageType !== 'submission') throw new TypeError(`the message is a ${this.messageType}, not a submission`);
    if (this.#body === undefined) throw new TypeError('the submission has no body');
    return parse ? parse(this.rawBody) : this.#body;
  }

  /**
   * A message about this task.
   *
   * @param {string} data JSON
   */
  message(data) {
    const attempt = this.attempt === undefined ? '' : `"attempt":${this.attempt},`;
    return `{"taskId":${JSON.stringify(this.taskId)},${attempt}"data":${data}}`;
  }
}
