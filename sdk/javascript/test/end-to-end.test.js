/** The whole way: submitted over HTTP, carried by RabbitMQ, done by a worker, and read over HTTP. */

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Client } from '@relais/sdk';
import { Failure, RelaisError, TryAgain, Worker } from '@relais/sdk/worker';
import { Vhost } from './support/broker.js';
import { PATIENCE, Program, within } from './support/process.js';
import { Server } from './support/server.js';
import { Event, eventually, Log, start } from './support/worker.js';

/** @type {Server} */
let server;
/** @type {Vhost} */
let vhost;
const ends = /** @type {(() => Promise<void>)[]} */ ([]);
before(async () => {
  vhost = await Vhost.create({ after: (end) => ends.push(end) });
  server = await Server.start('--broker', vhost.url.href);
  ends.unshift(() => server.close());
});
after(async () => {
  for (const end of ends) await end();
});

/** @param {object} [more] */
async function service(more = {}) {
  const found = await server.service({ transport: 'rabbitmq', ...more });
  return { ...found, worker: { url: vhost.url.href, service: found.service, hostName: 'pod-1' } };
}

/**
 * @param {import('node:test').TestContext} t
 * @param {string} name
 * @param {...string} more
 */
function run(t, name, ...more) {
  const argumentList = ['test/support/handlers.js', '--service', name, ...more];
  const program = new Program('bin/relais-worker.js', argumentList, { RELAIS_URL: vhost.url.href });
  t.after(() => program.signal('SIGKILL'));
  return program;
}

test('a task goes all the way, and its progress is seen', async (t) => {
  const { service: name, client, worker } = await service({ queueName: 'other-name' });
  /** @type {Event<void>} */
  const seen = new Event('the progress is seen');
  const { stop } = start(t, { ...worker, queueName: 'other-name' }, async ({ n }, { progress, correlationId }) => {
    progress(40);
    await seen.wait();
    return { double: n * 2, correlationId };
  });
  const { taskId } = await client.submit(name, { n: 2 }, { correlationId: 'c' });
  for await (const { task } of client.stream(name, taskId)) if (task.progress === 40) seen.happens();
  const task = await client.get(name, taskId);
  assert.deepEqual([task.status, task.response], ['SUCCESS', { double: 4, correlationId: 'c' }]);
  assert.equal((await server.task(taskId)).workerHost, 'pod-1');
  assert.equal((await stop()).done, 1);
});

test('a failure goes all the way, and large numbers do', async (t) => {
  const { service: name, client, worker, credentials } = await service();
  const raw = (/** @type {string} */ text) => text;
  start(t, { ...worker, parse: raw, stringify: raw }, (body) => {
    if (body === '{}') throw new Error('no paper');
    return body;
  });
  const failed = await client.submit(name, {});
  assert.equal((await client.wait(name, failed.taskId)).errorMessage, 'no paper');
  const exact = new Client({ url: server.url, ...credentials, parse: raw, stringify: raw });
  const { taskId } = await exact.submit(name, '{"id":12345678901234567890}');
  assert.equal((await exact.wait(name, taskId)).response, '{"id":12345678901234567890}');
});

test('many tasks over many workers are each done once', async (t) => {
  const { service: name, client, worker } = await service();
  const times = new Map();
  const handler = (/** @type {{ n: number }} */ { n }) => void times.set(n, (times.get(n) ?? 0) + 1);
  for (let n = 0; n < 3; n += 1) start(t, { ...worker, concurrency: 10 }, handler);
  const answers = await client.submitMany(name, Array.from({ length: 300 }, (_, n) => ({ body: { n } })));
  for (const answer of answers) {
    assert(!(answer instanceof RelaisError));
    assert.equal((await client.wait(name, answer.taskId)).status, 'SUCCESS');
  }
  assert.equal(times.size, 300);
  assert([...times.values()].every((count) => count === 1));
});

test('at SIGTERM a task is returned and pending again, without a loss; another worker runs it', async (t) => {
  const { service: name, client } = await service({ deliveryLimit: 1 });
  const { taskId } = await client.submit(name, { act: 'wait' });
  const first = run(t, name, '--grace', '0s');
  await first.says('begins wait');
  first.signal('SIGTERM');
  assert.equal(await first.end(), 0, first.output);
  await eventually('it waits again', async () => (await client.get(name, taskId)).status === 'PENDING');
  assert.equal((await server.task(taskId)).losses, 0);
  run(t, name);
  assert.equal((await client.wait(name, taskId)).response, 'wait: done');
});

test('a task of a crashed worker is run by another one', async (t) => {
  const { service: name, client } = await service();
  const { taskId } = await client.submit(name, { act: 'hang' });
  const first = run(t, name);
  await first.says('begins hang');
  first.signal('SIGKILL');
  run(t, name);
  assert.equal((await client.wait(name, taskId)).response, 'hang: done');
});

test('a handler returns a task as often as it likes, without a loss', async (t) => {
  const { service: name, client, worker } = await service({ deliveryLimit: 1 });
  let times = 0;
  start(t, worker, () => {
    times += 1;
    if (times < 4) throw new TryAgain();
    return times;
  });
  const { taskId } = await client.submit(name, {});
  assert.equal((await client.wait(name, taskId)).response, 4);
});

test('a failing task is retried, and each attempt is shown', async (t) => {
  const { service: name, client, worker } = await service({ retry: { limit: 2, base: '50ms' } });
  let times = 0;
  const { stop } = start(t, worker, () => {
    times += 1;
    if (times === 1) throw new TypeError('no paper');
    if (times === 2) throw new Failure('no ink', { kind: 'ink', retryAfter: 10 });
    return times;
  });
  const { taskId } = await client.submit(name, {});
  assert.equal((await client.wait(name, taskId)).response, 3);
  const { attempts } = await server.task(taskId);
  const shown = attempts.map((/** @type {any} */ { outcome, errorKind }) => [outcome, errorKind]);
  assert.deepEqual(shown, [['failure', 'TypeError'], ['failure', 'ink'], ['success', undefined]]);
  assert.match(attempts[0].errorTrace, /^TypeError: no paper\n    at .*end-to-end\.test\.js/);
  assert.equal((await stop()).failed, 2);
});

test('a failure that is not retryable is final', async (t) => {
  const { service: name, client, worker } = await service({ retry: { limit: 2, base: '50ms' } });
  start(t, worker, () => {
    throw new Failure('never', { retryable: false, kind: 'paper' });
  });
  const { taskId } = await client.submit(name, {});
  const task = await client.wait(name, taskId);
  assert.deepEqual([task.status, task.errorKind], ['FAILURE', 'paper']);
  assert.equal((await server.task(taskId)).attempts.length, 1);
});

test('a delayed task is published when it is due', async (t) => {
  const { service: name, client, worker } = await service();
  start(t, worker, () => 'done');
  const later = await client.submit(name, {}, { delay: 400, uniqueKey: 'album 7', uniqueFor: '1h' });
  assert.equal((await client.submit(name, {}, { uniqueKey: 'album 7' })).duplicate, true);
  const { response, scheduledDate, startDate } = await client.wait(name, later.taskId);
  assert.equal(response, 'done');
  assert(scheduledDate && startDate && startDate >= scheduledDate, `${scheduledDate} ${startDate}`);
});

test('a worker over HTTP without its service ends with the reason', async () => {
  const { options } = await service();
  const worker = new Worker({ ...options, logger: new Log() });
  const running = within(PATIENCE, 'it ends', worker.run(() => 1));
  await assert.rejects(running, (error) => error instanceof RelaisError && error.number === 409003);
});
