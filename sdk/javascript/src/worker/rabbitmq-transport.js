/**
 * Tasks over RabbitMQ: taken from `<queueName>-in`, told on `<queueName>-out`, acknowledged once the broker has the result.
 *
 * A connection that is lost takes its tasks with it: the broker hands them out again, here or elsewhere. A result that is
 * ready by then is still told, over the next connection: the server takes the first one. That a task was cancelled is heard
 * beside, at the exchange `<queueName>-control`.
 */

import { onAbort } from '../abort.js';
import { Backoff, pause } from '../backoff.js';
import { message as said, Outage } from './log.js';
import { soFar, unwanted } from './outcomes.js';
import { Session, TooLarge } from './rabbitmq-session.js';
import { Submission } from './submission.js';

/** A connection that held for so long was a good one: the next one is tried for at once. */
const GOOD = 5_000;

/** How long to try to say that a task is given back. The broker hands it out again in any case. */
const RETURN_LIMIT = 1_000;

/**
 * What it is to a handler that the server wants nothing more of its task.
 *
 * @type {Record<string, import('../../types/worker.js').InterruptedBecause>}
 */
const ENDS = { cancelled: 'cancelled', ended: 'lost', lost: 'lost' };

/**
 * A task that was taken. `deliveries`: how it came, more than once if the connection was lost meanwhile. `started`: the
 * server is told that it began. `ends`: it has a result, which is told whatever becomes of the connection. `unwanted`:
 * nobody wants it any more.
 *
 * @typedef {{ deliveries: Delivery[], started: boolean, ends: boolean, unwanted: boolean }} Held
 *
 * @typedef {{ session: Session, message: import('amqplib').ConsumeMessage }} Delivery
 */

/** @implements {Transport} @typedef {import('./run.js').Transport} Transport */
export class RabbitMqTransport {
  #settings;
  #logger;
  #outage;
  #stop = new AbortController();
  /** @type {Promise<void>} */
  #stopped;
  #closed = new AbortController();
  /** Who waits for a connection. */
  #waiting = /** @type {Set<() => void>} */ (new Set());
  /** @type {Session | undefined} */
  #session;
  /** @type {Map<Submission, Held>} */
  #held = new Map();

  /** Whether it was said that cancels are not heard. */
  #deaf = false;

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
    if (this.#stop.signal.aborted) return;
    // Stopped: the connection stays, for the results that are still to come.
    await Promise.race([this.#connect(host, amqplib), this.#stopped]);
  }

  stopTaking() {
    this.#stop.abort();
    this.#session?.stopConsuming();
  }

  /** @param {Submission} submission */
  started(submission) {
    const held = this.#held.get(submission);
    if (!held) return undefined;
    held.started = true;
    const told = held.deliveries[0]?.session.publish(this.#message(submission, 'started'));
    told?.catch(() => {});
    // Somebody had it before, and it may be what ended them. The server counts that, if it hears of every start.
    return submission.redelivered ? told : undefined;
  }

  /** @param {[Submission, number][]} batch */
  async progress(batch) {
    const told = batch.map(([submission, progress]) => {
      return this.#held.get(submission)?.deliveries[0]?.session.publish(submission.message(soFar(progress)));
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
    held.ends = true;
    const told = await this.#report(submission, verdict);
    this.#held.delete(submission);
    if (!told) return 'lost';
    for (const { session, message } of held.deliveries) session.ack(message);
    return told.success ? 'done' : 'failed';
  }

  /** @param {Submission} submission */
  async giveBack(submission) {
    const held = this.#held.get(submission);
    if (!held) return false;
    const [delivery] = held.deliveries;
    if (held.started) {
      const late = new AbortController();
      const told = delivery?.session.publish(this.#message(submission, 'returned')).catch(() => {});
      await Promise.race([told, pause(RETURN_LIMIT, late.signal).catch(() => {})]);
      late.abort();
    }
    this.#held.delete(submission);
    return delivery?.session.giveBack(delivery.message) ?? false;
  }

  /** @param {Submission} submission */
  drop(submission) {
    const held = this.#held.get(submission);
    this.#held.delete(submission);
    for (const { session, message } of held?.deliveries ?? []) session.ack(message);
  }

  async close() {
    this.#stop.abort();
    this.#closed.abort();
    // Their handlers have not noticed, and never will.
    for (const [submission, held] of [...this.#held]) if (held.unwanted) this.drop(submission);
    this.#wake();
    await this.#session?.close();
  }

  /**
   * Keeps a connection, also when no more is taken.
   *
   * @param {import('./run.js').Host} host
   * @param {import('./rabbitmq-session.js').Amqplib} amqplib
   */
  async #connect(host, amqplib) {
    const backoff = new Backoff();
    let welcome = false;
    for (;;) {
      const session = this.#begin(host);
      try {
        const deliver = (/** @type {import('amqplib').ConsumeMessage} */ message) => this.#deliver(host, session, message);
        const deaf = await session.open(amqplib, deliver, (text) => this.#heed(host, text));
        if (deaf && !this.#deaf) {
          this.#logger.warn('it is not heard here if a task is cancelled while it runs', { error: said(deaf) });
          this.#deaf = true;
        }
        welcome = true;
        this.#outage.worked();
        this.#wake();
        const opened = performance.now();
        const error = await session.lost;
        if (this.#closed.signal.aborted) return;
        this.#outage.failed(error);
        if (performance.now() - opened >= GOOD) backoff.reset();
      } catch (error) {
        if (this.#closed.signal.aborted) return;
        if (!welcome && isHopeless(error)) throw error;
        this.#outage.failed(error);
      }
      await pause(backoff.next(), this.#closed.signal).catch(() => {});
      if (this.#closed.signal.aborted) return;
    }
  }

  /**
   * Tells a result over one connection or the next, until the broker has it. Brings what it has, or nothing if the worker
   * ended before.
   *
   * @param {Submission} submission
   * @param {import('./outcomes.js').Verdict} verdict
   */
  async #report(submission, verdict) {
    let told = verdict;
    while (!this.#closed.signal.aborted) {
      const session = this.#session;
      if (!session?.isOpen) {
        await new Promise((/** @type {(value: void) => void} */ resolve) => this.#waiting.add(resolve));
        continue;
      }
      try {
        if (told.progress !== undefined) await session.publish(submission.message(soFar(told.progress)));
        await session.publish(submission.message(told.data));
        return told;
      } catch (error) {
        // Else the connection is lost.
        if (!(error instanceof TooLarge)) continue;
        // Without an end the task would be handed out again, and end here again.
        this.#logger.warn('the broker does not take the result', { taskId: submission.taskId, reason: error.message });
        told = unwanted(`the broker did not take the worker's result: ${error.message}`);
      }
    }
    return undefined;
  }

  #wake() {
    for (const resolve of this.#waiting) resolve();
    this.#waiting.clear();
  }

  /**
   * @param {Submission} submission
   * @param {'started' | 'returned'} messageType
   */
  #message(submission, messageType) {
    return submission.message(JSON.stringify({ messageType, hostName: this.#settings.hostName }));
  }

  /**
   * A session whose tasks are lost when it is, but for those that have a result.
   *
   * @param {import('./run.js').Host} host
   */
  #begin(host) {
    const session = new Session(this.#settings);
    this.#session = session;
    if (this.#stop.signal.aborted) session.stopConsuming();
    void session.lost.then(() => {
      for (const [submission, held] of [...this.#held]) {
        if (held.ends || held.deliveries[0]?.session !== session) continue;
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
      const delivery = { session, message };
      // Handed out again after the connection was lost, and its result is on its way.
      const ended = submission.redelivered && this.#ending(submission);
      if (ended) return void ended.deliveries.push(delivery);
      if (submission.deadline) submission.timeout = Math.max(0, submission.deadline.getTime() - Date.now());
      this.#held.set(submission, { deliveries: [delivery], started: false, ends: false, unwanted: false });
      host.deliver(submission);
    } catch (error) {
      // There is nobody to tell: it goes where the queue's dead letters go, and into the log.
      const fields = { error: said(error), message: text.slice(0, 500) };
      this.#logger.error('a message is not a submission; it is rejected', fields);
      session.reject(message);
    }
  }

  /**
   * Stops what nobody wants any more, as it was published before. What has a result is told all the same.
   *
   * @param {import('./run.js').Host} host
   * @param {string} text
   */
  #heed(host, text) {
    /** @type {Map<unknown, { outcome: string, revision: number }>} */
    const told = new Map(outcomes(text).map((outcome) => [outcome.taskId, outcome]));
    for (const [submission, held] of [...this.#held]) {
      const { outcome, revision } = told.get(submission.taskId) ?? { outcome: '', revision: 0 };
      const why = ENDS[outcome];
      if (!why || !(submission.revision < revision) || held.ends || held.unwanted) continue;
      held.unwanted = true;
      host.interrupt(submission, why);
    }
  }

  /**
   * The same task, if it has a result that is not told yet.
   *
   * @param {Submission} submission
   */
  #ending({ taskId, attempt }) {
    for (const [other, held] of this.#held) {
      if (held.ends && other.taskId === taskId && other.attempt === attempt) return held;
    }
    return undefined;
  }
}

/**
 * What a message says of tasks; nothing if it is of a version that says more than is understood here.
 *
 * @param {string} text
 * @returns {{ taskId: string, outcome: string, revision: number }[]}
 */
function outcomes(text) {
  try {
    const told = JSON.parse(text)?.outcomes;
    return Array.isArray(told) ? told.filter((outcome) => outcome instanceof Object) : [];
  } catch {
    return [];
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
