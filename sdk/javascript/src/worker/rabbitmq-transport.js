/**
 * Tasks over RabbitMQ: taken from `<queueName>-in`, told on `<queueName>-out`, acknowledged once the broker has the result.
 *
 * A connection that is lost takes its tasks with it: the broker hands them out again, here or elsewhere. There is no way
 * for a worker to hear that a task was cancelled; its result is then ignored.
 */

import { onAbort } from '../abort.js';
import { Backoff, pause } from '../backoff.js';
import { message as said, Outage } from './log.js';
import { unwanted } from './outcomes.js';
import { Session, TooLarge } from './rabbitmq-session.js';
import { Submission } from './submission.js';

/** A connection that held for so long was a good one: the next one is tried for at once. */
const GOOD = 5_000;

/** How long to try to say that a task is given back. The broker hands it out again in any case. */
const RETURN_LIMIT = 1_000;

/** @implements {Transport} @typedef {import('./run.js').Transport} Transport */
export class RabbitMqTransport {
  #settings;
  #logger;
  #outage;
  #stop = new AbortController();
  /** @type {Promise<void>} */
  #stopped;
  /** @type {Session | undefined} */
  #session;
  /** @type {Map<Submission, { session: Session, message: import('amqplib').ConsumeMessage, started: boolean }>} */
  #held = new Map();

  /** @param {import('./worker.js').Settings} settings */
  constructor(settings) {
    this.#settings = settings;
    this.#logger = settings.logger;
    this.#outage = new Outage(settings.logger, 'the broker');
    this.#stopped = new Promise((resolve) => onAbort(this.#stop.signal, resolve));
  }

  get isConnected() {
    return this.#session?.isAlive ?? false;
  }

  /** @param {import('./run.js').Host} host */
  async take(host) {
    const amqplib = await load(this.#settings.amqplib);
    const backoff = new Backoff();
    let welcome = false;
    while (!this.#stop.signal.aborted) {
      const session = this.#begin(host);
      try {
        const opening = session.open(amqplib, (message) => this.#deliver(host, session, message));
        opening.catch(() => {});
        await Promise.race([opening, this.#stopped]);
        // Stopped: the session stays, for the results that are still to come.
        if (this.#stop.signal.aborted) return;
        welcome = true;
        this.#outage.worked();
        const opened = performance.now();
        const error = await Promise.race([session.lost, this.#stopped]);
        if (this.#stop.signal.aborted) return;
        this.#outage.failed(error);
        if (performance.now() - opened >= GOOD) backoff.reset();
      } catch (error) {
        if (!welcome && isHopeless(error)) throw error;
        this.#outage.failed(error);
      }
      await pause(backoff.next(), this.#stop.signal).catch(() => {});
    }
  }

  stopTaking() {
    this.#stop.abort();
    this.#session?.stopConsuming();
  }

  /** @param {Submission} submission */
  started(submission) {
    const held = this.#held.get(submission);
    if (!held) return;
    held.started = true;
    held.session.publish(this.#message(submission, 'started')).catch(() => {});
  }

  /** @param {[Submission, number][]} batch */
  async progress(batch) {
    const told = batch.map(([submission, progress]) => {
      const data = JSON.stringify({ messageType: 'progress', progress });
      return this.#held.get(submission)?.session.publish(submission.message(data));
    });
    await Promise.all(told);
  }

  /**
   * @param {Submission} submission
   * @param {import('./outcomes.js').Verdict} verdict
   * @returns {Promise<'done' | 'failed' | 'lost'>}
   */
  async finish(submission, verdict) {
    const held = this.#held.get(submission);
    if (!held) return 'lost';
    const { session, message } = held;
    let told = verdict;
    try {
      await session.publish(submission.message(told.data)).catch((error) => {
        if (!(error instanceof TooLarge)) throw error;
        // Without an end the task would be handed out again, and end here again.
        this.#logger.warn('the broker does not take the result', { taskId: submission.taskId, reason: error.message });
        told = unwanted(`the broker did not take the worker's result: ${error.message}`);
        return session.publish(submission.message(told.data));
      });
    } catch {
      return 'lost';
    }
    this.#held.delete(submission);
    session.ack(message);
    return told.success ? 'done' : 'failed';
  }

  /** @param {Submission} submission */
  async giveBack(submission) {
    const held = this.#held.get(submission);
    if (!held) return false;
    const { session, message, started } = held;
    if (started) {
      const late = new AbortController();
      const told = session.publish(this.#message(submission, 'returned')).catch(() => {});
      await Promise.race([told, pause(RETURN_LIMIT, late.signal).catch(() => {})]);
      late.abort();
    }
    this.#held.delete(submission);
    return session.giveBack(message);
  }

  async close() {
    this.#stop.abort();
    await this.#session?.close();
  }

  /**
   * @param {Submission} submission
   * @param {'started' | 'returned'} messageType
   */
  #message(submission, messageType) {
    return submission.message(JSON.stringify({ messageType, hostName: this.#settings.hostName }));
  }

  /**
   * A session whose tasks are lost when it is.
   *
   * @param {import('./run.js').Host} host
   */
  #begin(host) {
    const session = new Session(this.#settings);
    this.#session = session;
    void session.lost.then(() => {
      for (const [submission, held] of [...this.#held]) {
        if (held.session !== session) continue;
        this.#held.delete(submission);
        host.interrupt(submission, 'lost');
      }
    });
    return session;
  }

  /**
   * @param {import('./run.js').Host} host
   * @param {Session} session
   * @param {import('amqplib').ConsumeMessage} message
   */
  #deliver(host, session, message) {
    const text = message.content.toString();
    try {
      const submission = new Submission(text, message.fields.redelivered);
      this.#held.set(submission, { session, message, started: false });
      host.deliver(submission);
    } catch (error) {
      // There is nobody to tell: it goes where the queue's dead letters go, and into the log.
      const fields = { error: said(error), message: text.slice(0, 500) };
      this.#logger.error('a message is not a submission; it is rejected', fields);
      session.reject(message);
    }
  }
}

/** @param {object | undefined} given */
async function load(given) {
  const missing = (/** @type {unknown} */ cause) => {
    throw new Error('workers over RabbitMQ need the package amqplib: npm install amqplib', { cause });
  };
  const amqplib = given ?? (await import('amqplib').catch(missing));
  return /** @type {import('./rabbitmq-session.js').Amqplib} */ ('default' in amqplib ? amqplib.default : amqplib);
}

/**
 * Whether the broker is there but will not have us, however often we come: wrong credentials, no right to use the queues.
 * A virtual host that is not there yet may come.
 *
 * @param {unknown} error
 */
function isHopeless(error) {
  return error instanceof Error && /ACCESS[-_]REFUSED|need the package/.test(error.message);
}
