/**
 * Calls to the server: address, token, deadline, envelope.
 *
 * The token is asked for once at a time, and kept until shortly before it expires.
 */

import { DEADLINE, SHORT } from './limits.js';
import { isText, orNothing } from './platform.js';

/** @typedef {ReturnType<typeof httpOf>} Http */

/**
 * What a JWT says. It is not checked, the server does that; a ticket says nothing.
 *
 * @param {any} token
 * @returns {{ exp?: any, sub?: any } | undefined}
 */
export const claims = (token) => orNothing(() => JSON.parse(new TextDecoder().decode(Uint8Array.from(
  atob(token.split('.')[1].replace(/-/g, '+').replace(/_/g, '/')), (character) => character.charCodeAt(0),
))));

/** A call that says something. @param {object} value @returns {RequestInit} */
export const saying = (value) => ({
  method: 'POST',
  headers: { 'Content-Type': 'application/json' },
  body: JSON.stringify(value),
  keepalive: true, // What is acknowledged by a click that leaves the page arrives all the same.
});

/** The query of an address, of what has a value. @param {Record<string, any>} values */
export const query = (values) => `?${new URLSearchParams(Object.entries(values).filter(([, value]) => value))}`;

/** Whether the same call will never succeed. @param {any} status */
export const isFinal = (status) => /^4(?!01|08|29)/.test(status);

/** @param {import('./platform.js').Setting} setting */
export const httpOf = ({ url, token, getToken, fetch, now }) => {
  const base = `${new URL(url, /** @type {any} */ (globalThis.location))}`.replace(/\/*$/, '/v1/notifications');
  let expires = 0;
  /** @type {Promise<string> | undefined} */
  let asked;

  /** @param {import('../types/index.js').Token | undefined} answer */
  const keep = (answer) => {
    const { token: text = answer, expires: end } = Object(answer);
    if (!isText(text)) throw TypeError('no token');
    // A date that cannot be read is none: then the server says when it is over.
    expires = +new Date(end ?? claims(text)?.exp * 1000) || Infinity;
    return (token = text);
  };
  if (token || !getToken) keep(token);

  /** For how many milliseconds the token is good, as far as known; where there is no other, that does not matter. */
  const left = () => /** @type {any} */ (getToken && expires - now());

  /** A new token, whatever there is. */
  const renew = () => (asked ??= (async () => keep(await /** @type {Function} */ (getToken)()))()
    .finally(() => (asked = undefined)));

  /** @param {string} [refused] a token that the server does not take, so that another one is needed */
  const get = async (refused) => (token === refused || left() < SHORT ? renew() : token);

  /**
   * An answer that is not an error. A token that is refused is replaced once.
   *
   * @param {string} path
   * @param {RequestInit} [init] where it has no signal of its own, there is a deadline
   * @param {string} [given] this token, and no other
   * @returns {Promise<Response>}
   */
  const send = async (path, init, given) => {
    const used = given ?? (await get());
    const response = await fetch(base + path, {
      cache: 'no-store',
      redirect: 'error', // Elsewhere is nobody who may see the token.
      signal: AbortSignal.timeout(DEADLINE),
      ...init,
      headers: { ...init?.headers, Authorization: `Bearer ${used}` },
    });
    if (response.ok) return response;
    const { status } = response;
    if (status === 401 && getToken && !given) return send(path, init, await get(used));
    const answer = await response.json().catch(() => {});
    /** @type {any} */
    const error = Error(answer?.error?.description ?? status);
    error.status = status;
    throw error;
  };

  return {
    base,
    get,
    left,
    /** Absent where there is no other token. */
    renew: getToken && renew,
    send,
    /** The data of an answer. @param {string} path @param {RequestInit} [init] @returns {Promise<any>} */
    data: async (path, init) => (await (await send(path, init)).json()).data,
  };
};
