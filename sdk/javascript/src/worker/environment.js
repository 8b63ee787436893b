/**
 * What whoever runs the process says by its environment, as the Helm chart does to an image that is a worker by itself.
 *
 * What the program says wins over it. What is empty is not said; what makes no sense is an error that names the variable.
 */

import { readFileSync } from 'node:fs';
import { milliseconds } from '../duration.js';

/**
 * @param {Record<string, string | undefined>} env
 * @returns {Partial<import('../../types/worker.js').WorkerOptions> & { url: string }}
 */
export function environment(env) {
  const text = (/** @type {string} */ name) => env[name] || undefined;
  /**
   * @template T
   * @param {string} name
   * @param {(said: string) => T} read
   */
  const said = (name, read) => {
    const value = text(name);
    return value === undefined ? undefined : read(value);
  };
  const duration = (/** @type {string} */ name) => said(name, (value) => milliseconds(value, name));
  const flag = (/** @type {string} */ name) => said(name, (value) => {
    if (!/^(true|false|1|0)$/i.test(value)) throw new TypeError(`${name} must be true or false, and not ${value}`);
    return /^(true|1)$/i.test(value);
  });
  return {
    // A broker that is named is there to be used; the server's address may be there as well.
    url: text('RELAIS_BROKER_URL') ?? text('RELAIS_URL') ?? 'http://127.0.0.1:8080',
    clientId: text('RELAIS_CLIENT'),
    clientSecret: text('RELAIS_SECRET'),
    service: text('RELAIS_SERVICE'),
    queueName: text('RELAIS_QUEUE'),
    concurrency: said('RELAIS_CONCURRENCY', (value) => {
      if (!/^\d+$/.test(value)) throw new TypeError(`RELAIS_CONCURRENCY must be a whole number, and not ${value}`);
      return Number(value);
    }),
    grace: duration('RELAIS_GRACE'),
    interruptible: flag('RELAIS_INTERRUPTIBLE'),
    timeout: duration('RELAIS_TIMEOUT'),
    once: flag('RELAIS_ONCE'),
    idle: duration('RELAIS_IDLE'),
    ca: said('RELAIS_BROKER_ROOT_CERTIFICATES', (file) => readFileSync(file)),
  };
}
