/**
 * One call to a server: address, credentials, deadline, envelope. Does not try again: its callers know what is safe.
 */

import { onAbort } from './abort.js';
import { RelaisError } from './error.js';

/** Of these errors it is certain that the server got nothing. */
const NOT_SENT = new Set(['ECONNREFUSED', 'ENOTFOUND', 'EAI_AGAIN', 'EHOSTUNREACH', 'ENETUNREACH']);

export class Http {
  #base;
  #authorization;
  #fetch;
  #timeout;

  /** @param {{ url: string, clientId: string, clientSecret: string, fetch?: typeof globalThis.fetch, timeout?: number }} options */
  constructor({ url, clientId, clientSecret, fetch = globalThis.fetch, timeout = 30_000 }) {
    for (const [name, value] of Object.entries({ url, clientId, clientSecret })) {
      if (typeof value !== 'string' || value === '') throw new TypeError(`${name} must be a text that is not empty`);
    }
    const { protocol, username } = new URL(url);
    if (protocol !== 'http:' && protocol !== 'https:') throw new TypeError(`${url} is not an http or https address`);
    if (username) throw new TypeError('credentials go into clientId and clientSecret, not into the URL');
    this.#base = url.replace(/\/+$/, '');
    const bytes = new TextEncoder().encode(`${clientId}:${clientSecret}`);
    this.#authorization = `Basic ${btoa(String.fromCharCode(...bytes))}`;
    this.#fetch = fetch;
    this.#timeout = timeout;
  }

  /**
   * One call, answered with JSON. What comes back is the text of the whole answer and what it says.
   *
   * @param {string} method
   * @param {string[]} path
   * @param {CallOptions} [options]
   * @returns {Promise<{ text: string, data: any }>}
   *
   * @typedef {object} CallOptions
   * @property {string} [body] JSON
   * @property {Record<string, string>} [query]
   * @property {Record<string, string>} [headers]
   * @property {number} [timeout] how long the answer may take, in milliseconds
   * @property {number} [patience] how much longer than usual the answer may take, in milliseconds
   * @property {AbortSignal} [signal]
   */
  async call(method, path, options = {}) {
    const deadline = new Deadline(options.signal, (options.timeout ?? this.#timeout) + (options.patience ?? 0));
    try {
      const response = await this.#send(method, path, options, deadline.signal);
      const text = await response.text();
      const answer = understand(text);
      if (response.ok && answer?.status === 'success') return { text, data: answer.data };
      throw refusal(response, answer);
    } catch (error) {
      throw explain(error, options.signal);
    } finally {
      deadline.clear();
    }
  }

  /**
   * One call, answered with a stream. It fails when nothing at all has arrived for as long as an answer may take: call
   * `heard` when something has, and `close` at the end. Without a body, nothing will follow.
   *
   * @param {string[]} path
   * @param {CallOptions} options
   */
  async open(path, options) {
    const deadline = new Deadline(options.signal, this.#timeout);
    try {
      const response = await this.#send('GET', path, options, deadline.signal);
      if (!response.ok) throw refusal(response, understand(await response.text()));
      const body = response.status === 204 ? null : response.body;
      return { body, heard: () => deadline.renew(), close: () => deadline.abort() };
    } catch (error) {
      deadline.clear();
      throw explain(error, options.signal);
    }
  }

  /**
   * @param {string} method
   * @param {string[]} path
   * @param {CallOptions} options
   * @param {AbortSignal} signal
   */
  #send(method, path, { body, query, headers }, signal) {
    const parameters = query && Object.keys(query).length > 0 ? `?${new URLSearchParams(query)}` : '';
    const address = `${this.#base}/v1/${path.map(encodeURIComponent).join('/')}${parameters}`;
    const all = { Authorization: this.#authorization, Accept: 'application/json', ...headers };
    const init = body === undefined ? { headers: all } : { body, headers: { ...all, 'Content-Type': 'application/json' } };
    // Called as a plain function: some runtimes mind being called as a method of something else. Redirects would carry
    // the secret to somewhere else.
    const send = this.#fetch;
    return send(address, { method, signal, redirect: 'error', ...init });
  }
}

/** A signal that fires when another one does, or when the time is up. */
class Deadline {
  #controller = new AbortController();
  #millis;
  #timer;
  #unlisten;

  /**
   * @param {AbortSignal | undefined} outer
   * @param {number} millis
   */
  constructor(outer, millis) {
    this.#millis = millis;
    this.#timer = this.#start();
    this.#unlisten = onAbort(outer, () => this.#controller.abort(outer?.reason));
  }

  get signal() {
    return this.#controller.signal;
  }

  renew() {
    clearTimeout(this.#timer);
    this.#timer = this.#start();
  }

  clear() {
    clearTimeout(this.#timer);
    this.#unlisten();
  }

  abort() {
    this.clear();
    this.#controller.abort();
  }

  #start() {
    const late = () => this.#controller.abort(new Error(`nothing came for ${this.#millis / 1000} s`));
    return setTimeout(late, this.#millis);
  }
}

/**
 * Any JSON object, or undefined: what stands between us and the server may answer anything.
 *
 * @param {string} text
 */
function understand(text) {
  try {
    return JSON.parse(text) ?? undefined;
  } catch {
    return undefined;
  }
}

/**
 * @param {Response} response
 * @param {any} answer
 */
function refusal(response, answer) {
  const { status } = response;
  const seconds = Number.parseFloat(response.headers.get('retry-after') ?? '');
  const retryAfter = Number.isFinite(seconds) ? seconds * 1000 : undefined;
  if (typeof answer?.error?.number === 'number') return new RelaisError({ ...answer.error, status, retryAfter });
  // A success that is not one of Relais is no success either: it may well be another server's.
  const description = `the answer (HTTP ${status}) is not one of Relais`;
  return new RelaisError({ description, status: response.ok ? 502 : status, retryAfter });
}

/**
 * Whoever aborted gets the reason back; everything else that is no refusal means that there was no answer.
 *
 * @param {unknown} error
 * @param {AbortSignal | undefined} signal
 */
export function explain(error, signal) {
  if (signal?.aborted) return signal.reason;
  if (error instanceof RelaisError) return error;
  return new RelaisError({ description: `the server does not answer: ${reason(error)}` }, { cause: error });
}

/**
 * Whether it is certain that the server got nothing of a call that failed like this.
 *
 * @param {RelaisError} error
 */
export function wasNotSent(error) {
  const { cause } = /** @type {{ cause?: { code?: string, cause?: { code?: string } } }} */ (error);
  return NOT_SENT.has(cause?.cause?.code ?? cause?.code ?? '');
}

/** @param {unknown} error */
function reason(error) {
  const { message, cause } = /** @type {{ message?: string, cause?: { message?: string, code?: string } }} */ (error);
  return cause?.message || cause?.code || message || String(error);
}
