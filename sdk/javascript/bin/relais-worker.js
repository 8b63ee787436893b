#!/usr/bin/env node
/** Runs a handler from a file as a worker. `--help` says how. */

import { resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { parseArgs } from 'node:util';
import { Worker } from '../src/worker/index.js';

const HELP = `\
Runs a handler as a worker of Relais, until it is told to stop.

Usage: relais-worker FILE --service NAME [OPTIONS]

FILE is a module whose default export is the handler: async (body, context) => result

Options:
  --service NAME        The service whose tasks are done
  --url URL             http(s)://… of the server, or amqp(s)://… of the broker [RELAIS_URL, http://127.0.0.1:8080]
  --client-id ID        Over HTTP: who asks [RELAIS_CLIENT]; its secret is taken from RELAIS_SECRET only
  --queue NAME          Over RabbitMQ: prefix of the queues, if it is not the service's name
  --concurrency N       How many tasks at the same time [1]
  --grace DURATION      How long tasks may go on once told to stop; 0s for those that can be interrupted [20s]
  --lease DURATION      Over HTTP: how long the server waits for a sign of life [60s]
  --once                One task, then end
  --idle DURATION       End when nothing came for so long
  --health [HOST:]PORT  Serve /livez and /readyz there
  --host-name NAME      Shown beside the tasks [HOSTNAME, or the machine's name]
  --help                This text

SIGTERM and SIGINT: no new task is taken; what runs has the grace period, then it is given back. A second one: at once.

Exit status: 0 stopped in good order, 1 it can not work, 2 the command line was not understood.
`;

/**
 * @param {string} message
 * @returns {never}
 */
function misunderstood(message) {
  process.stderr.write(`error: ${message}\n\`relais-worker --help\` lists the options.\n`);
  process.exit(2);
}

function read() {
  const text = /** @type {const} */ ({ type: 'string' });
  const flag = /** @type {const} */ ({ type: 'boolean' });
  const options = {
    service: text, url: text, 'client-id': text, queue: text, concurrency: text, grace: text, lease: text, once: flag,
    idle: text, health: text, 'host-name': text, help: flag,
  };
  try {
    return parseArgs({ options, allowPositionals: true });
  } catch (error) {
    return misunderstood(/** @type {Error} */ (error).message);
  }
}

const { values, positionals } = read();
if (values.help) {
  process.stdout.write(HELP);
  process.exit(0);
}
const [file, ...tooMany] = positionals;
if (!file || tooMany.length > 0) misunderstood('name one file that exports the handler');

/** @param {string} text */
function health(text) {
  const [, host, port] = /^(?:\[?(.*?)\]?:)?(\d+)$/.exec(text) ?? misunderstood(`${text} is not a port, nor HOST:PORT`);
  return { host, port: Number(port) };
}

function build() {
  try {
    return new Worker({
      service: values.service ?? '',
      url: values.url ?? process.env.RELAIS_URL ?? 'http://127.0.0.1:8080',
      clientId: values['client-id'] ?? process.env.RELAIS_CLIENT,
      clientSecret: process.env.RELAIS_SECRET,
      queueName: values.queue,
      concurrency: values.concurrency === undefined ? undefined : Number(values.concurrency),
      grace: values.grace,
      lease: values.lease,
      once: values.once,
      idle: values.idle,
      hostName: values['host-name'],
      health: values.health === undefined ? undefined : health(values.health),
    });
  } catch (error) {
    return misunderstood(/** @type {Error} */ (error).message);
  }
}

const worker = build();
/** @type {any} */
const module = await import(pathToFileURL(resolve(file)).href).catch((error) => {
  process.stderr.write(`error: ${file} can not be loaded: ${error?.stack ?? error}\n`);
  process.exit(1);
});
if (typeof module.default !== 'function') {
  process.stderr.write(`error: the default export of ${file} is not a function\n`);
  process.exit(1);
}
await worker.main(module.default);
