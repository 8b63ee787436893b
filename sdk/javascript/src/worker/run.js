/**
 * One run of a worker: what it takes it does, and when told to stop it loses nothing.
 *
 * Only here handlers are started and ended. How tasks come and how results are told is the transport's part.
 */

import { onAbort } from '../abort.js';
import { Backoff, pause } from '../backoff.js';
import { message } from './log.js';
import { described, failure, failureOf, Interrupted, late, success, TryAgain } from './outcomes.js';
import { Progress } from './progress.js';

/** @typedef {import('./submission.js').Submission} Submission */

/**
 * How tasks come and results go.
 *
 * @typedef {object} Transport
 * @property {(host: Host) => Promise<void>} take hands tasks to the host until told to stop; fails if it never will work
 * @property {() => void} stopTaking
 * @property {(submission: Submission) => Promise<void> | undefined} started tells that a task begins; what comes back is to
 *   be waited for before it does
 * @property {(batch: [Submission, number][]) => Promise<void>} progress
 * @property {(submission: Submission, verdict: import('./outcomes.js').Verdict) => Promise<'done' | 'failed' | 'lost'>}
 *   finish resolves when the other side has it for good; `lost` if it was not wanted
 * @property {(submission: Submission) => Promise<boolean>} giveBack whether it was still ours to give
 * @property {(submission: Submission) => void} drop nobody works any more on a task that was interrupted
 * @property {() => Promise<void>} close
 * @property {boolean} isConnected
 */

/**
 * What a transport may ask of a run.
 *
 * @typedef {object} Host
 * @property {() => Promise<number>} room waits until tasks can be started, and says how many; 0 if no more are wanted
 * @property {(submission: Submission) => void} deliver
 * @property {(submission: Submission, why: import('../../types/worker.js').InterruptedBecause) => void} interrupt it is
 *   no longer ours
 */

// Together with the default grace period, all of this fits into the 30 s that Kubernetes gives.

/** How long handlers may take to notice that they are to stop, at the end of the grace period. */
const ABORT_LIMIT = 3_000;

/** How long a handler that ran out of time may take to notice; then its failure is told without it. */
const LATE_LIMIT = 5_000;

/** How long a task that is to be tried again is kept, the first time. */
const AGAIN = 1_000;

/** The longest that a timer takes. */
const LONGEST = 2 ** 31 - 1;

/** Milliseconds that nobody lives to see, nor dates can be reckoned with. */
const FOR_EVER = 1e13;

/** How long to try to tell the last results and to give tasks back. */
const FLUSH_LIMIT = 3_000;

/** The same when there is no time at all. */
const NOW_LIMIT = 1_000;

/**
 * A task that a handler has. `gone`: somebody else's by now. `stopped`: will be given back. `ended`: its handler is done.
 * `late`: its time is over.
 *
 * @typedef {{ controller: AbortController, state: 'running' | 'gone' | 'stopped' | 'ended', late: boolean,
 *   deadline: Date | undefined, handled: Promise<void> }} Job
 */

export class Run {
  #options;
  #handler;
  #transport;
  /** @type {Map<Submission, Job>} */
  #jobs = new Map();
  /** Came while every slot was still taken by handlers that did not notice that they lost their tasks. */
  #waiting = /** @type {Submission[]} */ ([]);
  /** @type {Progress<Submission>} */
  #progress;
  #again = new Backoff(AGAIN);
  #stop = new AbortController();
  #now = new AbortController();
  /** No more tasks are wanted. */
  #full = false;
  /** How many tasks are on their way back. */
  #returning = 0;
  #report = { done: 0, failed: 0, returned: 0, lost: 0, unsent: 0 };
  /** Called whenever something changed that somebody may wait for. */
  #watchers = /** @type {Set<() => void>} */ (new Set());
  /** @type {NodeJS.Timeout | undefined} */
  #idle;

  /**
   * @param {import('./worker.js').Settings} options
   * @param {import('../../types/worker.js').Handler<any, any>} handler
   * @param {Transport} transport
   */
  constructor(options, handler, transport) {
    this.#options = options;
    this.#handler = handler;
    this.#transport = transport;
    this.#progress = new Progress((batch) => transport.progress(batch));
  }

  get isReady() {
    return this.#transport.isConnected && !this.#full;
  }

  /** Takes nothing more, and ends when what there is has ended. A second time, or with `now`, everything is given back. */
  stop({ now = this.#stop.signal.aborted } = {}) {
    this.#stop.abort();
    this.#takeNoMore();
    if (now) this.#now.abort();
    this.#changed();
  }

  async run() {
    this.#startIdling();
    const taking = this.#transport.take({
      room: () => this.#room(),
      deliver: (submission) => this.#deliver(submission),
      interrupt: (submission, why) => this.#interrupt(submission, why),
    });
    try {
      await Promise.race([taking, this.#until(() => this.#stop.signal.aborted)]);
      // Where no more is taken because enough came, there is no hurry.
      await this.#until(() => this.#held() === 0 || this.#stop.signal.aborted);
      this.#stop.abort();
      await Promise.all([taking, this.#drain()]);
      // The last claim may have brought something.
      await this.#patiently(0, () => this.#returning === 0);
      // What becomes of the rest when the connection goes is nobody's to know.
      return { ...this.#report };
    } finally {
      clearTimeout(this.#idle);
      this.#progress.close();
      await this.#transport.close();
    }
  }

  async #room() {
    await this.#until(() => this.#full || this.#free() > 0);
    if (this.#full) return 0;
    return this.#options.once ? 1 : this.#free();
  }

  #free() {
    return this.#options.concurrency - this.#jobs.size - this.#waiting.length;
  }

  /** @param {Submission} submission */
  #deliver(submission) {
    if (this.#full) return void this.#giveBack(submission);
    clearTimeout(this.#idle);
    if (this.#options.once) this.#takeNoMore();
    if (this.#jobs.size < this.#options.concurrency) this.#start(submission);
    else this.#waiting.push(submission);
  }

  /** @param {Submission} submission */
  #start(submission) {
    /** @type {Job} */
    const job = {
      controller: new AbortController(), state: 'running', late: false, deadline: submission.deadline,
      handled: Promise.resolve(),
    };
    this.#jobs.set(submission, job);
    const work = this.#attempt(submission, job);
    job.handled = work.then(() => {});
    void work.then((verdict) => this.#complete(submission, job, verdict)).finally(() => this.#release(submission));
  }

  /**
   * Runs the handler as soon as it may begin, and for no longer than it may. Never fails.
   *
   * @param {Submission} submission
   * @param {Job} job
   */
  async #attempt(submission, job) {
    const beginning = this.#transport.started(submission);
    // Lost, or to be stopped: whoever said so does the rest.
    if (beginning && !(await this.#begins(beginning))) return new TryAgain('its start could not be reported');
    if (job.state !== 'running') return new TryAgain('it is not wanted any more');
    const limit = Math.min(submission.timeout ?? FOR_EVER, this.#options.timeout ?? FOR_EVER);
    if (limit >= FOR_EVER) return this.#work(submission, job);
    job.deadline = new Date(Math.min(Date.now() + limit, submission.deadline?.getTime() ?? FOR_EVER));
    const over = new AbortController();
    const verdict = await Promise.race([this.#work(submission, job), this.#alarm(submission, job, limit, over.signal)]);
    over.abort();
    return job.late ? late() : verdict;
  }

  /**
   * Waits until a task may begin. False if it may not, or if the worker is to stop.
   *
   * @param {Promise<void>} beginning
   * @returns {Promise<boolean>}
   */
  async #begins(beginning) {
    let unlisten = () => {};
    const stopped = new Promise((/** @type {(begins: boolean) => void} */ resolve) => {
      unlisten = onAbort(this.#stop.signal, () => resolve(false));
    });
    const begins = await Promise.race([beginning.then(() => true, () => false), stopped]);
    unlisten();
    return begins;
  }

  /**
   * Tells the handler to stop when its time is over, and has a failure for one that does not notice.
   *
   * @param {Submission} submission
   * @param {Job} job
   * @param {number} limit
   * @param {AbortSignal} over
   */
  async #alarm({ taskId }, job, limit, over) {
    for (let left = limit; left > 0; left -= LONGEST) await pause(Math.min(left, LONGEST), over);
    // One that is lost or stopped has been told already.
    if (job.state === 'running') {
      this.#options.logger.info('told to stop working on the task: it ran for longer than it may', { taskId });
      job.late = true;
      job.controller.abort(new Interrupted('cancelled'));
    }
    await pause(job.late ? LATE_LIMIT : LONGEST, over);
    this.#options.logger.warn('a handler does not stop, and is left alone', { taskId });
    return late();
  }

  /**
   * Runs the handler. Never fails: whatever goes wrong is how the task ended.
   *
   * @param {Submission} submission
   * @param {Job} job
   */
  async #work(submission, job) {
    const { parse, stringify } = this.#options;
    // Trying again makes neither a body nor a result any better.
    let errorKind = /** @type {string | undefined} */ ('body');
    try {
      const body = submission.body(parse);
      errorKind = undefined;
      const result = await this.#handler(body, this.#context(submission, job));
      errorKind = 'result';
      return success(stringify(result));
    } catch (error) {
      if (errorKind) return failure(described(error), { retryable: false, errorKind });
      return error instanceof TryAgain ? error : failureOf(error);
    }
  }

  /**
   * @param {Submission} submission
   * @param {Job} job
   * @returns {import('../../types/worker.js').Context}
   */
  #context(submission, job) {
    const { taskId, attempt, correlationId, traceparent, tracestate, redelivered } = submission;
    const { deadline, controller: { signal } } = job;
    const progress = (/** @type {number} */ percent) => {
      if (job.state === 'running') this.#progress.put(submission, percent);
    };
    const known = { taskId, attempt, correlationId, traceparent, tracestate, redelivered, deadline };
    const context = { ...known, signal, progress, rawBody: '' };
    return Object.defineProperty(context, 'rawBody', { get: () => submission.rawBody, enumerable: false });
  }

  /**
   * A handler has ended.
   *
   * @param {Submission} submission
   * @param {Job} job
   * @param {import('./outcomes.js').Verdict | TryAgain} verdict
   */
  async #complete(submission, job, verdict) {
    const progress = this.#progress.forget(submission);
    if (job.state === 'gone') {
      this.#report.lost += 1;
      this.#transport.drop(submission);
    }
    // Stopped: it is given back by whoever stopped it.
    if (job.state !== 'running') return;
    job.state = 'ended';
    const { taskId } = submission;
    if (verdict instanceof TryAgain) {
      this.#options.logger.info('the handler gives the task back', { taskId, reason: described(verdict) });
      // Not at once: the next to have it may well be this worker.
      await pause(this.#again.next(), this.#stop.signal).catch(() => {});
      await this.#giveBack(submission);
      return;
    }
    this.#again.reset();
    const told = verdict.success ? verdict : { ...verdict, progress };
    const ending = await this.#transport.finish(submission, told);
    if (ending === 'lost') this.#options.logger.info('the result came too late', { taskId });
    this.#report[ending] += 1;
  }

  /** @param {Submission} submission */
  #release(submission) {
    this.#jobs.delete(submission);
    const next = this.#waiting.shift();
    if (next) this.#start(next);
    if (this.#jobs.size === 0) this.#startIdling();
    this.#changed();
  }

  /**
   * @param {Submission} submission
   * @param {import('../../types/worker.js').InterruptedBecause} why
   */
  #interrupt(submission, why) {
    const waiting = this.#waiting.indexOf(submission);
    if (waiting >= 0) {
      this.#waiting.splice(waiting, 1);
      this.#transport.drop(submission);
    }
    const job = this.#jobs.get(submission);
    if (job?.state !== 'running') return;
    this.#options.logger.info('told to stop working on the task', { taskId: submission.taskId, why });
    job.state = 'gone';
    this.#progress.forget(submission);
    job.controller.abort(new Interrupted(why));
    this.#changed();
  }

  /** @param {Submission} submission */
  async #giveBack(submission) {
    this.#returning += 1;
    const given = await this.#transport.giveBack(submission);
    this.#returning -= 1;
    this.#report[given ? 'returned' : 'lost'] += 1;
    this.#changed();
  }

  #takeNoMore() {
    if (this.#full) return;
    this.#full = true;
    clearTimeout(this.#idle);
    this.#transport.stopTaking();
    this.#changed();
  }

  /** Lets the handlers finish within the grace period, then tells them to stop, then gives their tasks back. */
  async #drain() {
    for (const submission of this.#waiting.splice(0)) void this.#giveBack(submission);
    const { grace, interruptible } = this.#options;
    await this.#atMost(interruptible ? 0 : grace, () => this.#held() === 0);
    const running = [...this.#jobs].filter(([, job]) => job.state === 'running');
    if (running.length > 0) {
      this.#options.logger.info('there is no more time: tasks that still run are given back', { tasks: running.length });
    }
    const abortLimit = interruptible ? Math.max(grace, ABORT_LIMIT) : ABORT_LIMIT;
    const given = running.map(async ([submission, job]) => {
      job.state = 'stopped';
      this.#progress.forget(submission);
      job.controller.abort(new Interrupted('stopping'));
      await Promise.race([job.handled, this.#atMost(abortLimit, () => false)]);
      void this.#giveBack(submission);
    });
    await Promise.all(given);
    const isUntold = (/** @type {Job} */ job) => job.state === 'ended';
    await this.#patiently(FLUSH_LIMIT, () => this.#returning === 0 && ![...this.#jobs.values()].some(isUntold));
    this.#report.unsent = [...this.#jobs.values()].filter(isUntold).length;
    for (const job of this.#jobs.values()) {
      if (job.state !== 'gone') continue;
      // Taken away, and its handler never noticed.
      job.state = 'stopped';
      this.#report.lost += 1;
    }
    if (this.#report.unsent > 0) {
      this.#options.logger.error('results could not be sent in time; their tasks will be handed out again', {
        tasks: this.#report.unsent,
      });
    }
  }

  /** How many tasks are ours: running, or with a result that is not told yet. */
  #held() {
    return [...this.#jobs.values()].filter((job) => job.state !== 'gone').length + this.#waiting.length;
  }

  #startIdling() {
    const { idle } = this.#options;
    if (idle === undefined || this.#full) return;
    this.#idle = setTimeout(() => {
      this.#options.logger.info('nothing came for a while: the worker ends');
      this.stop();
    }, idle);
  }

  /**
   * Waits until something is so.
   *
   * @param {() => boolean} condition
   * @returns {Promise<void>}
   */
  #until(condition) {
    return new Promise((resolve) => {
      const look = () => {
        if (!condition()) return;
        this.#watchers.delete(look);
        resolve();
      };
      this.#watchers.add(look);
      look();
    });
  }

  /**
   * The same, but not for longer than this, nor when there is no time at all.
   *
   * @param {number} millis
   * @param {() => boolean} condition
   */
  async #atMost(millis, condition) {
    const enough = new AbortController();
    const hurry = () => enough.abort();
    const unlisten = onAbort(this.#now.signal, hurry);
    const limit = pause(Math.min(millis, LONGEST), enough.signal).catch(() => {});
    await Promise.race([this.#until(condition), limit]);
    unlisten();
    hurry();
  }

  /**
   * The same, but with a moment even when there is no time: whatever is to be told must have a chance.
   *
   * @param {number} millis
   * @param {() => boolean} condition
   */
  async #patiently(millis, condition) {
    await this.#atMost(millis, condition);
    if (condition()) return;
    const enough = new AbortController();
    await Promise.race([this.#until(condition), pause(NOW_LIMIT, enough.signal).catch(() => {})]);
    enough.abort();
  }

  #changed() {
    for (const look of [...this.#watchers]) look();
  }
}

/**
 * Keeps the process alive when a handler leaves a promise behind that fails. Whoever calls what comes back ends that.
 *
 * @param {import('../../types/worker.js').Logger} logger
 */
export function surviveRejections(logger) {
  const told = (/** @type {unknown} */ reason) => {
    const stack = reason instanceof Error ? reason.stack : undefined;
    logger.error('a promise failed that nobody waited for', { error: message(reason), stack });
  };
  process.on('unhandledRejection', told);
  return () => process.off('unhandledRejection', told);
}
