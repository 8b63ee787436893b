/** A worker: its settings, and how it is run, as a part of a program or as the whole of it. */

import { hostname } from 'node:os';
import { onAbort } from '../abort.js';
import { milliseconds } from '../duration.js';
import { environment } from './environment.js';
import { serveHealth } from './health.js';
import { HttpTransport } from './http-transport.js';
import { message, stderr } from './log.js';
import { RabbitMqTransport } from './rabbitmq-transport.js';
import { Run, surviveRejections } from './run.js';

/**
 * The options, understood.
 *
 * @typedef {Omit<import('../../types/worker.js').WorkerOptions, 'health'> & {
 *   url: string, service: string, queueName: string, concurrency: number, grace: number, interruptible: boolean,
 *   timeout: number | undefined, lease: number, heartbeat: number, idle: number | undefined, once: boolean,
 *   hostName: string, logger: import('../../types/worker.js').Logger, stringify: (value: any) => string | undefined,
 *   health: import('../../types/worker.js').HealthOptions | undefined,
 * }} Settings
 */

export class Worker {
  #settings;
  /** @type {Run | undefined} */
  #run;
  /** @type {import('node:net').AddressInfo | undefined} */
  #healthAddress;

  /** @param {import('../../types/worker.js').WorkerOptions} [options] */
  constructor(options = {}) {
    this.#settings = understand(options);
    // Says what is wrong with the address and the credentials now, not at the start.
    this.#transport();
  }

  /** Where `/livez` and `/readyz` are served, while it runs. */
  get healthAddress() {
    return this.#healthAddress;
  }

  /** Whether it runs, is connected, and takes tasks. */
  get isReady() {
    return this.#run?.isReady ?? false;
  }

  /**
   * @param {import('../../types/worker.js').Handler<any, any>} handler
   * @param {{ signal?: AbortSignal }} [options]
   */
  async run(handler, { signal } = {}) {
    if (typeof handler !== 'function') throw new TypeError('the handler must be a function');
    if (this.#run) throw new Error('this worker runs already');
    const run = new Run(this.#settings, handler, this.#transport());
    this.#run = run;
    const unlisten = onAbort(signal, () => run.stop());
    const endSurvival = surviveRejections(this.#settings.logger);
    const { health } = this.#settings;
    /** @type {import('node:http').Server | undefined} */
    let server;
    try {
      server = health && (await serveHealth(health, () => run.isReady));
      this.#healthAddress = /** @type {import('node:net').AddressInfo} */ (server?.address() ?? undefined);
      if (this.#healthAddress) {
        const { address, port, family } = this.#healthAddress;
        const url = `http://${family === 'IPv6' ? `[${address}]` : address}:${port}`;
        this.#settings.logger.info('the health of this worker is served', { url });
      }
      return await run.run();
    } finally {
      server?.close();
      server?.closeAllConnections();
      this.#healthAddress = undefined;
      this.#run = undefined;
      endSurvival();
      unlisten();
    }
  }

  /** @param {{ now?: boolean }} [options] */
  stop(options) {
    this.#run?.stop(options);
  }

  /**
   * @param {import('../../types/worker.js').Handler<any, any>} handler
   * @returns {Promise<never>}
   */
  async main(handler) {
    const { logger } = this.#settings;
    /** @type {AbortController} */
    const signals = new AbortController();
    const told = (/** @type {string} */ name) => {
      const again = signals.signal.aborted;
      logger.info(again ? 'told to stop at once' : 'told to stop: no new tasks are taken', { signal: name });
      signals.abort();
      if (again) this.stop({ now: true });
    };
    process.on('SIGTERM', told).on('SIGINT', told);
    try {
      const report = await this.run(handler, { signal: signals.signal });
      logger.info('stopped', { ...report });
      // A handler that did not heed its signal must not keep the process.
      process.exit(0);
    } catch (error) {
      logger.error(`the worker can not work: ${message(error)}`);
      process.exit(1);
    }
  }

  /** @returns {import('./run.js').Transport} */
  #transport() {
    const { protocol } = new URL(this.#settings.url);
    const overRabbitMq = protocol === 'amqp:' || protocol === 'amqps:';
    return overRabbitMq ? new RabbitMqTransport(this.#settings) : new HttpTransport(this.#settings);
  }
}

/**
 * @param {import('../../types/worker.js').WorkerOptions} given
 * @returns {Settings}
 */
function understand(given) {
  const said = Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined));
  const options = { ...environment(process.env), .../** @type {typeof given} */ (said) };
  const { url, service, concurrency = 1, once = false, interruptible = false, health, idle, timeout } = options;
  if (typeof service !== 'string' || service === '') throw new TypeError('service must be the name of a service');
  if (!Number.isInteger(concurrency) || concurrency < 1) throw new TypeError('concurrency must be a whole number from 1');
  const lease = milliseconds(options.lease ?? 60_000, 'lease');
  if (lease < 1_000) throw new TypeError('lease must be at least 1s');
  return {
    ...options,
    url: url ?? '',
    service,
    queueName: options.queueName ?? service,
    concurrency: once ? 1 : concurrency,
    once,
    grace: milliseconds(options.grace ?? 20_000, 'grace'),
    interruptible,
    timeout: timeout === undefined ? undefined : milliseconds(timeout, 'timeout'),
    lease,
    heartbeat: milliseconds(options.heartbeat ?? 10_000, 'heartbeat'),
    idle: idle === undefined ? undefined : milliseconds(idle, 'idle'),
    hostName: options.hostName ?? process.env.HOSTNAME ?? hostname(),
    logger: options.logger ?? stderr,
    stringify: options.stringify ?? JSON.stringify,
    health: typeof health === 'number' ? { port: health } : health,
  };
}
