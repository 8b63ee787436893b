/** The token: asked for once at a time, kept until shortly before it expires. */

import { isText } from './platform.js';

/** Below this many milliseconds, a token is not worth a request. */
const SHORT = 5_000;

/**
 * What a JWT says. It is not checked, the server does that; a ticket says nothing.
 *
 * @param {string} token
 * @returns {{ exp?: unknown, sub?: unknown }}
 */
export function claims(token) {
  try {
    const text = atob(String(token.split('.')[1]).replace(/-/g, '+').replace(/_/g, '/'));
    return JSON.parse(new TextDecoder().decode(Uint8Array.from(text, (character) => character.charCodeAt(0)))) ?? {};
  } catch {
    return {};
  }
}

/**
 * @param {string | undefined} given
 * @param {import('../types/index.js').Options['getToken']} getToken
 * @param {() => number} now
 */
export function tokensOf(given, getToken, now) {
  let token = '';
  let expires = Infinity;
  /** @type {Promise<string> | undefined} */
  let asked;
  /** @param {import('../types/index.js').Token | undefined} answer */
  const keep = (answer) => {
    const whole = typeof answer === 'object' ? answer : { token: answer, expires: undefined };
    if (!isText(whole.token)) throw new TypeError('token or getToken must give a token');
    token = whole.token;
    // A date that cannot be read is none: then the server says when it is over.
    expires = new Date(whole.expires ?? Number(claims(token).exp) * 1000).getTime() || Infinity;
    return token;
  };
  /** A new token, whatever there is. */
  const renew = () => (asked ??= (async () => keep(await getToken?.()))().finally(() => (asked = undefined)));
  if (given || !getToken) keep(given);
  return {
    /** Whether there can be another one. */
    renewable: !!getToken,
    renew,
    /** For how many milliseconds it is good, as far as known. */
    left: () => expires - now(),
    /** @param {string} [refused] a token that the server does not take, so that another one is needed */
    get: async (refused) => (token && (!getToken || (token !== refused && expires - now() > SHORT)) ? token : renew()),
  };
}
