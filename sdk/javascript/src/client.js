/**
 * The consumer's side: submit tasks, follow them, cancel them. And the emitter's: notifications, audiences, tickets.
 *
 * Needs `fetch` and nothing else, so that it runs in Node, Deno, Bun, edge runtimes and browsers alike.
 */

import { Backoff, pause } from './backoff.js';
import { milliseconds, written } from './duration.js';
import { RelaisError } from './error.js';
import { explain, Http, wasNotSent } from './http.js';
import { elements, member } from './json.js';
import { events } from './sse.js';

/** @typedef {import('../types/index.js').Task} Task */

/** How long one long poll waits; more than that is several of them. */
const LONGEST_WAIT = 30_000;

/** What one batch may have. */
const LARGEST_BATCH = 1000;

const FINAL = new Set(['SUCCESS', 'FAILURE', 'CANCELLED']);

export class Client {
  #http;
  #retries;
  #parse;
  #stringify;

  /** @param {import('../types/index.js').ClientOptions} options */
  constructor({ timeout = 30_000, retries = 5, parse, stringify = JSON.stringify, ...server }) {
    this.#http = new Http({ ...server, timeout: milliseconds(timeout, 'timeout') });
    this.#retries = retries;
    this.#parse = parse;
    this.#stringify = stringify;
  }

  /**
   * @param {string} service
   * @param {any} body
   * @param {import('../types/index.js').SubmitOptions} [options]
   */
  async submit(service, body, { idempotencyKey = uniqueKey(), traceparent, signal, ...more } = {}) {
    // With a key, repeating makes no second task, whatever became of the first try.
    const headers = {
      ...(idempotencyKey !== false && { 'Idempotency-Key': idempotencyKey }),
      ...(traceparent !== undefined && { traceparent }),
    };
    const options = { body: this.#submission({ body, ...more }), headers, signal };
    return (await this.#call('POST', ['services', service, 'tasks'], options, idempotencyKey !== false)).data;
  }

  /**
   * @param {string} service
   * @param {Iterable<import('../types/index.js').Submission>} tasks
   * @param {{ signal?: AbortSignal }} [options]
   */
  async submitMany(service, tasks, { signal } = {}) {
    const given = Array.from(tasks);
    const texts = given.map((task) => this.#submission(task));
    if (texts.length > LARGEST_BATCH && given.some((task) => task.ref !== undefined)) {
      throw new RangeError(`tasks that know each other by ref must fit one call: ${LARGEST_BATCH} tasks`);
    }
    const answers = [];
    for (let start = 0; start < texts.length; start += LARGEST_BATCH) {
      const body = `{"tasks":[${texts.slice(start, start + LARGEST_BATCH).join(',')}]}`;
      const { data } = await this.#call('POST', ['services', service, 'tasks', 'batch'], { body, signal }, false);
      answers.push(...data.tasks);
    }
    return answers.map(({ status, data, error }) => {
      return status === 'success' ? data : new RelaisError({ ...error, status: Math.floor(error.number / 1000) });
    });
  }

  /**
   * @param {string} service
   * @param {string} taskId
   * @param {{ signal?: AbortSignal }} [options]
   */
  async get(service, taskId, { signal } = {}) {
    const { text } = await this.#call('GET', ['services', service, 'tasks', taskId], { signal });
    return this.#task(member(text, 'data'));
  }

  /**
   * @param {string} service
   * @param {string} taskId
   * @param {{ timeout?: number | string, signal?: AbortSignal }} [options]
   */
  async wait(service, taskId, { timeout = Infinity, signal } = {}) {
    const deadline = Date.now() + (timeout === Infinity ? Infinity : milliseconds(timeout, 'timeout'));
    for (;;) {
      const left = Math.max(0, Math.min(deadline - Date.now(), LONGEST_WAIT));
      const options = { query: { wait: written(left) }, patience: left, signal };
      const { text } = await this.#call('GET', ['services', service, 'tasks', taskId], options);
      const task = this.#task(member(text, 'data'));
      if (FINAL.has(task.status) || Date.now() >= deadline) return task;
    }
  }

  /**
   * @param {string} service
   * @param {string} taskId
   * @param {{ lastEventId?: string, signal?: AbortSignal }} [options]
   * @returns {AsyncGenerator<import('../types/index.js').TaskEvent, void, void>}
   */
  async *stream(service, taskId, { lastEventId, signal } = {}) {
    let seen = lastEventId;
    let left = this.#retries;
    const backoff = new Backoff();
    for (;;) {
      try {
        for await (const { event, id, data } of this.#events(service, taskId, seen, signal)) {
          const task = this.#task(data);
          yield { event: /** @type {'status' | 'progress' | 'position'} */ (event), id, task };
          if (FINAL.has(task.status)) return;
          seen = id;
          left = this.#retries;
          backoff.reset();
        }
        return;
      } catch (error) {
        if (!mayRepeat(error, true) || left <= 0) throw error;
        left -= 1;
        await pause(error.retryAfter ?? backoff.next(), signal);
      }
    }
  }

  /**
   * @param {string} service
   * @param {import('../types/index.js').ListOptions} [options]
   * @returns {AsyncGenerator<Task, void, void>}
   */
  async *list(service, options = {}) {
    let { cursor } = options;
    do {
      const page = await this.page(service, { ...options, cursor });
      yield* page.tasks;
      cursor = page.nextCursor;
    } while (cursor);
  }

  /**
   * @param {string} service
   * @param {import('../types/index.js').ListOptions} [options]
   */
  async page(service, { status, from, before, correlationId, parentId, pageSize, cursor, signal } = {}) {
    const parameters = {
      status: typeof status === 'string' ? status : status?.join(','),
      from: from instanceof Date ? from.toISOString() : from,
      before: before instanceof Date ? before.toISOString() : before,
      correlationId,
      parentId,
      limit: pageSize === undefined ? undefined : String(pageSize),
      cursor,
    };
    /** @type {Record<string, string>} */
    const query = {};
    for (const [name, value] of Object.entries(parameters)) {
      if (value) query[name] = value;
    }
    const { text, data } = await this.#call('GET', ['services', service, 'tasks'], { query, signal });
    const tasks = elements(member(text, 'data', 'tasks') ?? '[]').map((task) => this.#task(task));
    return { tasks, nextCursor: /** @type {string | undefined} */ (data.nextCursor ?? undefined) };
  }

  /**
   * @param {string} service
   * @param {string} taskId
   * @param {{ signal?: AbortSignal }} [options]
   */
  async cancel(service, taskId, { signal } = {}) {
    // Doing it again changes nothing, so that it may be repeated.
    const { text } = await this.#call('DELETE', ['services', service, 'tasks', taskId], { signal });
    return this.#task(member(text, 'data'));
  }

  /**
   * @param {string} service
   * @param {string} taskId
   * @param {{ signal?: AbortSignal }} [options]
   */
  async retry(service, taskId, { signal } = {}) {
    // Not repeated without an answer: it may have ended once more meanwhile.
    const { text } = await this.#call('POST', ['services', service, 'tasks', taskId, 'retry'], { signal }, false);
    return this.#task(member(text, 'data'));
  }

  /**
   * @param {import('../types/index.js').NewBatch} batch
   * @param {{ idempotencyKey?: string | false, traceparent?: string, signal?: AbortSignal }} [options]
   */
  async makeBatch({ tasks = [], ...more }, { idempotencyKey = uniqueKey(), traceparent, signal } = {}) {
    const texts = Array.from(tasks, (task) => this.#submission(task));
    const rest = JSON.stringify(more).slice(1);
    const body = rest === '}' ? `{"tasks":[${texts.join(',')}]}` : `{"tasks":[${texts.join(',')}],${rest}`;
    const headers = {
      ...(idempotencyKey !== false && { 'Idempotency-Key': idempotencyKey }),
      ...(traceparent !== undefined && { traceparent }),
    };
    return (await this.#call('POST', ['batches'], { body, headers, signal }, idempotencyKey !== false)).data;
  }

  /**
   * @param {string} batchId
   * @param {{ signal?: AbortSignal }} [options]
   */
  async batch(batchId, { signal } = {}) {
    return (await this.#call('GET', ['batches', batchId], { signal })).data;
  }

  /**
   * @param {string} batchId
   * @param {{ signal?: AbortSignal }} [options]
   */
  async closeBatch(batchId, { signal } = {}) {
    return (await this.#call('POST', ['batches', batchId, 'close'], { signal })).data;
  }

  /**
   * @param {string} batchId
   * @param {{ signal?: AbortSignal }} [options]
   */
  async cancelBatch(batchId, { signal } = {}) {
    return (await this.#call('POST', ['batches', batchId, 'cancel'], { signal })).data;
  }

  /**
   * @param {string} service
   * @param {string} taskId
   * @param {{ signal?: AbortSignal }} [options]
   */
  async callbacks(service, taskId, { signal } = {}) {
    const { data } = await this.#call('GET', ['services', service, 'tasks', taskId, 'callbacks'], { signal });
    return data.callbacks;
  }

  /** @param {{ signal?: AbortSignal }} [options] */
  async services({ signal } = {}) {
    return (await this.#call('GET', ['services'], { signal })).data.services;
  }

  /**
   * @param {string} name
   * @param {{ signal?: AbortSignal }} [options]
   */
  async service(name, { signal } = {}) {
    return (await this.#call('GET', ['services', name], { signal })).data;
  }

  /** @param {{ signal?: AbortSignal }} [options] */
  async signingSecrets({ signal } = {}) {
    return (await this.#call('GET', ['signing-secrets'], { signal })).data.secrets;
  }

  /**
   * @param {any} given
   * @param {{ idempotencyKey?: string | false, signal?: AbortSignal }} [options]
   * @returns {Promise<any>}
   */
  async notify(given, { idempotencyKey = uniqueKey(), signal } = {}) {
    /** @type {import('../types/index.js').NotificationDraft[]} */
    const messages = Array.isArray(given) ? given : [given];
    const texts = messages.map((message) => this.#message(message));
    const body = Array.isArray(given) ? `[${texts.join(',')}]` : texts.join();
    const headers = idempotencyKey === false ? undefined : { 'Idempotency-Key': idempotencyKey };
    // A message with an id of its own is stored once, too.
    const harmless = idempotencyKey !== false || messages.every(({ metadata }) => metadata?.id !== undefined);
    const { data } = await this.#call('POST', ['notifications'], { body, headers, signal }, harmless);
    return data.ids ?? data.id;
  }

  /**
   * @param {string} id
   * @param {{ signal?: AbortSignal }} [options]
   */
  async withdrawNotification(id, { signal } = {}) {
    await this.#call('DELETE', ['notifications', id], { signal });
  }

  /**
   * @param {string} id
   * @param {import('../types/index.js').NotificationDraft} message
   * @param {{ signal?: AbortSignal }} [options]
   */
  async replaceNotification(id, message, { signal } = {}) {
    // Not repeated without an answer: that could send another one.
    const options = { body: this.#message(message), signal };
    return /** @type {string} */ ((await this.#call('PUT', ['notifications', id], options, false)).data.id);
  }

  /** @param {{ limit?: number, before?: string, signal?: AbortSignal }} [options] */
  async notificationErrors({ limit, before, signal } = {}) {
    const query = { ...(limit !== undefined && { limit: String(limit) }), ...(before !== undefined && { before }) };
    return (await this.#call('GET', ['notifications', 'errors'], { query, signal })).data;
  }

  /**
   * @param {import('../types/index.js').TicketRequest} request
   * @param {{ signal?: AbortSignal }} [options]
   */
  async issueTicket({ user, audiences, ttl }, { signal } = {}) {
    const asked = { user, audiences, ttl: ttl === undefined ? undefined : written(milliseconds(ttl, 'ttl')) };
    return (await this.#call('POST', ['notifications', 'tickets'], { body: JSON.stringify(asked), signal })).data;
  }

  /**
   * @param {string} type
   * @param {string} target
   * @param {Iterable<import('../types/index.js').Member>} members
   * @param {{ signal?: AbortSignal }} [options]
   */
  async setAudience(type, target, members, { signal } = {}) {
    const body = JSON.stringify({ members: Array.from(members, named) });
    return (await this.#call('PUT', ['audiences', type, target, 'members'], { body, signal })).data;
  }

  /**
   * @param {string} type
   * @param {string} target
   * @param {Iterable<import('../types/index.js').Member>} members
   * @param {{ signal?: AbortSignal }} [options]
   */
  async addToAudience(type, target, members, { signal } = {}) {
    const body = JSON.stringify({ members: Array.from(members, named) });
    return (await this.#call('POST', ['audiences', type, target, 'members'], { body, signal })).data;
  }

  /**
   * @param {string} type
   * @param {string} target
   * @param {Iterable<import('../types/index.js').Member>} members
   * @param {{ signal?: AbortSignal }} [options]
   */
  async removeFromAudience(type, target, members, { signal } = {}) {
    const change = { joined: 0, left: 0 };
    for (const member of Array.from(members, named)) {
      const path = ['audiences', type, target, 'members', member.type, member.target];
      change.left += (await this.#call('DELETE', path, { signal })).data.left;
    }
    return change;
  }

  /**
   * @param {string} type
   * @param {string} target
   * @param {{ pageSize?: number, signal?: AbortSignal }} [options]
   * @returns {AsyncGenerator<import('../types/index.js').AudienceTarget, void, void>}
   */
  async *audienceMembers(type, target, { pageSize, signal } = {}) {
    /** @type {string | undefined} */
    let after;
    do {
      const query = {
        ...(pageSize !== undefined && { limit: String(pageSize) }),
        ...(after !== undefined && { after }),
      };
      const { data } = await this.#call('GET', ['audiences', type, target, 'members'], { query, signal });
      yield* data.members;
      after = data.next;
    } while (after !== undefined);
  }

  /**
   * A call, tried again where that is safe and likely to help.
   *
   * @param {string} method
   * @param {string[]} path
   * @param {import('./http.js').CallOptions} options
   * @param {boolean} [harmless] whether doing it twice is the same as doing it once
   */
  async #call(method, path, options, harmless = true) {
    const backoff = new Backoff();
    for (let left = this.#retries; ; left -= 1) {
      try {
        return await this.#http.call(method, path, options);
      } catch (error) {
        if (!mayRepeat(error, harmless) || left <= 0) throw error;
        await pause(error.retryAfter ?? backoff.next(), options.signal);
      }
    }
  }

  /**
   * The events of one connection. Ends in good order only when nothing will ever follow.
   *
   * @param {string} service
   * @param {string} taskId
   * @param {string | undefined} seen
   * @param {AbortSignal | undefined} signal
   */
  async *#events(service, taskId, seen, signal) {
    /** @type {Awaited<ReturnType<Http['open']>> | undefined} */
    let stream;
    try {
      const headers = { Accept: 'text/event-stream', ...(seen !== undefined && { 'Last-Event-ID': seen }) };
      stream = await this.#http.open(['services', service, 'tasks', taskId, 'events'], { headers, signal });
      if (!stream.body) return;
      yield* events(stream.body, stream.heard);
      // Ended before its time: the server stops, and another one goes on.
      throw new RelaisError({ description: 'the stream ended before the task did' });
    } catch (error) {
      throw explain(error, signal);
    } finally {
      stream?.close();
    }
  }

  /** @param {import('../types/index.js').Submission} submission */
  #submission({ body, ...more }) {
    const text = this.#stringify(body);
    if (typeof text !== 'string') throw new TypeError('the body can not be written as JSON');
    // Written piece by piece: what `stringify` wrote must reach the server as it is.
    const rest = JSON.stringify(terms(more)).slice(1);
    return rest === '}' ? `{"body":${text}}` : `{"body":${text},${rest}`;
  }

  /** @param {import('../types/index.js').NotificationDraft} message */
  #message({ payload = null, ...more }) {
    const text = this.#stringify(payload);
    if (typeof text !== 'string') throw new TypeError('the payload can not be written as JSON');
    return `{"payload":${text},${JSON.stringify(more).slice(1)}`;
  }

  /**
   * @param {string | undefined} text
   * @returns {Task}
   */
  #task(text = 'null') {
    const task = JSON.parse(text);
    const raw = () => member(text, 'response');
    Object.defineProperty(task, 'rawResponse', { get: raw });
    if (this.#parse && task.response !== undefined) task.response = this.#parse(raw() ?? 'null');
    return task;
  }
}

/**
 * What is said of a task beside its body, as the server reads it. Throws for a duration or a date that is none.
 *
 * @param {Omit<import('../types/index.js').Submission, 'body'>} given
 */
function terms({ scheduledDate, delay, expiresAfter, timeout, retry, uniqueFor, ...more }) {
  const span = (/** @type {number | string | undefined} */ duration, /** @type {string} */ name) => {
    return duration === undefined ? undefined : written(milliseconds(duration, name));
  };
  const rule = retry && typeof retry === 'object' && {
    ...retry,
    base: span(retry.base, 'retry.base'),
    cap: span(retry.cap, 'retry.cap'),
    within: span(retry.within, 'retry.within'),
  };
  return {
    ...more,
    scheduledDate: scheduledDate instanceof Date ? scheduledDate.toISOString() : scheduledDate,
    delay: span(delay, 'delay'),
    expiresAfter: span(expiresAfter, 'expiresAfter'),
    timeout: span(timeout, 'timeout'),
    retry: rule || retry,
    uniqueFor: span(uniqueFor, 'uniqueFor'),
  };
}

/**
 * A text is a user.
 *
 * @param {import('../types/index.js').Member} member
 * @returns {import('../types/index.js').AudienceTarget}
 */
function named(member) {
  const { type = 'USER', target } = typeof member === 'string' ? { target: member } : member;
  return { type, target };
}

/**
 * @param {unknown} error
 * @param {boolean} harmless
 * @returns {error is RelaisError}
 */
function mayRepeat(error, harmless) {
  if (!(error instanceof RelaisError)) return false;
  // Refused for its number: nothing was done.
  if (error.status === 429) return true;
  if (!harmless) return wasNotSent(error);
  return error.isPassing && error.status !== 500;
}

/** Nobody else's, but not a secret: chance alone will do where there is no `crypto` (Node 18). */
function uniqueKey() {
  const chance = () => Math.random().toString(36).slice(2);
  return globalThis.crypto?.randomUUID() ?? `${chance()}-${chance()}-${chance()}`;
}
