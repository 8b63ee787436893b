/** Workers that are told everything by their environment, as the Helm chart does (`runner: false`). */

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Vhost } from './support/broker.js';
import { Program } from './support/process.js';
import { Server } from './support/server.js';

const HANDLER = 'test/support/handlers.js';
const CHART = { RELAIS_URL: 'http://relais.relais.svc:8080', RELAIS_SERVICE: 'print', RELAIS_CONCURRENCY: '1' };
const JOB = { ...CHART, RELAIS_GRACE: '1780s', RELAIS_ONCE: 'true', RELAIS_IDLE: '60s', RELAIS_INTERRUPTIBLE: 'false' };
const DEPLOYMENT = { ...CHART, RELAIS_GRACE: '100s', RELAIS_ONCE: 'false', RELAIS_INTERRUPTIBLE: 'true' };

/** @type {Server} */
let server;
before(async () => (server = await Server.start()));
after(() => server.close());

/**
 * A worker that is given no more than this, and does not outlive the test.
 *
 * @param {import('node:test').TestContext} t
 * @param {Record<string, string>} env
 * @param {string[]} argumentList
 */
function run(t, env, ...argumentList) {
  const program = new Program('bin/relais-worker.js', [HANDLER, ...argumentList], env);
  t.after(() => program.signal('SIGKILL'));
  return program;
}

/** A service over HTTP, and what the chart says of it. */
async function service() {
  const { service, client, credentials } = await server.service();
  const { clientId, clientSecret } = credentials;
  const said = { RELAIS_URL: server.url, RELAIS_CLIENT: clientId, RELAIS_SECRET: clientSecret, RELAIS_SERVICE: service };
  return { service, client, said };
}

test('a job over RabbitMQ does one task and exits 0', async (t) => {
  const vhost = await Vhost.create(t);
  vhost.queueName = 'images';
  await vhost.declare('images-in');
  await vhost.declare('images-out');
  const [first, second] = [await vhost.submit({ act: 'one' }), await vhost.submit({ act: 'two' })];
  const broker = { RELAIS_BROKER_URL: vhost.url.href, RELAIS_QUEUE: 'images' };
  const worker = run(t, { ...JOB, ...broker, RELAIS_TIMEOUT: '1800s' });
  assert.equal(await worker.end(), 0, worker.output);
  const out = await vhost.follow();
  const { body } = await out.end();
  assert.deepEqual([body.taskId, body.data.response], [first, 'one: done']);
  const left = await vhost.follow('images-in');
  assert.equal((await left.next()).body.taskId, second);
});

test('a deployment over HTTP is interrupted at once, and exits 0', async (t) => {
  const { service: name, client, said } = await service();
  const worker = run(t, { ...DEPLOYMENT, ...said });
  const { taskId } = await client.submit(name, { act: 'wait' });
  await worker.says('begins wait');
  worker.signal('SIGTERM');
  await worker.says('interrupted stopping');
  assert.equal(await worker.end(), 0, worker.output);
  assert.equal((await client.get(name, taskId)).status, 'PENDING');
});

test('a task past its timeout fails', async (t) => {
  const { service: name, client, said } = await service();
  const { taskId } = await client.submit(name, { act: 'wait' });
  const worker = run(t, { ...JOB, ...said, RELAIS_TIMEOUT: '1s' });
  assert.equal(await worker.end(), 0, worker.output);
  const { errorKind, errorMessage } = await client.get(name, taskId);
  assert.deepEqual([errorKind, errorMessage], ['timeout', 'It ran for longer than it may.']);
});

test('a job for which there is no task exits 0', async (t) => {
  const vhost = await Vhost.create(t);
  const worker = run(t, { ...JOB, RELAIS_BROKER_URL: vhost.url.href, RELAIS_IDLE: '1s' });
  assert.equal(await worker.end(), 0, worker.output);
});

test('the command line wins over the environment', async (t) => {
  const { service: name, client, said } = await service();
  const { taskId } = await client.submit(name, { act: 'something' });
  const env = { ...DEPLOYMENT, ...said, RELAIS_BROKER_URL: 'amqp://rabbitmq', RELAIS_CONCURRENCY: '0' };
  const worker = run(t, env, '--url', server.url, '--concurrency', '2', '--once');
  assert.equal(await worker.end(), 0, worker.output);
  assert.equal((await client.get(name, taskId)).status, 'SUCCESS');
});

test('an invalid setting is refused by its name', async (t) => {
  for (const [name, value] of /** @type {const} */ ([
    ['RELAIS_CONCURRENCY', 'many'], ['RELAIS_GRACE', 'soon'], ['RELAIS_ONCE', 'perhaps'],
  ])) {
    const worker = run(t, { ...JOB, [name]: value });
    assert.equal(await worker.end(), 2, worker.output);
    assert.match(worker.output, new RegExp(`${name} must be .*${value}`));
  }
});
