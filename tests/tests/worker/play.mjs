/** A worker of the JavaScript library that does what its tasks say, and tells the test what it does; see foreign.rs. */

import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { Failure, TryAgain, Worker } from '../../../sdk/javascript/src/worker/index.js';

/** What a task can ask for, as in stage.rs. */
const ORDERS = {
  double: ({ n }) => 2 * n,
  fail: ({ message }) => {
    throw new Failure(message, { retryable: false, kind: 'told' });
  },
  panic: () => {
    throw new Error('told to');
  },
  progress: ({ percent }, context) => {
    for (let step = 0; step < 10_000; step += 1) context.progress(step % 100);
    context.progress(percent);
    return wait(context);
  },
  stumble: ({ percent }, { progress }) => {
    progress(percent);
    throw new Error('stumbled');
  },
  wait: (_, context) => wait(context),
  never: () => new Promise(() => {}),
  again: (_, { taskId }) => {
    if (starts.get(taskId) === 1) throw new TryAgain('not yet');
    return starts.get(taskId);
  },
  know: (_, { taskId, attempt = null, redelivered, correlationId, deadline }) => {
    return { taskId, attempt, redelivered, correlationId, deadline: deadline !== undefined };
  },
};

const starts = new Map();
const waiting = new Map();

/** Tells the test. */
const say = (what) => process.stdout.write(`${JSON.stringify(what)}\n`);

/** Bodies of another shape are for the library to refuse. */
function parse(text) {
  const order = JSON.parse(text);
  if (!Object.hasOwn(ORDERS, order.do)) throw new TypeError(`there is no order ${order.do}`);
  return order;
}

async function play(order, context) {
  const { taskId } = context;
  starts.set(taskId, (starts.get(taskId) ?? 0) + 1);
  say({ start: taskId });
  try {
    return await ORDERS[order.do](order, context);
  } finally {
    say({ leave: taskId });
  }
}

/** Until the test lets it go, or it is told to stop. */
function wait({ taskId, redelivered, signal }) {
  return new Promise((resolve, reject) => {
    waiting.set(taskId, () => resolve({ redelivered }));
    signal.addEventListener('abort', () => {
      say({ stop: taskId });
      reject(signal.reason);
    });
    say({ wait: taskId });
  });
}

/** Lets tasks go, by their ids. */
async function listen() {
  for await (const line of lines) waiting.get(JSON.parse(line))();
  process.exit(1); // The test is gone.
}

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const { lease, grace, ...settings } = JSON.parse((await lines.next()).value);
const seconds = (number) => (number === undefined ? undefined : number * 1_000);
// What was installed for the library is not beside it: nothing is left behind in the sources.
const installed = createRequire(`${process.argv[2]}/package.json`);
const worker = new Worker({
  ...settings, parse, lease: seconds(lease), grace: seconds(grace),
  amqplib: settings.url.startsWith('amqp') ? installed('amqplib') : undefined,
});
const stop = new AbortController();
process.on('SIGTERM', () => stop.abort());
void listen();
say({ up: true });
say({ report: await worker.run(play, { signal: stop.signal }) });
// A handler that never ends must not keep the process.
process.exit(0);
