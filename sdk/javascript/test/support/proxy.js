/** Stands between a client and a server, and breaks things between them. */

import { once } from 'node:events';
import { connect, createServer } from 'node:net';

export class Proxy {
  #server;
  #target;
  /** @type {Set<import('node:net').Socket>} */
  #sockets = new Set();
  /** @type {string | undefined} */
  #answer;
  #swallows = false;
  /** @type {string | undefined} */
  #losesNext;
  #holds = false;
  /** How many answers were lost. */
  lost = 0;
  /** The first lines of all requests. */
  requests = /** @type {string[]} */ ([]);
  url = '';

  /**
   * @param {import('node:test').TestContext} t
   * @param {string} target
   */
  static async start(t, target) {
    const proxy = new Proxy(target);
    t.after(() => proxy.close());
    proxy.#server.listen(0, '127.0.0.1');
    await once(proxy.#server, 'listening');
    const url = new URL(target);
    const { port } = /** @type {import('node:net').AddressInfo} */ (proxy.#server.address());
    url.host = `127.0.0.1:${port}`;
    proxy.url = url.href.replace(/\/$/, '');
    return proxy;
  }

  /** @param {string} target */
  constructor(target) {
    const { hostname, port } = new URL(target);
    this.#target = { host: hostname, port: Number(port) };
    this.#server = createServer((socket) => this.#pass(socket));
  }

  /** Cuts all connections. New ones are let through. */
  cut() {
    for (const socket of this.#sockets) socket.destroy();
  }

  /** Passes the next request on, but not its answer. */
  loseNextAnswer() {
    this.#losesNext = '';
  }

  /** The same for the next request with this in it. @param {string} text */
  loseNextAnswerTo(text) {
    this.#losesNext = text;
  }

  /** Keeps what is sent, and passes nothing on. */
  hold() {
    this.#holds = true;
    for (const socket of this.#sockets) socket.pause();
  }

  release() {
    this.#holds = false;
    for (const socket of this.#sockets) socket.resume();
  }

  /** Answers everything with this from now on. @param {string} text */
  answer(text) {
    this.#answer = text;
  }

  /** Answers nothing any more. */
  swallow() {
    this.#swallows = true;
  }

  /** Takes connections again, after `close`. @param {number} port */
  async open(port) {
    this.#server.listen(port, '127.0.0.1');
    await once(this.#server, 'listening');
  }

  async close() {
    this.cut();
    if (!this.#server.listening) return;
    this.#server.close();
    await once(this.#server, 'close');
  }

  /** @param {import('node:net').Socket} socket */
  #pass(socket) {
    this.#watch(socket);
    if (this.#swallows) return void socket.resume();
    if (this.#answer !== undefined) return void socket.once('data', () => socket.end(this.#answer ?? ''));
    const server = connect(this.#target);
    this.#watch(server);
    let loses = false;
    socket.on('data', (data) => {
      const [line] = /^[A-Z]+ \/[^\r]*/.exec(data.toString('latin1')) ?? [];
      if (line) this.requests.push(line);
      if (this.#losesNext !== undefined && data.includes(this.#losesNext)) {
        this.#losesNext = undefined;
        loses = true;
      }
      server.write(data);
    });
    server.on('data', (data) => {
      if (!loses) return void socket.write(data);
      this.lost += 1;
      socket.destroy();
    });
    if (this.#holds) for (const end of [socket, server]) end.pause();
    server.on('close', () => socket.destroy());
    socket.on('close', () => server.destroy());
  }

  /** @param {import('node:net').Socket} socket */
  #watch(socket) {
    this.#sockets.add(socket);
    socket.on('error', () => {});
    socket.on('close', () => this.#sockets.delete(socket));
  }
}
