#!/usr/bin/env node
/** Runs a handler from a file as a worker. `--help` says how. */

import { readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { parseArgs } from 'node:util';
import { Worker } from '../src/worker/index.js';

const HELP = `\
Runs a handler as a worker of Relais, until it is told to stop.

Usage: relais-worker FILE [OPTIONS]

FILE is a module whose default export is the handler: async (body, context) => result

Options:
  --service NAME        The service whose tasks are done [RELAIS_SERVICE]
  --url URL             http(s)://… of the server, or amqp(s)://… of the broker
                        [RELAIS_BROKER_URL, RELAIS_URL, http://127.0.0.1:8080]
  --client-id ID        Over HTTP: who asks [RELAIS_CLIENT]; its secret is taken from RELAIS_SECRET only
  --queue NAME          Over RabbitMQ: prefix of the queues, if it is not the service's name [RELAIS_QUEUE]
  --concurrency N       How many tasks at the same time [RELAIS_CONCURRENCY, 1]
  --grace DURATION      How long tasks may go on once told to stop [RELAIS_GRACE, 20s]
  --interruptible       Tell tasks to stop at once; the grace period is for that [RELAIS_INTERRUPTIBLE]
  --timeout DURATION    Fail a task that runs for longer [RELAIS_TIMEOUT]
  --lease DURATION      Over HTTP: how long the server waits for a sign of life [60s]
  --heartbeat DURATION  Over RabbitMQ: how often the two ends make sure of each other; 0s for never [10s]
  --ca FILE             Over amqps: the authorities to trust instead of the public ones [RELAIS_BROKER_ROOT_CERTIFICATES]
  --once                One task, then end [RELAIS_ONCE]
  --idle DURATION       End when nothing came for so long [RELAIS_IDLE]
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
    service: text, url: text, 'client-id': text, queue: text, concurrency: text, grace: text, interruptible: flag,
    timeout: text, lease: text, heartbeat: text, ca: text, once: flag, idle: text, health: text, 'host-name': text,
    help: flag,
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
      service: values.service,
      url: values.url,
      clientId: values['client-id'],
      queueName: values.queue,
      concurrency: values.concurrency === undefined ? undefined : Number(values.concurrency),
      grace: values.grace,
      interruptible: values.interruptible,
      timeout: values.timeout,
      lease: values.lease,
      heartbeat: values.heartbeat,
      ca: values.ca === undefined ? undefined : readFileSync(values.ca),
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
