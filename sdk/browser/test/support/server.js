/** A server of notifications in memory, for one user, over real HTTP, with faults that a test switches on. */

import { once } from 'node:events';
import { createServer } from 'node:http';
import { WebSocketServer } from 'ws';

/** @typedef {import('relais-browser').Message} Message */
/** @typedef {{ id: string, token: string, send: (event: string, id: string | undefined, data: unknown) => void, end: () => void, raw: (text: string) => void }} Link */

let messages = 0;

/**
 * A message as the server sends it.
 *
 * @param {{ id?: string, ack?: boolean, attempts?: number, payload?: any, type?: string }} [more]
 * @returns {any}
 */
export const message = ({ id = `m${(messages += 1)}`, ack = false, attempts = 0, payload = {}, type = 'NOTIFICATION' } = {}) => ({
  metadata: {
    id, priority: 'NORMAL', type, emitter: 'test',
    timestamp: new Date().toISOString(), expiration: '2099-01-01T00:00:00Z',
  },
  payload,
  routing: {
    audience: { type: 'USER', targets: ['ann'] },
    retry: { ack_required: ack, enabled: true, attempts, limit: 5, backoff: 'FIXED' },
  },
});

export class Server {
  #http = createServer((request, response) => this.#answer(request, response).catch((error) => response.destroy(error)));
  #sockets = new WebSocketServer({ noServer: true });
  #epoch = Math.random().toString(36).slice(2, 6);
  /** @type {(() => void)[]} */
  #waiting = [];
  /** Newest last. @type {{ message: Message, acknowledged?: string }[]} */
  list = [];
  /** What streams tell. @type {{ event: string, id: string, data: any }[]} */
  log = [];
  /** @type {Set<Link>} */
  links = new Set();
  /** @type {{ method: string, path: string, query: URLSearchParams, token: string, headers: import('node:http').IncomingHttpHeaders, body: any }[]} */
  requests = [];
  /** Tokens that are refused. @type {Set<string>} */
  refused = new Set();
  /** What a path's last part answers instead: a status, `cut` the connection, or `hold` back each byte. @type {Record<string, number | 'cut' | 'hold'>} */
  fault = {};
  user = 'ann';
  url = '';

  /** @param {import('node:test').TestContext} t */
  static async start(t) {
    const server = new Server();
    server.#http.on('upgrade', (request, socket, head) => {
      const { path, query, token } = server.#note(request, undefined);
      if (server.fault[path] === 'hold') return;
      if (server.fault[path] || server.refused.has(token)) return void socket.destroy();
      server.#sockets.handleUpgrade(request, socket, head, (opened) => server.#socket(opened, query, token));
    });
    server.#http.listen(0, '127.0.0.1');
    await once(server.#http, 'listening');
    server.url = `http://127.0.0.1:${/** @type {import('node:net').AddressInfo} */ (server.#http.address()).port}`;
    t.after(() => {
      for (const socket of server.#sockets.clients) socket.terminate();
      server.#http.close();
      server.#http.closeAllConnections();
    });
    return server;
  }

  get cursor() {
    return `${this.#epoch}:${this.log.length}`;
  }

  get counts() {
    const unread = this.list.filter((one) => !one.acknowledged);
    const unacknowledged = unread.filter((one) => one.message.routing.retry.ack_required);
    return { unread: unread.length, unacknowledged: unacknowledged.length, all: this.list.length };
  }

  /** Something happened that streams tell. @param {string} event @param {any} data */
  tell(event, data) {
    this.log.push({ event, id: `${this.#epoch}:${this.log.length + 1}`, data });
    for (const link of this.links) link.send(event, this.cursor, data);
    this.#changed();
  }

  /** @param {Parameters<typeof message>[0]} [more] @returns {string} */
  emit(more) {
    const one = message(more);
    this.list.push({ message: one });
    this.tell('notification', one);
    return one.metadata.id;
  }

  /** Sent again. @param {string} id @param {number} attempts */
  replay(id, attempts) {
    const one = this.list.find(({ message }) => message.metadata.id === id)?.message ?? message({ id });
    this.tell('notification', { ...one, routing: { ...one.routing, retry: { ...one.routing.retry, attempts } } });
  }

  /** @param {string} id */
  withdraw(id) {
    this.list = this.list.filter(({ message }) => message.metadata.id !== id);
    this.tell('withdrawn', { id });
  }

  /** @param {string[]} ids */
  ack(ids) {
    const mine = this.list.filter((one) => ids.includes(one.message.metadata.id) && !one.acknowledged);
    for (const one of mine) one.acknowledged = new Date().toISOString();
    if (mine.length) this.tell('acknowledged', { ids: mine.map(({ message }) => message.metadata.id) });
    return mine.length;
  }

  /** Control events have no place in the log. @param {string} reason */
  bye(reason) {
    for (const link of this.links) link.send('bye', undefined, { reason });
    this.cut();
  }

  /** Ends all links without a word. */
  cut() {
    for (const link of this.links) link.end();
    this.links.clear();
  }

  /** Requests whose path ends so. @param {string} path */
  to(path) {
    return this.requests.filter((request) => request.path === path);
  }

  /** Waits until something is so. @param {() => unknown} condition @returns {Promise<void>} */
  async until(condition) {
    while (!condition()) await new Promise((resolve) => this.#waiting.push(() => resolve(undefined)));
  }

  #changed() {
    for (const wake of this.#waiting.splice(0)) wake();
  }

  /** @param {import('node:http').IncomingMessage} request @param {any} body */
  #note({ method = '', url = '', headers }, body) {
    const { pathname, searchParams: query } = new URL(url, 'http://localhost');
    const token = headers.authorization?.replace('Bearer ', '') ?? query.get('ticket') ?? '';
    const noted = { method, path: pathname.replace(/^\/v1\/notifications\/?/, ''), query, token, headers, body };
    this.requests.push(noted);
    this.#changed();
    return noted;
  }

  /** @param {import('node:http').IncomingMessage} request @param {import('node:http').ServerResponse} response */
  async #answer(request, response) {
    let text = '';
    for await (const part of request) text += part;
    const cors = { 'Access-Control-Allow-Origin': '*', 'Access-Control-Allow-Headers': '*, Authorization', 'Access-Control-Max-Age': '600' };
    if (request.method === 'OPTIONS') return void response.writeHead(204, cors).end();
    const { method, path, query, token, headers } = this.#note(request, text && JSON.parse(text));
    /** @param {number} status @param {any} [body] */
    const json = (status, body) => {
      response.writeHead(status, { ...cors, 'Content-Type': 'application/json' }).end(body && JSON.stringify(body));
      this.#changed();
    };
    /** @param {any} data */
    const success = (data) => json(200, { status: 'success', data });
    const fault = this.fault[path] ?? this.fault['*'];
    if (fault === 'cut') return void request.socket.destroy();
    if (fault === 'hold') return;
    if (fault) return json(fault, { status: 'error', error: { number: fault * 1000, description: `fault ${fault}` } });
    if (this.refused.has(token)) return json(401, { status: 'error', error: { number: 401001, description: 'expired' } });
    const body = text ? JSON.parse(text) : undefined;
    if (method === 'GET' && path === 'stream') {
      response.writeHead(200, { ...cors, 'Content-Type': 'text/event-stream; charset=utf-8' });
      return this.#stream(response, String(headers['last-event-id'] ?? query.get('lastEventId') ?? ''), token);
    }
    if (method === 'GET' && path === 'poll') return success(await this.#poll(query, request));
    if (method === 'GET' && path === 'counts') return success(this.counts);
    if (method === 'GET' && path === '') {
      const all = [...this.list].reverse().filter((one) => query.get('filter') === 'all' || !one.acknowledged);
      const [from, limit] = [Number(query.get('before') ?? 0), Number(query.get('limit'))];
      const next = from + limit < all.length ? String(from + limit) : undefined;
      return success({ notifications: all.slice(from, from + limit), counts: this.counts, cursor: this.cursor, next });
    }
    if (method === 'POST' && path === 'ack') {
      const acknowledged = this.ack(body.all ? this.list.map(({ message }) => message.metadata.id) : body.ids);
      return success({ acknowledged, counts: this.counts });
    }
    const [, id] = /^links\/(.+)\/token$/.exec(path) ?? [];
    const link = [...this.links].find((one) => one.id === id);
    if (link) link.token = token;
    return link ? json(204) : json(404, { status: 'error', error: { number: 404000, description: 'no such route' } });
  }

  /** @param {import('node:http').ServerResponse} response @param {string} from @param {string} token */
  #stream(response, from, token) {
    this.#link({
      id: crypto.randomUUID(), token,
      send: (event, id, data) => {
        response.write(`event: ${event}\n${id === undefined ? '' : `id: ${id}\n`}data: ${JSON.stringify(data)}\n\n`);
      },
      raw: (text) => response.write(text),
      end: () => response.end(),
    }, from, (ended) => response.once('close', ended));
  }

  /** @param {import('ws').WebSocket} socket @param {URLSearchParams} query @param {string} token */
  #socket(socket, query, token) {
    this.#link({
      id: crypto.randomUUID(), token,
      send: (event, id, data) => socket.send(JSON.stringify({ event, id, data })),
      raw: (text) => socket.send(text),
      end: () => socket.close(),
    }, query.get('lastEventId') ?? '', (ended) => socket.once('close', ended));
  }

  /** @param {Link} link @param {string} from @param {(ended: () => void) => void} whenEnded */
  #link(link, from, whenEnded) {
    this.links.add(link);
    link.send('hello', from || this.cursor, { link: link.id, user: this.user });
    for (const { event, id, data } of this.since(from)) link.send(event, id, data);
    whenEnded(() => {
      this.links.delete(link);
      this.#changed();
    });
    this.#changed();
  }

  /** @param {string | null} cursor */
  since(cursor) {
    if (!cursor) return [];
    const [epoch, place] = cursor.split(':');
    if (epoch === this.#epoch) return this.log.slice(Number(place));
    return [{ event: 'gap', id: this.cursor, data: { reason: 'epoch' } }];
  }

  /** @param {URLSearchParams} query @param {import('node:http').IncomingMessage} request */
  async #poll(query, request) {
    const after = query.get('after');
    let gone = false;
    request.socket.once('close', () => (gone = true));
    if (query.get('wait') !== '1s') await this.until(() => gone || this.since(after).length);
    return { events: this.since(after), cursor: this.cursor };
  }
}
