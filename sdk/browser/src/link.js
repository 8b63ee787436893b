/**
 * Keeps one link to the server: picks the transport, notices silence, renews the token, reconnects.
 *
 * What the events mean is not known here, but for `hello` and `bye`.
 */

import { isFinal, saying } from './http.js';
import {
  MISSES, QUIET, RENEWAL, RENEWAL_AT_LEAST, RENEWAL_AT_MOST, SECOND_CHANCE, SHORT_LIFE, SILENCE,
} from './limits.js';
import { timerOf } from './platform.js';
import { TRANSPORTS } from './transports.js';

/** @typedef {import('../types/index.js').Transport} Transport */

/**
 * @param {import('./platform.js').Setting} setting
 * @param {import('./http.js').Http} http
 * @param {(key: string, value?: unknown) => any} store remembers which transport worked
 * @param {(failures: number) => Promise<void>} wait
 * @param {() => Promise<string | undefined>} prepare what must be done before an attempt; gives the cursor
 * @param {(event?: string, id?: string, data?: any) => string | undefined} receive gives the cursor behind it
 * @param {(state: import('../types/index.js').State, transport?: Transport) => void} setState
 * @param {(reason: string) => void} end there is no way to go on
 */
export const keepLink = (setting, http, store, wait, prepare, receive, setState, end) => {
  const {
    now, WebSocket, patience = 10_000, transports: wanted = /** @type {Transport[]} */ (Object.keys(TRANSPORTS)),
  } = setting;
  const transports = wanted.filter((one) => one !== 'websocket' || WebSocket);
  const silence = timerOf(setting);
  const renewal = timerOf(setting);
  const chance = timerOf(setting);
  let index = Math.max(0, transports.indexOf(store(http.base)));
  let heardAt = 0;
  /** @type {boolean | undefined} */
  let stopped;
  /** @type {AbortController | undefined} */
  let attempt;
  /** Ends the present attempt. After `now`, the next one need not wait. @type {(why?: string) => void} */
  const cut = (why) => attempt?.abort(why);

  (async () => {
    await undefined; // The caller gets the link before it gets the first of it.
    let failures = 0;
    let misses = 0;
    /** The token of the link. @type {any} */
    let token;
    /** One that the server does not take any more. @type {string | undefined} */
    let refused;
    while (!stopped) {
      const name = transports[index] ?? 'sse';
      const { signal } = (attempt = new AbortController());
      /** Whether anything came, once it was tried. @type {boolean | undefined} */
      let heard;
      /** When it began. @type {any} */
      let opened;

      /** @param {string} link */
      const renewLater = (link) => {
        const left = http.left();
        if (left < Infinity) renewal(Math.min(Math.max(left * RENEWAL, RENEWAL_AT_LEAST), RENEWAL_AT_MOST), async () => {
          let status;
          try {
            token = await /** @type {any} */ (http).renew();
            await http.send(`/links/${link}/token`, saying({}), token);
          } catch (error) {
            status = /** @type {any} */ (error)?.status;
          }
          if (signal.aborted) return;
          // Refused: a new link takes the new token. Anything else may pass, and is tried again.
          if (status) cut('now');
          else renewLater(link);
        });
      };

      /** @type {import('./transports.js').Hear} */
      const hear = (one) => {
        const { event, id, data } = one ?? {};
        if (signal.aborted) return;
        heard = true;
        heardAt = now();
        misses = 0;
        silence(SILENCE, cut);
        if (event === 'hello') {
          opened = heardAt;
          store(http.base, name);
          if (data?.link) renewLater(data.link);
          setState('open', name);
        }
        if (event === 'bye') cut(data?.reason);
        return (event || id) && receive(event, id, data);
      };

      const connect = async () => {
        const from = await prepare();
        token = await http.get(refused);
        if (!signal.aborted) {
          heard = false;
          silence(patience, () => cut('held'));
          await TRANSPORTS[name](http, hear, signal, from, token, WebSocket);
        }
      };

      heardAt = now();
      setState('connecting', name);
      if (index) chance(SECOND_CHANCE, () => {
        index = 0;
        cut('now');
      });
      // Not everything that is cut ends by itself: getToken is the page's, and may never return.
      const { status } = await new Promise((/** @type {any} */ resolve) => {
        signal.onabort = resolve;
        connect().then(resolve, resolve);
      }) ?? {};
      cut();
      silence();
      renewal();
      chance();
      const why = signal.reason;
      const expired = why === 'expired';
      if (stopped) return;
      if (!http.renew && (expired || status === 401)) return end('expired');
      if (expired) refused = token;
      if (now() - opened > SHORT_LIFE) failures = 0;
      if (why === 'now') continue;
      // Held back or refused by something between: the next transport may pass.
      if (why === 'held' || (heard === false && (isFinal(status) || ++misses >= MISSES))) {
        index = (index + 1) % transports.length;
        misses = 0;
        if (why === 'held' && index) continue;
      }
      failures += 1;
      if (!expired || failures > 1) await wait(failures);
    }
  })();

  return {
    /** The network or the page is back: do not trust a link that has been quiet. */
    wake: () => now() - heardAt > QUIET && cut('now'),
    stop: () => {
      stopped = true;
      cut();
    },
  };
};
