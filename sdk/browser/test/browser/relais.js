/** The real server as a process (`RELAIS_BIN` names the program), what stands between it and a page, and pages of users. */

import { spawn } from 'node:child_process';
import { createHmac } from 'node:crypto';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { createServer, request as send } from 'node:http';
import { connect, createServer as createTcpServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { browser } from './support.js';

const SECRET = 'a secret of at least thirty-two bytes';
const CLIENT = { clientId: 'shop', clientSecret: 'hush' };
const BASIC = `Basic ${btoa(`${CLIENT.clientId}:${CLIENT.clientSecret}`)}`;

/** @param {unknown} value */
const base64 = (value) => Buffer.from(JSON.stringify(value)).toString('base64url');

/** A JWT of a user. @param {string} sub */
export function jwt(sub) {
  const signed = `${base64({ alg: 'HS256', typ: 'JWT' })}.${base64({ sub, exp: Math.floor(Date.now() / 1000) + 3600 })}`;
  return `${signed}.${createHmac('sha256', SECRET).update(signed).digest('base64url')}`;
}

/** @param {string} target @param {number} number @param {boolean} [must] */
export const draft = (target, number, must = false) => ({
  payload: { title: `number ${number}`, number },
  routing: { audience: { type: target === 'team' ? 'GROUP' : 'USER', targets: [target] }, retry: { ack_required: must } },
});

export class Relais {
  /** @type {import('node:child_process').ChildProcess | undefined} */
  #process;
  #folder = mkdtempSync(join(tmpdir(), 'relais-browser-'));
  #origin;
  #more;
  url = '';

  /**
   * One whose users are at this origin; ann and bob are the group `team`.
   *
   * @param {import('node:test').TestContext} t
   * @param {string} origin
   * @param {Record<string, string>} more of its environment
   */
  static async start(t, origin, more) {
    const relais = new Relais(origin, more);
    t.after(() => relais.close());
    await relais.#launch('127.0.0.1:0');
    await relais.#declare();
    return relais;
  }

  /** @param {string} origin @param {Record<string, string>} more of its environment */
  constructor(origin, more) {
    this.#origin = origin;
    this.#more = more;
  }

  async #declare() {
    await this.call('POST', '/admin/apply', {
      clients: [{ ...CLIENT, notifications: { emit: ['*'], audience: ['*'], ticket: true } }],
    });
    const members = ['ann', 'bob'].map((target) => ({ type: 'USER', target }));
    await this.call('PUT', '/v1/audiences/GROUP/team/members', { members });
  }

  /** @param {string} listen */
  async #launch(listen) {
    const database = `sqlite:${join(this.#folder, 'relais.db')}`;
    this.url = await run(['serve', '--listen', listen, '--database', database, '--log-format', 'json'], {
      RELAIS_AUTH_BCRYPT_COST: '4', // It is slow on purpose, and not what is tested here.
      RELAIS_NOTIFICATIONS_TOKEN_SECRET: SECRET,
      RELAIS_NOTIFICATIONS_ORIGINS: this.#origin,
      ...this.#more,
    }, (child) => (this.#process = child), (line) => {
      const { message, address } = JSON.parse(line);
      return message.startsWith('Relais serves') ? `http://${address}` : undefined;
    });
  }

  /** As a client, or as an operator. @param {string} method @param {string} path @param {unknown} [body] @returns {Promise<any>} */
  async call(method, path, body) {
    const headers = { 'Content-Type': 'application/json', ...(path.startsWith('/v1') && { Authorization: BASIC }) };
    const response = await fetch(this.url + path, { method, headers, ...(body ? { body: JSON.stringify(body) } : {}) });
    const answer = await response.json();
    if (!response.ok) throw new Error(`${method} ${path}: ${JSON.stringify(answer)}`);
    return answer.data;
  }

  /**
   * Sends messages with these numbers, each by itself, to a user or to the group; their ids.
   *
   * @param {string} target
   * @param {number[]} numbers
   * @param {boolean} [must] whether they must be acknowledged
   */
  async emit(target, numbers, must = false) {
    const ids = [];
    for (const number of numbers) ids.push((await this.call('POST', '/v1/notifications', draft(target, number, must))).id);
    return ids;
  }

  /** @param {string} user @param {string} ttl */
  ticket(user, ttl) {
    return this.call('POST', '/v1/notifications/tickets', { user, ttl });
  }

  /** What the server counts. @param {string} user */
  async counts(user) {
    const headers = { Authorization: `Bearer ${jwt(user)}` };
    return (await (await fetch(`${this.url}/v1/notifications/counts`, { headers })).json()).data;
  }

  /** Ends it as a lost machine would. */
  async kill() {
    await end(this.#process, 'SIGKILL');
  }

  /** Asks it to stop, and waits until it has. */
  async stop() {
    await end(this.#process, 'SIGTERM');
  }

  /** Starts it again, on the same port and the same database. */
  async restart() {
    await this.#launch(new URL(this.url).host);
  }

  /** Starts it again with an empty database. */
  async restartEmpty() {
    rmSync(this.#folder, { recursive: true });
    mkdirSync(this.#folder);
    await this.restart();
    await this.#declare();
  }

  async close() {
    await this.kill();
    rmSync(this.#folder, { recursive: true });
  }
}

/** @param {import('node:child_process').ChildProcess | undefined} child @param {NodeJS.Signals} signal */
async function end(child, signal) {
  if (!child || child.exitCode !== null || child.signalCode !== null) return;
  child.kill(signal);
  await once(child, 'exit');
}

/**
 * Starts the program, and waits until a line of it is what is looked for.
 *
 * @param {string[]} args
 * @param {Record<string, string>} more of its environment
 * @param {(child: import('node:child_process').ChildProcess) => void} started
 * @param {(line: string) => string | undefined} find
 * @returns {Promise<string>}
 */
async function run(args, more, started, find) {
  const program = process.env.RELAIS_BIN;
  if (!program) throw new Error('RELAIS_BIN must be the path of the program relais: cargo xtask sdk-browser sets it');
  const kept = Object.entries(process.env).filter(([name]) => !/^(RELAIS_|RUST_LOG|HOSTNAME)/.test(name));
  const child = spawn(program, args, { env: { ...Object.fromEntries(kept), ...more }, stdio: ['ignore', 'pipe', 'pipe'] });
  started(child);
  /** @type {string[]} */
  const log = [];
  return new Promise((resolve, reject) => {
    for (const input of [child.stdout, child.stderr]) {
      createInterface({ input }).on('line', (line) => {
        log.push(line);
        const found = log.length < 100 && find(line);
        if (found) resolve(found);
      });
    }
    child.once('error', reject);
    child.once('exit', () => reject(new Error(`relais ended:\n${log.join('\n')}`)));
  });
}

/** `relais demo`; where it is. @param {import('node:test').TestContext} t */
export async function demo(t) {
  const find = (/** @type {string} */ line) => /^Relais serves at (\S+),/.exec(line)?.[1];
  return run(['demo', '--listen', '127.0.0.1:0'], {}, (child) => t.after(() => end(child, 'SIGKILL')), find);
}

/**
 * A proxy that holds each answer back until it has ended, as some in front of offices and phones do.
 *
 * @param {import('node:test').TestContext} t
 * @param {string} to
 * @param {boolean} upgrades whether WebSockets pass
 */
export async function bufferingProxy(t, to, upgrades) {
  const { hostname, port } = new URL(to);
  const server = createServer((incoming, outgoing) => {
    const through = send({ hostname, port, method: incoming.method, path: incoming.url, headers: incoming.headers }, async (response) => {
      const parts = [];
      try {
        for await (const part of response) parts.push(part);
        outgoing.writeHead(response.statusCode ?? 502, response.headers).end(Buffer.concat(parts));
      } catch {
        outgoing.destroy();
      }
    });
    through.on('error', () => outgoing.destroy());
    outgoing.on('close', () => through.destroy());
    incoming.pipe(through);
  });
  server.on('upgrade', (incoming, socket) => {
    if (!upgrades) return void socket.end('HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n');
    const through = connect(Number(port), hostname);
    const lines = [`${incoming.method} ${incoming.url} HTTP/1.1`];
    for (let i = 0; i < incoming.rawHeaders.length; i += 2) lines.push(`${incoming.rawHeaders[i]}: ${incoming.rawHeaders[i + 1]}`);
    through.write(`${lines.join('\r\n')}\r\n\r\n`);
    for (const end of [socket, through]) {
      end.on('error', () => {}).on('close', () => {
        socket.destroy();
        through.destroy();
      });
    }
    socket.pipe(through).pipe(socket);
  });
  return listen(t, server);
}

/**
 * A network that a test cuts, with all that is open, and mends.
 *
 * @param {import('node:test').TestContext} t
 * @param {string} to
 */
export async function network(t, to) {
  const { hostname, port } = new URL(to);
  /** @type {Set<import('node:net').Socket>} */
  const open = new Set();
  let whole = true;
  const server = createTcpServer((near) => {
    const far = connect(Number(port), hostname);
    for (const socket of [near, far]) {
      open.add(socket);
      socket.on('error', () => {}).on('close', () => {
        open.delete(socket);
        near.destroy();
        far.destroy();
      });
    }
    if (whole) near.pipe(far).pipe(near);
    else near.destroy();
  });
  const url = await listen(t, server);
  const cut = () => {
    whole = false;
    for (const socket of open) socket.destroy();
  };
  t.after(cut);
  return { url, cut, mend: () => void (whole = true) };
}

/** @param {import('node:test').TestContext} t @param {import('node:net').Server} server */
async function listen(t, server) {
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => {
    server.close();
    if ('closeAllConnections' in server) /** @type {import('node:http').Server} */ (server).closeAllConnections();
  });
  return `http://127.0.0.1:${/** @type {import('node:net').AddressInfo} */ (server.address()).port}`;
}

/** What a page of a user does: it shows the numbers of the messages, and keeps what happened. */
const SCRIPT = `
import { connect } from '/src/index.js';
import '/src/element.js';
const query = new URLSearchParams(location.search);
const user = query.get('user');
const options = { url: query.get('url'), user, patience: Number(query.get('patience') ?? 10_000) };
if (query.has('ticket')) options.token = query.get('ticket');
else options.getToken = async () => {
  window.asked = (window.asked ?? 0) + 1;
  const token = await (await fetch('/token?' + query)).json();
  window.expires ??= Date.parse(token.expires);
  return token;
};
const [seen, states, withdrawn, gaps] = [[], [], [], []];
const client = connect(options);
client.addEventListener('notification', ({ detail }) => seen.push(detail.payload.number));
client.addEventListener('state', ({ detail }) => states.push(detail));
client.addEventListener('withdrawn', ({ detail }) => withdrawn.push(detail));
client.addEventListener('gap', ({ detail }) => gaps.push(detail));
document.querySelector('relais-bell').client = client;
Object.assign(window, { client, seen, states, withdrawn, gaps });
`;

/**
 * The application whose pages they are.
 *
 * @param {import('node:test').TestContext} t
 * @param {Record<string, string>} [more] of the server's environment
 */
export async function application(t, more = {}) {
  /** @type {Relais} */
  let relais;
  const server = createServer(async (incoming, response) => {
    const { pathname, searchParams } = new URL(incoming.url ?? '', 'http://localhost');
    response.setHeader('Content-Security-Policy', "default-src 'none'; script-src 'self' 'unsafe-eval'; connect-src *");
    if (pathname === '/token') {
      const [user, ttl] = [searchParams.get('user') ?? '', searchParams.get('ttl')];
      const { ticket, expires } = ttl ? await relais.ticket(user, ttl) : { ticket: jwt(user), expires: undefined };
      return void response.end(JSON.stringify({ token: ticket, expires }));
    }
    const script = pathname === '/page.js' ? SCRIPT : /^\/src\/[a-z]+\.js$/.test(pathname)
      ? await readFile(new URL(`../..${pathname}`, import.meta.url), 'utf8') : undefined;
    if (script) return void response.setHeader('Content-Type', 'text/javascript').end(script);
    response.setHeader('Content-Type', 'text/html').end(
      '<!doctype html><html lang="en"><title>A page</title><relais-bell></relais-bell><script type="module" src="/page.js"></script>');
  });
  const origin = await listen(t, server);
  relais = await Relais.start(t, origin, more);

  /** A device of a user: a browser with nothing in it yet. @param {string} user */
  const device = async (user) => {
    const context = await (await browser()).newContext();
    t.after(() => context.close());
    /** @param {Record<string, string>} [query] */
    const open = async (query = {}) => {
      const page = await context.newPage();
      /** @type {string[]} */
      const errors = [];
      page.on('pageerror', (error) => errors.push(String(error)));
      await page.goto(`${origin}/?${new URLSearchParams({ url: relais.url, user, ...query })}`);
      return Object.assign(page, {
        errors,
        /** @param {string} condition */
        until: (condition) => page.waitForFunction(condition, undefined, { timeout: 30_000 }),
        open: () => page.waitForFunction('window.client?.state === "open"', undefined, { timeout: 30_000 }),
        /** @returns {Promise<number[]>} */
        seen: () => page.evaluate('seen'),
        /** @returns {Promise<any>} */
        counts: () => page.evaluate('client.counts'),
        /** @returns {Promise<any[]>} */
        states: () => page.evaluate('states'),
      });
    };
    return { context, open };
  };
  return { relais, device };
}
