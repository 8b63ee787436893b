/** A private Redis, as a process that may be paused and killed. */

import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Redis } from 'ioredis';
import { ended, environment } from './process.js';
import { eventually } from './worker.js';

export class RedisServer {
  #process;
  #folder = mkdtempSync(join(tmpdir(), 'relais-sdk-redis-'));
  url;

  /** @param {number} port */
  constructor(port) {
    const options = ['--port', String(port), '--bind', '127.0.0.1', '--dir', this.#folder, '--save', ''];
    this.#process = spawn('redis-server', options, { stdio: 'ignore', env: environment() });
    this.url = `redis://127.0.0.1:${port}`;
  }

  static async start() {
    const server = new RedisServer(await freePort());
    const redis = server.client();
    await eventually('Redis answers', () => redis.ping().then(() => true, () => false));
    redis.disconnect();
    return server;
  }

  /** A client of ioredis, which gives up soon. */
  client() {
    const redis = new Redis(this.url, { maxRetriesPerRequest: 1, retryStrategy: () => 20 });
    return redis.on('error', () => {});
  }

  /** Nothing answers until it goes on. @param {boolean} stop */
  pause(stop) {
    this.#process.kill(stop ? 'SIGSTOP' : 'SIGCONT');
  }

  async close() {
    this.#process.kill('SIGKILL');
    await ended(this.#process);
    rmSync(this.#folder, { recursive: true, force: true });
  }
}

/** @returns {Promise<number>} */
function freePort() {
  return new Promise((resolve, reject) => {
    const listener = createServer().once('error', reject).listen(0, '127.0.0.1', () => {
      const address = listener.address();
      listener.close(() => resolve(address && typeof address === 'object' ? address.port : 0));
    });
  });
}
