/** The real server, as a process with a database of its own. `RELAIS_BIN` names the program. */

import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { Client } from '@relais/sdk';
import { ended, environment, within } from './process.js';

export class Server {
  /** @type {import('node:child_process').ChildProcess} */
  #process;
  #folder = mkdtempSync(join(tmpdir(), 'relais-sdk-'));
  #arguments;
  url = '';
  #services = 0;

  /** @param {string[]} extra more arguments of `relais serve` */
  static async start(...extra) {
    const server = new Server(extra);
    await server.#launch('127.0.0.1:0');
    return server;
  }

  /** @param {string[]} extra */
  constructor(extra) {
    this.#arguments = extra;
    this.#process = /** @type {any} */ (undefined);
  }

  /** @param {string} listen */
  async #launch(listen) {
    const program = process.env.RELAIS_BIN;
    if (!program) throw new Error('RELAIS_BIN must be the path of the program relais');
    const serve = ['serve', '--listen', listen, '--database', `sqlite:${join(this.#folder, 'relais.db')}`];
    // bcrypt is slow on purpose, and so are users.
    const env = environment({ RELAIS_AUTH_BCRYPT_COST: '4', RELAIS_NOTIFICATIONS_ACK_TIMEOUT: '200ms' });
    const child = spawn(program, [...serve, '--log-format', 'json', ...this.#arguments], {
      cwd: this.#folder, env, stdio: ['ignore', 'ignore', 'pipe'],
    });
    this.#process = child;
    const log = /** @type {string[]} */ ([]);
    const lines = createInterface({ input: /** @type {import('node:stream').Readable} */ (child.stderr) });
    this.url = await within(30_000, 'the server starts', new Promise((resolve, reject) => {
      lines.on('line', (line) => {
        log.push(line);
        const { message, address } = JSON.parse(line);
        if (message.startsWith('Relais serves')) resolve(`http://${address}`);
      });
      child.once('error', reject);
      child.once('exit', () => reject(new Error(`the server ended:\n${log.join('\n')}`)));
    }));
  }

  /**
   * A service with a name of its own, and a client that may do everything on it.
   *
   * @param {object} [more] more of its declaration
   * @param {Partial<import('@relais/sdk').ClientOptions>} [options]
   */
  async service(more = {}, options = {}) {
    this.#services += 1;
    const service = `service-${process.pid}-${this.#services}`;
    const credentials = { clientId: `client-of-${service}`, clientSecret: 'hush' };
    await this.declare({
      services: [{ serviceName: service, ...more }],
      clients: [credentials],
      authorizations: [{ clientId: credentials.clientId, serviceName: service, roles: ['consume', 'work'] }],
    });
    const client = new Client({ url: this.url, ...credentials, ...options });
    return { service, credentials, client, options: { url: this.url, service, ...credentials } };
  }

  /** @param {object} declaration */
  declare(declaration) {
    return this.admin('POST', '/admin/apply', declaration);
  }

  /**
   * @param {string} method
   * @param {string} path
   * @param {object} [body]
   * @returns {Promise<any>}
   */
  async admin(method, path, body) {
    const headers = { 'Content-Type': 'application/json' };
    const response = await fetch(this.url + path, { method, headers, body: body && JSON.stringify(body) });
    const answer = await response.json();
    if (!response.ok) throw new Error(`${method} ${path}: ${JSON.stringify(answer)}`);
    return answer.data;
  }

  /**
   * A task as operators see it.
   *
   * @param {string} taskId
   */
  async task(taskId) {
    return this.admin('GET', `/admin/tasks/${taskId}`);
  }

  /** Ends it as a lost machine would. */
  async kill() {
    this.#process.kill('SIGKILL');
    await ended(this.#process);
  }

  /** Asks it to stop, and waits until it has. */
  async stop() {
    this.#process.kill('SIGTERM');
    await ended(this.#process);
  }

  /** Starts it again, on the same port and the same database. */
  async restart() {
    await this.#launch(new URL(this.url).host);
  }

  async close() {
    await this.kill();
    rmSync(this.#folder, { recursive: true });
  }
}
