/**
 * Tasks over HTTP: claimed under a lease that heartbeats keep, told in calls that carry many results at once.
 *
 * What is told again after a call without an answer may have arrived the first time; the attempt's number keeps that from
 * doing harm. docs/guides/worker-http.md describes the protocol.
 */

import { onAbort } from '../abort.js';
import { Backoff, pause } from '../backoff.js';
import { written } from '../duration.js';
import { RelaisError } from '../error.js';
import { Http } from '../http.js';
import { elements, member } from '../json.js';
import { Outage } from './log.js';
import { soFar, unwanted } from './outcomes.js';
import { Submission } from './submission.js';

/** How long a claim waits at the server for a first task. */
const CLAIM_WAIT = 30_000;

/** An answer without tasks that comes sooner than this is not a long poll that ran out. */
const EARLY = 1_000;

/** How long a claim on its way is heard out at the end. Where there are tasks, it answers in far less. */
const HEAR_OUT = 500;

/** The most that one call can carry. */
const MOST = 1000;

/** About as many characters as one call carries, so that many results together are not refused for their size. */
const BATCH_SIZE = 256 * 1024;

/** @type {Record<string, import('../../types/worker.js').InterruptedBecause>} */
const ENDS = { cancelled: 'cancelled', lost: 'lost', ended: 'lost', notFound: 'lost' };

/**
 * A result on its way. `sentBefore`: a call with it had no answer, and may have arrived. `substitute`: it stands for a
 * result that the server did not want.
 *
 * @typedef {{ submission: Submission, verdict: import('./outcomes.js').Verdict, sentBefore: boolean,
 *   substitute: boolean, complete: (ending: Ending) => void }} QueuedReport
 *
 * @typedef {'done' | 'failed' | 'lost'} Ending
 */

/** @implements {Transport} @typedef {import('./run.js').Transport} Transport */
export class HttpTransport {
  #http;
  #service;
  #lease;
  #hostName;
  #logger;
  #outage;
  #welcome = false;
  #stop = new AbortController();
  #closed = new AbortController();
  /** @type {import('./run.js').Host | undefined} */
  #host;
  /** @type {Set<Submission>} */
  #held = new Set();
  /** @type {QueuedReport[]} */
  #results = [];
  #reporting = false;
  /** How many of the next results go alone, because one of them made the server refuse the whole call. */
  #alone = 0;

  /** @param {import('./worker.js').Settings} settings */
  constructor({ url, clientId = '', clientSecret = '', service, lease, hostName, logger }) {
    this.#http = new Http({ url, clientId, clientSecret });
    this.#service = service;
    this.#lease = lease;
    this.#hostName = hostName;
    this.#logger = logger;
    this.#outage = new Outage(logger, 'the server');
  }

  get isConnected() {
    return this.#welcome && this.#outage.isOver;
  }

  /** @param {import('./run.js').Host} host */
  async take(host) {
    this.#host = host;
    void this.#keepLeases();
    const backoff = new Backoff();
    for (;;) {
      const max = await host.room();
      if (max === 0 || this.#stop.signal.aborted) return;
      const asked = performance.now();
      try {
        const tasks = await this.#claim(Math.min(max, MOST));
        this.#welcome = true;
        this.#outage.worked();
        for (const text of tasks) {
          const submission = new Submission(text);
          this.#held.add(submission);
          host.deliver(submission);
        }
        if (tasks.length > 0 || performance.now() - asked >= EARLY) {
          backoff.reset();
          continue;
        }
      } catch (error) {
        if (this.#stop.signal.aborted) return;
        if (!this.#welcome && !(error instanceof RelaisError && error.isPassing)) throw error;
        this.#outage.failed(error);
      }
      await pause(backoff.next(), this.#stop.signal).catch(() => {});
    }
  }

  stopTaking() {
    this.#stop.abort();
  }

  /** The claim has said which host it is; nothing else need be said. */
  started() {
    return undefined;
  }

  /** @param {[Submission, number][]} batch */
  async progress(batch) {
    const held = batch.filter(([submission]) => this.#held.has(submission)).slice(0, MOST);
    if (held.length === 0) return;
    const messages = held.map(([submission, progress]) => {
      return submission.message(soFar(progress));
    });
    const outcomes = await this.#post('messages', `{"messages":[${messages.join(',')}]}`, held.length);
    this.#heed(held.map(([submission]) => submission), outcomes);
  }

  /**
   * @param {Submission} submission
   * @param {import('./outcomes.js').Verdict} verdict
   * @returns {Promise<Ending>}
   */
  finish(submission, verdict) {
    return new Promise((resolve) => {
      const complete = (/** @type {Ending} */ ending) => {
        this.#held.delete(submission);
        resolve(ending);
      };
      if (verdict.progress !== undefined) {
        const reached = { success: true, data: soFar(verdict.progress) };
        this.#results.push({ submission, verdict: reached, sentBefore: false, substitute: true, complete: () => {} });
      }
      this.#results.push({ submission, verdict, sentBefore: false, substitute: false, complete });
      if (!this.#reporting) void this.#reportAll();
    });
  }

  /** @param {Submission} submission */
  async giveBack(submission) {
    this.#held.delete(submission);
    const backoff = new Backoff();
    let sentBefore = false;
    for (;;) {
      try {
        const outcomes = await this.#post('returns', JSON.stringify({ tasks: [key(submission)] }), 1);
        this.#outage.worked();
        const outcome = outcomes[0]?.outcome;
        // Lost, at the second try: given back by the first one, which had no answer.
        return outcome === 'accepted' || (sentBefore && outcome === 'lost');
      } catch (error) {
        if (this.#closed.signal.aborted) return false;
        sentBefore = true;
        this.#outage.failed(error);
        await pause(backoff.next(), this.#closed.signal).catch(() => {});
      }
    }
  }

  /** The server knows. */
  drop() {}

  async close() {
    this.#stop.abort();
    this.#closed.abort();
  }

  /**
   * Asks for tasks. The first time without waiting, so that it is soon known whether the server lets us work.
   *
   * @param {number} max
   */
  async #claim(max) {
    const wait = this.#welcome ? CLAIM_WAIT : 0;
    const body = { max, wait: written(wait), lease: written(this.#lease), hostName: this.#hostName };
    const hangUp = new AbortController();
    // What is on its way is heard out; then there is nothing to be had, and nothing is lost by hanging up.
    /** @type {NodeJS.Timeout | undefined} */
    let timer;
    // Once more after everything that has arrived meanwhile.
    const hangUpSoon = () => (timer = setTimeout(() => setImmediate(() => hangUp.abort()), HEAR_OUT));
    const unlisten = onAbort(this.#stop.signal, hangUpSoon);
    try {
      const path = ['services', this.#service, 'claims'];
      const options = { body: JSON.stringify(body), patience: wait, signal: hangUp.signal };
      const { text } = await this.#http.call('POST', path, options);
      return elements(member(text, 'data', 'tasks') ?? '[]');
    } finally {
      clearTimeout(timer);
      unlisten();
    }
  }

  /** Three heartbeats in the time of a lease: two may fail before anything happens. */
  async #keepLeases() {
    const period = this.#lease / 3;
    const backoff = new Backoff();
    let wait = period;
    for (;;) {
      await pause(wait, this.#closed.signal).catch(() => {});
      if (this.#closed.signal.aborted) return;
      try {
        await this.#renew();
        if (this.#held.size > 0) this.#outage.worked();
        backoff.reset();
        wait = period;
      } catch (error) {
        this.#outage.failed(error);
        // Sooner than the next regular one: the lease runs.
        wait = Math.min(backoff.next(), period);
      }
    }
  }

  async #renew() {
    const held = [...this.#held];
    // A call that hangs must leave time for another one before the lease is over.
    const timeout = Math.min(Math.max(this.#lease / 3, 1_000), 30_000);
    for (let start = 0; start < held.length; start += MOST) {
      const some = held.slice(start, start + MOST);
      const body = JSON.stringify({ tasks: some.map(key), lease: written(this.#lease) });
      this.#heed(some, await this.#post('heartbeats', body, some.length, timeout));
    }
  }

  /**
   * Stops what the server no longer wants of this worker.
   *
   * @param {Submission[]} submissions
   * @param {Outcome[]} outcomes
   */
  #heed(submissions, outcomes) {
    submissions.forEach((submission, index) => {
      const why = ENDS[outcomes[index]?.outcome ?? ''];
      // One that has its result is settled by the answer to that.
      if (!why || this.#results.some((report) => report.submission === submission)) return;
      this.#held.delete(submission);
      this.#host?.interrupt(submission, why);
    });
  }

  /** Tells results, one call at a time; what comes meanwhile goes together in the next. */
  async #reportAll() {
    this.#reporting = true;
    const backoff = new Backoff();
    while (this.#results.length > 0 && !this.#closed.signal.aborted) {
      const batch = this.#nextBatch();
      const messages = batch.map(({ submission, verdict }) => submission.message(verdict.data));
      try {
        const outcomes = await this.#post('messages', `{"messages":[${messages.join(',')}]}`, batch.length);
        this.#outage.worked();
        backoff.reset();
        this.#results.splice(0, batch.length);
        batch.forEach((report, index) => this.#complete(report, outcomes[index] ?? { outcome: 'rejected' }));
        this.#alone = Math.max(0, this.#alone - batch.length);
      } catch (error) {
        const [first] = batch;
        if (!(error instanceof RelaisError) || ![400, 413, 422].includes(error.status ?? 0)) {
          for (const report of batch) report.sentBefore = true;
          this.#outage.failed(error);
          await pause(backoff.next(), this.#closed.signal).catch(() => {});
        } else if (batch.length > 1) {
          this.#alone = batch.length;
        } else if (first) {
          this.#results.shift();
          this.#unwanted(first, error.message);
        }
      }
    }
    this.#reporting = false;
  }

  /** What goes into one call. It stays in the queue until it is told. */
  #nextBatch() {
    if (this.#alone > 0) return this.#results.slice(0, 1);
    let size = 0;
    const most = this.#results.findIndex(({ verdict }, index) => {
      size += verdict.data.length;
      return index > 0 && size > BATCH_SIZE;
    });
    return this.#results.slice(0, Math.min(most < 0 ? MOST : most, MOST));
  }

  /**
   * @param {QueuedReport} report
   * @param {Outcome} outcome
   */
  #complete(report, { outcome, reason }) {
    if (outcome === 'rejected') return this.#unwanted(report, reason ?? 'it was not understood');
    // Ended by this very message: the first call with it arrived, only its answer did not.
    const told = outcome === 'accepted' || outcome === 'unchanged' || (outcome === 'ended' && report.sentBefore);
    report.complete(told ? (report.verdict.success ? 'done' : 'failed') : 'lost');
  }

  /**
   * A result that the server will never take, e.g. because of its size, becomes a failure that says so: without an end the
   * task would be handed out again, and end here again.
   *
   * @param {QueuedReport} report
   * @param {string} reason
   */
  #unwanted(report, reason) {
    const { taskId } = report.submission;
    if (report.substitute) {
      this.#logger.error('the server takes neither the result nor its failure', { taskId, reason });
      return report.complete('lost');
    }
    this.#logger.warn('the server does not take the result', { taskId, reason });
    const verdict = unwanted(`the server did not take the worker's result: ${reason}`);
    this.#results.unshift({ ...report, verdict, substitute: true });
  }

  /**
   * @param {string} verb
   * @param {string} body
   * @param {number} asked
   * @param {number} [timeout]
   * @returns {Promise<Outcome[]>}
   *
   * @typedef {{ outcome: string, reason?: string }} Outcome
   */
  async #post(verb, body, asked, timeout) {
    const { signal } = this.#closed;
    const { data } = await this.#http.call('POST', ['services', this.#service, verb], { body, timeout, signal });
    // They are matched by their order: with one missing, all would be wrong.
    if (data?.outcomes?.length !== asked) {
      throw new RelaisError({ description: `the server answered ${data?.outcomes?.length} outcomes to ${asked}` });
    }
    return data.outcomes;
  }
}

/** @param {Submission} submission */
function key({ taskId, attempt }) {
  return { taskId, attempt };
}
