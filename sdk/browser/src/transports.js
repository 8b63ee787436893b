/**
 * The three ways in which events come. Each runs until its link ends, and fails where it could not begin.
 *
 * None of them decides anything: time limits, retries and the order of the transports are in `link.js`.
 */

/**
 * @typedef {object} Attempt
 * @property {import('./http.js').Http} http
 * @property {string} token
 * @property {typeof WebSocket | undefined} WebSocket
 * @property {() => string | undefined} cursor
 * @property {AbortSignal} signal
 * @property {() => void} heard called whenever anything arrives
 * @property {(event?: string, id?: string, data?: any) => void} receive
 */

/** More than this without an end of line is not a stream of events. */
const LINE_LIMIT = 10_000_000;

/** Server-sent events, by `fetch`: an EventSource could not send a Bearer header. @param {Attempt} attempt */
async function sse({ http, cursor, signal, heard, receive }) {
  const from = cursor();
  const { body, headers } = await http.send('/stream', {
    headers: { Accept: 'text/event-stream', ...(from && { 'Last-Event-ID': from }) }, signal,
  });
  // A captive portal answers anything with a page.
  if (!/^text\/event-stream/.test(headers.get('Content-Type') ?? '')) throw Object.assign(new Error(), { status: 415 });
  const reader = /** @type {ReadableStream<Uint8Array>} */ (body).getReader();
  const decoder = new TextDecoder();
  let rest = '';
  /** @type {Record<string, string>} */
  let fields = {};
  while (!signal.aborted) {
    const { done, value } = await reader.read();
    if (done) return;
    heard();
    const lines = (rest + decoder.decode(value, { stream: true })).split(/\r\n|\n/);
    rest = lines.pop() ?? '';
    if (rest.length > LINE_LIMIT) throw new Error('a line without end');
    for (const line of lines) {
      const [, name, text = ''] = /^(\w+)(?:: ?(.*))?$/.exec(line) ?? [];
      if (name) fields[name] = name === 'data' && name in fields ? `${fields[name]}\n${text}` : text;
      if (line) continue;
      const { event, id, data } = fields;
      fields = {};
      if (event || id) receive(event, id, parse(data)); // Else it was a heartbeat.
    }
  }
}

/** A WebSocket cannot send headers from a page: the token goes into the address. @param {Attempt} attempt */
const websocket = ({ http, token, WebSocket, cursor, signal, heard, receive }) =>
  /** @type {Promise<void>} */ (new Promise((_, reject) => {
    const from = cursor();
    const query = new URLSearchParams({ ticket: token, ...(from && { lastEventId: from }) });
    const socket = new /** @type {typeof globalThis.WebSocket} */ (WebSocket)(
      `${http.base.replace('http', 'ws')}/socket?${query}`);
    socket.onmessage = ({ data: text }) => {
      heard();
      const { event, id, data } = parse(text) ?? {};
      if (event !== 'heartbeat') receive(event, id, data);
    };
    socket.onclose = socket.onerror = reject; // After `hello`, this too is only an end.
    signal.onabort = () => socket.close();
  }));

/** Long-poll. @param {Attempt} attempt */
async function poll({ http, cursor, signal, heard, receive }) {
  for (let wait = '1s'; !signal.aborted; wait = '30s') { // The first answer comes soon, and shows that it works.
    const after = cursor();
    const response = await http.send(`/poll?${new URLSearchParams({ wait, ...(after && { after }) })}`, { signal });
    const { events, cursor: to } = (await response.json()).data;
    heard();
    if (wait === '1s') receive('hello');
    for (const one of Array.isArray(events) ? events : []) receive(one?.event, one?.id, one?.data);
    receive('', to);
  }
}

/** @param {string | undefined} text */
function parse(text) {
  try {
    return JSON.parse(text ?? '');
  } catch {
    return undefined;
  }
}

/** @type {Record<import('../types/index.js').Transport, (attempt: Attempt) => Promise<void>>} */
export const TRANSPORTS = { sse, websocket, poll };
