/**
 * Keeps one link to the server: picks the transport, notices silence, renews the token, reconnects.
 *
 * What the events mean is not known here, but for `hello` and `bye`.
 */

import { isFinal } from './platform.js';
import { TRANSPORTS } from './transports.js';

/** Silence that means a link is dead. Streams have a heartbeat every 15 s, and a poll is answered after 30 s. */
const SILENCE = 45_000;
/** A link that lives for less does not count as a success, or a server that closes at once would be called at once. */
const SHORT_LIFE = 5_000;
/** A link that has been quiet for this long is not trusted when the page comes back. */
const QUIET = 20_000;
/** After this long on another transport than the first, the first has another chance. */
const SECOND_CHANCE = 600_000;
/** Connections that fail say little about the transport: the server may be away for all of them. */
const MISSES = 3;

/**
 * @typedef {import('../types/index.js').Transport} Transport
 *
 * @typedef {object} Setting
 * @property {Transport[]} transports
 * @property {import('./http.js').Http} http
 * @property {ReturnType<typeof import('./tokens.js').tokensOf>} tokens
 * @property {import('../types/index.js').Platform} platform
 * @property {ReturnType<typeof import('./platform.js').backoffs>} pause
 * @property {(worked?: string) => any} memory reads or writes which transport worked
 * @property {number} patience
 * @property {() => Promise<void>} prepare what must be done before an attempt
 * @property {() => string | undefined} cursor
 * @property {(event?: string, id?: string, data?: any) => void} receive
 * @property {(state: import('../types/index.js').State, transport?: Transport) => void} setState
 * @property {(reason: string) => void} end there is no way to go on
 */

/** @param {Setting} setting */
export function keepLink({
  transports, http, tokens, platform: { after, now, WebSocket }, pause, memory, patience,
  prepare, cursor, receive, setState, end,
}) {
  let stopped = false;
  let heardAt = 0;
  /** Ends the present attempt. @type {(why: string) => void} */
  let cut = () => {};

  /**
   * One attempt, until it ends.
   *
   * @param {Transport} name
   * @param {number} index
   */
  const attempt = async (name, index) => {
    const controller = new AbortController();
    const { signal } = controller;
    let [why, status, tried, heard, opened] = ['', 0, false, false, Infinity];
    let [disarm, unrenew] = [() => {}, () => {}];
    cut = (reason) => {
      why ||= reason;
      controller.abort();
    };
    const here = cut;
    /** @param {number} millis @param {string} reason */
    const arm = (millis, reason) => {
      disarm();
      disarm = after(millis, () => here(reason));
    };
    /** @param {string} link */
    const renewLater = (link) => {
      const left = tokens.left();
      if (!tokens.renewable || left === Infinity || signal.aborted) return;
      // Timers that are set for longer than 24 days fire at once.
      unrenew = after(Math.min(Math.max(left * 0.9, 10_000), 86_400_000), async () => {
        try {
          await http.send(`/links/${link}/token`, { body: {}, token: await tokens.renew() });
        } catch (error) {
          // Refused: a new link takes the new token. Anything else may pass, and is tried again.
          if (/** @type {any} */ (error).status) here('renew');
        }
        renewLater(link);
      });
    };
    const cancel = index ? after(SECOND_CHANCE, () => here('again')) : () => {};
    heardAt = now();
    setState('connecting', name);
    const run = async () => {
      await prepare();
      const token = await tokens.get();
      if (signal.aborted) return;
      tried = true;
      arm(patience, 'held');
      await TRANSPORTS[name]({
        http, token, cursor, signal, WebSocket,
        heard: () => {
          if (signal.aborted) return;
          heard = true;
          heardAt = now();
          arm(SILENCE, 'silent');
        },
        receive: (event, id, data) => {
          if (signal.aborted) return;
          if (event === 'hello') {
            opened = now();
            memory(name);
            if (data?.link) renewLater(encodeURIComponent(data.link));
            setState('open', name);
          }
          receive(event, id, data);
          if (event === 'bye') here(data?.reason === 'expired' ? 'expired' : 'bye');
        },
      });
    };
    try {
      // Not everything that is cut ends by itself: getToken is the page's, and may never return.
      await Promise.race([run(), new Promise((resolve) => signal.addEventListener('abort', resolve))]);
    } catch (error) {
      status = /** @type {any} */ (error).status;
    }
    here('ended');
    disarm();
    unrenew();
    cancel();
    return { why, status, held: why === 'held', heard, missed: tried && !heard && why === 'ended', lived: now() - opened };
  };

  (async () => {
    await undefined; // The caller gets the link before it gets the first of it.
    let index = Math.max(0, transports.indexOf(memory()));
    let [failures, misses] = [0, 0];
    while (!stopped) {
      const { why, status, held, heard, missed, lived } = await attempt(transports[index] ?? 'sse', index);
      const expired = why === 'expired';
      if (stopped) return;
      if (!tokens.renewable && (expired || status === 401)) return end('expired');
      if (expired) await tokens.renew().catch(() => {});
      if (lived > SHORT_LIFE) failures = 0;
      if (heard) misses = 0;
      if (why === 'again') index = 0;
      // Held back or refused by something between: the next transport may pass.
      if (held || (missed && (isFinal(status) || ++misses >= MISSES))) {
        index = (index + 1) % transports.length;
        misses = 0;
      }
      if ((held && index) || /^(wake|again|renew)$/.test(why)) continue;
      failures += 1;
      if (expired && failures === 1) continue;
      setState('waiting');
      await pause.wait(failures);
    }
  })();

  return {
    /** The network or the page is back: do not trust a link that has been quiet. */
    wake: () => now() - heardAt > QUIET && cut('wake'),
    stop: () => {
      stopped = true;
      cut('stop');
      pause.skip();
    },
  };
}
