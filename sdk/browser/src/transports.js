/**
 * The three ways in which events come. Each runs until its link ends, and fails where it could not begin.
 *
 * None of them decides anything: time limits, retries and the order of the transports are in `link.js`. The signal is for
 * one run only, so a run may take its `onabort`, and then ends with it.
 */

import { query } from './http.js';
import { LINE } from './limits.js';
import { orNothing } from './platform.js';

/**
 * @callback Hear called with each event, as `{ event, id, data }`, and without one where something arrived that is none
 * @param {any} [one]
 * @returns {string | undefined} the cursor behind it
 *
 * @callback Run
 * @param {import('./http.js').Http} http
 * @param {Hear} hear
 * @param {AbortSignal} signal
 * @param {string | undefined} from the cursor after which it begins
 * @param {string} token
 * @param {any} WebSocket
 * @returns {Promise<void>}
 */

/** @param {any} text */
const parse = (text) => orNothing(() => JSON.parse(text));

/** @type {Record<import('../types/index.js').Transport, Run>} */
export const TRANSPORTS = {
  /** Server-sent events, by `fetch`: an EventSource could not send a Bearer header. */
  async sse(http, hear, signal, from) {
    const { body, headers } = await http.send('/stream', {
      headers: { Accept: 'text/event-stream', 'Last-Event-ID': from ?? '' }, signal,
    });
    // A captive portal answers anything with a page.
    if (!/^text\/event-stream/.test(/** @type {string} */ (headers.get('Content-Type')))) throw { status: 415 };
    const reader = /** @type {ReadableStream} */ (body).pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    /** @type {any} */
    let fields = {};
    for (;;) {
      const { done, value } = await reader.read();
      if (done || rest.length > LINE) return;
      hear();
      const lines = (rest + value).split(/\r?\n/);
      rest = /** @type {string} */ (lines.pop());
      for (const line of lines) {
        // With `s`: payloads may have separators that a regular expression takes for the end of a line.
        const [, name, text] = /** @type {any} */ (/([^:]*):? ?(.*)/s.exec(line));
        fields[name] = (fields[name] ?? '') + text; // JSON is the same without its ends of lines.
        if (!line) {
          hear({ ...fields, data: parse(fields.data) });
          fields = {};
        }
      }
    }
  },

  /** A WebSocket cannot send headers from a page: the token goes into the address. */
  websocket: ({ base }, hear, signal, lastEventId, ticket, WebSocket) => new Promise((_, reject) => {
    const socket = new WebSocket(`${base.replace('http', 'ws')}/socket${query({ ticket, lastEventId })}`);
    socket.onmessage = (/** @type {MessageEvent} */ { data }) => hear(parse(data));
    socket.onclose = socket.onerror = reject; // After `hello`, this too is only an end.
    signal.onabort = () => {
      socket.close(); // That may take its time.
      reject();
    };
  }),

  /** Long-poll. */
  async poll(http, hear, signal, after) {
    for (let wait = '1s'; ; wait = '30s') { // The first answer comes soon, and shows that it works.
      const { events, cursor } = await http.data(`/poll${query({ wait, after })}`, { signal });
      if (wait === '1s') hear({ event: 'hello' });
      for (const one of events) hear(one);
      after = hear({ id: cursor });
    }
  },
};
