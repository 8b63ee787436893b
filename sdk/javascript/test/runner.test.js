/** Workers as processes: signals, kill -9, and what must never end them. */

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Vhost } from './support/broker.js';
import { Program } from './support/process.js';
import { Server } from './support/server.js';
import { eventually } from './support/worker.js';

const RUNNER = 'bin/relais-worker.js';
const HANDLER = 'test/support/handlers.js';

/** @type {Server} */
let server;
before(async () => (server = await Server.start()));
after(() => server.close());

/**
 * The runner in a process of its own, which does not outlive the test.
 *
 * @param {import('node:test').TestContext} t
 * @param {string[]} argumentList
 * @param {Record<string, string>} env
 */
function run(t, argumentList, env) {
  const program = new Program(RUNNER, argumentList, env);
  t.after(() => program.signal('SIGKILL'));
  return program;
}

/** A service over HTTP and over RabbitMQ: how to run a worker, how to submit, and what is told at the end. */
const transports = {
  /** @param {import('node:test').TestContext} _ */
  async http(_) {
    const { service, client, credentials } = await server.service();
    const env = { RELAIS_URL: server.url, RELAIS_CLIENT: credentials.clientId, RELAIS_SECRET: credentials.clientSecret };
    return {
      env, service,
      submit: async (/** @type {object} */ body) => (await client.submit(service, body)).taskId,
      result: async (/** @type {string} */ taskId) => (await client.wait(service, taskId, { timeout: '20s' })).response,
      /** It waits for another worker, and nothing is held against it. */
      isBack: (/** @type {string} */ taskId) => eventually('it is back', async () => {
        const { task, losses } = await server.task(taskId);
        return task.status === 'PENDING' && losses === 0;
      }),
    };
  },
  /** @param {import('node:test').TestContext} t */
  async rabbitmq(t) {
    const vhost = await Vhost.create(t);
    await vhost.declare('print-in');
    await vhost.declare('print-out');
    const out = await vhost.follow();
    return {
      env: { RELAIS_URL: vhost.url.href }, service: 'print',
      submit: (/** @type {object} */ body) => vhost.submit(body),
      result: async (/** @type {string} */ taskId) => {
        const { body } = await out.end();
        assert.equal(body.taskId, taskId);
        return body.data.response;
      },
      isBack: () => eventually('it is back', async () => {
        const { ready, consumers } = await vhost.count('print-in');
        return ready === 1 && consumers === 0;
      }),
    };
  },
};

for (const [name, open] of Object.entries(transports)) {
  test(`${name}: at SIGTERM, running tasks finish, and the process exits 0`, async (t) => {
    const { env, service, submit, result } = await open(t);
    const worker = run(t, [HANDLER, '--service', service], env);
    const taskId = await submit({ act: 'finish when stopped' });
    await worker.says('begins finish');
    worker.signal('SIGTERM');
    assert.equal(await result(taskId), 'finish when stopped: done');
    assert.equal(await worker.end(), 0, worker.output);
  });

  test(`${name}: at SIGTERM, interruptible tasks are returned, and the process exits 0`, async (t) => {
    const { env, service, submit, isBack } = await open(t);
    const worker = run(t, [HANDLER, '--service', service, '--grace', '0s'], env);
    const taskId = await submit({ act: 'wait' });
    await worker.says('begins wait');
    worker.signal('SIGTERM');
    await worker.says('interrupted stopping');
    assert.equal(await worker.end(), 0, worker.output);
    await isBack(taskId);
  });

  test(`${name}: a second signal does not wait for anything`, async (t) => {
    const { env, service, submit, isBack } = await open(t);
    const worker = run(t, [HANDLER, '--service', service, '--grace', '1h'], env);
    const taskId = await submit({ act: 'hang' });
    await worker.says('begins hang');
    worker.signal('SIGINT');
    await worker.says('no new tasks are taken');
    worker.signal('SIGTERM');
    assert.equal(await worker.end(), 0, worker.output);
    await isBack(taskId);
  });

  test(`${name}: a task of a crashed worker is run by another one`, async (t) => {
    const { env, service, submit, result } = await open(t);
    const first = run(t, [HANDLER, '--service', service, '--lease', '1s'], env);
    const taskId = await submit({ act: 'hang' });
    await first.says('begins hang');
    first.signal('SIGKILL');
    assert.equal(await first.end(), 'SIGKILL');
    const second = run(t, [HANDLER, '--service', service], env);
    assert.equal(await result(taskId), 'hang: done');
    second.signal('SIGTERM');
    assert.equal(await second.end(), 0, second.output);
  });

  test(`${name}: a promise that fails unheard does not end the worker`, async (t) => {
    const { env, service, submit, result } = await open(t);
    const worker = run(t, [HANDLER, '--service', service], env);
    assert.equal(await result(await submit({ act: 'reject unheard' })), 'reject unheard: done');
    await worker.says('nobody hears this');
    assert.equal(await result(await submit({ act: 'next' })), 'next: done');
    worker.signal('SIGTERM');
    assert.equal(await worker.end(), 0, worker.output);
  });

  test(`${name}: once, the process ends after one task`, async (t) => {
    const { env, service, submit, result } = await open(t);
    const taskId = await submit({ act: 'something' });
    const worker = run(t, [HANDLER, '--service', service, '--once'], env);
    assert.equal(await result(taskId), 'something: done');
    assert.equal(await worker.end(), 0, worker.output);
  });
}

test('the start of a redelivered task is reported even if it crashes the process at once', async (t) => {
  const vhost = await Vhost.create(t);
  await vhost.declare('print-in');
  await vhost.declare('print-out');
  const out = await vhost.follow();
  const taskId = await vhost.submit({ act: 'die' });
  await vhost.look('print-in');
  const worker = run(t, [HANDLER, '--service', 'print', '--host-name', 'pod-1'], { RELAIS_BROKER_URL: vhost.url.href });
  assert.equal(await worker.end(), 'SIGKILL', worker.output);
  assert.deepEqual((await out.next()).body, { taskId, data: { messageType: 'started', hostName: 'pod-1' } });
});

test('a command line that makes no sense is refused, and says why', async (t) => {
  /** @type {[string[], number, RegExp][]} */
  const wrong = [
    [[], 2, /name one file/],
    [[HANDLER], 2, /service/],
    [[HANDLER, '--service', 'x', '--speed', '9'], 2, /--speed/],
    [[HANDLER, '--service', 'x', '--concurrency', 'many'], 2, /concurrency/],
    [[HANDLER, '--service', 'x', '--health', 'here'], 2, /not a port/],
    [['nowhere.js', '--service', 'x'], 1, /can not be loaded/],
    [['test/support/process.js', '--service', 'x'], 1, /not a function/],
  ];
  const env = { RELAIS_URL: server.url, RELAIS_CLIENT: 'nobody', RELAIS_SECRET: 'x' };
  const programs = wrong.map(([argumentList]) => run(t, argumentList, env));
  for (const [index, [, code, message]] of wrong.entries()) {
    assert.equal(await programs[index]?.end(), code);
    assert.match(programs[index]?.output ?? '', message);
  }
  const refused = run(t, [HANDLER, '--service', 'x'], env);
  await refused.says('Forbidden');
  assert.equal(await refused.end(), 1);
  const help = run(t, ['--help'], {});
  await help.says('Usage: relais-worker FILE');
  assert.equal(await help.end(), 0);
});

test('the runner serves its health where it is told to', async (t) => {
  const { service, credentials } = await server.service();
  const env = { RELAIS_URL: server.url, RELAIS_CLIENT: credentials.clientId, RELAIS_SECRET: credentials.clientSecret };
  const worker = run(t, [HANDLER, '--service', service, '--health', '127.0.0.1:0', '--idle', '1h'], env);
  const line = await worker.says('health');
  const [, address] = /"(http[^"]*)"/.exec(line) ?? [];
  await eventually('it is ready', async () => (await fetch(`${address}/readyz`)).status === 200);
  worker.signal('SIGTERM');
  assert.equal(await worker.end(), 0, worker.output);
});
