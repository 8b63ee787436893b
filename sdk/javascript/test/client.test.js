/** The consumer's side, against a real server. */

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Client, RelaisError } from '@relais/sdk';
import { Proxy } from './support/proxy.js';
import { Server } from './support/server.js';
import { Event, start } from './support/worker.js';

/** @type {Server} */
let server;
before(async () => (server = await Server.start()));
after(() => server.close());

/** @param {number | undefined} number */
const refused = (number) => (/** @type {unknown} */ error) => {
  assert(error instanceof RelaisError, String(error));
  assert.equal(error.number, number, error.message);
  return true;
};

test('a task is submitted, done and read', async (t) => {
  const { service, client, options } = await server.service();
  const { taskId, taskPosition } = await client.submit(service, { pages: 3 }, { correlationId: 'chain-1' });
  assert.equal(taskPosition, 1);
  const pending = await client.get(service, taskId);
  assert.equal(pending.status, 'PENDING');
  assert.equal(pending.correlationId, 'chain-1');
  start(t, options, ({ pages }, { correlationId }) => ({ sheets: Math.ceil(pages / 2), correlationId }));
  const task = await client.wait(service, taskId);
  assert.equal(task.status, 'SUCCESS');
  assert.deepEqual(task.response, { sheets: 2, correlationId: 'chain-1' });
  assert.equal(task.progress, 100);
});

test('a repeated idempotency key makes no duplicate task, and another request with it is refused', async () => {
  const { service, client } = await server.service();
  const first = await client.submit(service, { n: 1 }, { idempotencyKey: 'order-1' });
  assert.deepEqual(await client.submit(service, { n: 1 }, { idempotencyKey: 'order-1' }), first);
  await assert.rejects(client.submit(service, { n: 2 }, { idempotencyKey: 'order-1' }), refused(409001));
  // Without one of their own, submissions are not taken for each other.
  for (const idempotencyKey of /** @type {const} */ ([undefined, false])) {
    const one = await client.submit(service, { n: 1 }, { idempotencyKey });
    assert.notEqual((await client.submit(service, { n: 1 }, { idempotencyKey })).taskId, one.taskId);
  }
});

test('a submission whose answer is lost is retried, and makes one task', async (t) => {
  const { service, client: direct, credentials } = await server.service();
  const proxy = await Proxy.start(t, server.url);
  const client = new Client({ url: proxy.url, ...credentials });
  proxy.loseNextAnswer();
  const { taskId } = await client.submit(service, { n: 1 });
  assert.equal(proxy.lost, 1);
  const tasks = [];
  for await (const task of direct.list(service)) tasks.push(task.taskId);
  assert.deepEqual(tasks, [taskId]);
});

test('without an idempotency key, or in a batch, a call whose answer is lost is not retried', async (t) => {
  const { service, client: direct, credentials } = await server.service();
  const proxy = await Proxy.start(t, server.url);
  const client = new Client({ url: proxy.url, ...credentials });
  proxy.loseNextAnswer();
  await assert.rejects(client.submit(service, { n: 1 }, { idempotencyKey: false }), refused(undefined));
  proxy.loseNextAnswer();
  await assert.rejects(client.submitMany(service, [{ body: { n: 1 } }]), refused(undefined));
  assert.equal((await direct.page(service)).tasks.length, 2);
});

test('a refusal has its number, description and details', async () => {
  const jsonSchema = { type: 'object', required: ['pages'], properties: { pages: { type: 'integer' } } };
  const { service, client, credentials } = await server.service({ jsonSchema });
  await assert.rejects(client.submit(service, { pages: 'x' }), (error) => {
    assert(error instanceof RelaisError);
    assert.equal(error.number, 400001);
    assert.equal(error.status, 400);
    assert.match(error.description, /^Error validating the body/);
    assert.equal(error.details[0]?.path, '/pages');
    assert.match(error.message, /400001/);
    return true;
  });
  await assert.rejects(client.get(service, 'not-a-task'), refused(404002));
  await assert.rejects(client.get(`no-${service}`, 'x'), refused(404001));
  const stranger = new Client({ url: server.url, ...credentials, clientSecret: 'wrong' });
  await assert.rejects(stranger.services(), refused(403001));
  await assert.rejects(client.submit(service, { pages: 1n }), TypeError);
});

test('many tasks are submitted in one go, each with its own answer', async () => {
  const { service, client } = await server.service({ jsonSchema: { type: 'object', required: ['n'] } });
  const bodies = Array.from({ length: 1500 }, (_, n) => ({ body: n === 1200 ? {} : { n } }));
  const answers = await client.submitMany(service, bodies);
  assert.equal(answers.length, 1500);
  const bad = answers[1200];
  assert(bad instanceof RelaisError);
  assert.equal(bad.number, 400001);
  assert.equal(answers.filter((answer) => !(answer instanceof RelaisError) && answer.taskId).length, 1499);
  assert.deepEqual(await client.submitMany(service, []), []);
});

test('a full service is waited for as long as it says', async () => {
  const { service, client, credentials } = await server.service({ capacity: 1 });
  const first = await client.submit(service, {});
  const hasty = new Client({ url: server.url, ...credentials, retries: 0 });
  await assert.rejects(hasty.submit(service, {}), (error) => {
    assert(error instanceof RelaisError);
    assert.equal(error.number, 429001);
    assert.equal(error.retryAfter, 1000);
    return true;
  });
  // Room is made while the second one waits for its next try.
  let refusals = 0;
  /** @type {typeof fetch} */
  const watched = async (...request) => {
    const response = await fetch(...request);
    if (response.status === 429 && ++refusals === 1) await client.cancel(service, first.taskId);
    return response;
  };
  const patient = new Client({ url: server.url, ...credentials, fetch: watched });
  const began = performance.now();
  const { taskId } = await patient.submit(service, {});
  assert.notEqual(taskId, first.taskId);
  assert.equal(refusals, 1);
  assert(performance.now() - began >= 990, 'it came back sooner than it was told');
});

test('a wait ends at its time, and at once when it is given up', async () => {
  const { service, client } = await server.service();
  const { taskId } = await client.submit(service, {});
  assert.equal((await client.wait(service, taskId, { timeout: 50 })).status, 'PENDING');
  assert.equal((await client.wait(service, taskId, { timeout: '50ms' })).status, 'PENDING');
  const reason = new Error('enough');
  const controller = new AbortController();
  const waiting = client.wait(service, taskId, { signal: controller.signal });
  controller.abort(reason);
  await assert.rejects(waiting, (error) => error === reason);
  await assert.rejects(client.submit(service, {}, { signal: AbortSignal.abort(reason) }), (error) => error === reason);
  await assert.rejects(client.wait(service, taskId, { timeout: 'soon' }), TypeError);
});

test('one signal may give up many calls, and Node does not take them for a leak', async (t) => {
  if (!process.getBuiltinModule) return t.skip('this Node lets nobody say so');
  const warnings = /** @type {Error[]} */ ([]);
  const warned = (/** @type {Error} */ warning) => warnings.push(warning);
  process.on('warning', warned);
  t.after(() => process.off('warning', warned));
  const { service, client } = await server.service();
  const { taskId } = await client.submit(service, {});
  const controller = new AbortController();
  const { signal } = controller;
  const calls = Array.from({ length: 30 }, () => client.wait(service, taskId, { signal }));
  controller.abort(new Error('enough'));
  for (const call of await Promise.allSettled(calls)) assert.equal(call.status, 'rejected');
  await new Promise((resolve) => setImmediate(resolve)); // Warnings come last.
  assert.deepEqual(warnings, []);
});

test('a wait outlives the server that it began with', async (t) => {
  const own = await Server.start();
  t.after(() => own.close());
  const { service, client, options } = await own.service();
  const { taskId } = await client.submit(service, {});
  const waiting = client.wait(service, taskId, { timeout: '20s' });
  await own.kill();
  await own.restart();
  start(t, options, () => 'done');
  assert.equal((await waiting).response, 'done');
});

test('a task is followed to its end, also through a lost connection', async (t) => {
  const { service, options, credentials } = await server.service();
  const proxy = await Proxy.start(t, server.url);
  const client = new Client({ url: proxy.url, ...credentials });
  const { taskId } = await client.submit(service, {});
  /** @type {Event<void>} */
  const goOn = new Event('the test has seen enough');
  const seen = [];
  for await (const { event, id, task } of client.stream(service, taskId)) {
    seen.push(`${event} ${task.status}`);
    assert(Number(id) >= 0);
    if (task.status === 'PENDING') {
      start(t, options, async (_, { progress }) => {
        progress(50);
        await goOn.wait();
        return 'done';
      });
    }
    if (task.progress === 50 && task.status === 'IN_PROGRESS') {
      proxy.cut();
      goOn.happens();
    }
    if (task.status === 'SUCCESS') assert.equal(task.response, 'done');
  }
  assert.equal(seen[0], 'status PENDING');
  assert(seen.includes('progress IN_PROGRESS'), seen.join());
  assert.equal(seen.at(-1), 'status SUCCESS');
  assert.equal(seen.filter((line) => line === 'status PENDING').length, 1);
});

test('a stream after the end sends nothing more, and one that is left is closed', async () => {
  const { service, client } = await server.service();
  const { taskId } = await client.submit(service, {});
  for await (const { task } of client.stream(service, taskId)) {
    assert.equal(task.status, 'PENDING');
    break;
  }
  await client.cancel(service, taskId);
  const all = [];
  for await (const event of client.stream(service, taskId)) all.push(event);
  assert.deepEqual(all.map(({ task }) => task.status), ['CANCELLED']);
  for await (const event of client.stream(service, taskId, { lastEventId: all[0]?.id })) assert.fail(String(event));
  await assert.rejects(client.stream(service, '019a0000-0000-7000-8000-000000000000').next(), refused(404002));
  const reason = new Error('enough');
  const controller = new AbortController();
  const pending = await client.submit(service, {});
  const stream = client.stream(service, pending.taskId, { signal: controller.signal });
  await stream.next();
  const next = stream.next();
  controller.abort(reason);
  await assert.rejects(next, (error) => error === reason);
});

test('tasks are listed page by page, the newest first', async () => {
  const { service, client } = await server.service();
  const ids = [];
  for (let n = 0; n < 5; n += 1) ids.push((await client.submit(service, { n })).taskId);
  await client.cancel(service, ids[2] ?? '');
  const listed = [];
  for await (const task of client.list(service, { pageSize: 2 })) listed.push(task.taskId);
  assert.deepEqual(listed, [...ids].reverse());
  const pending = [];
  const filter = { status: /** @type {const} */ (['PENDING', 'IN_PROGRESS']), from: new Date(Date.now() - 60_000) };
  for await (const task of client.list(service, { ...filter, status: [...filter.status] })) pending.push(task.taskId);
  assert.equal(pending.length, 4);
  const page = await client.page(service, { pageSize: 4 });
  assert.equal(page.tasks.length, 4);
  assert.equal((await client.page(service, { cursor: page.nextCursor })).tasks[0]?.taskId, ids[0]);
  await assert.rejects(client.page(service, { pageSize: 1000 }), refused(400006));
});

test('a cancelled task stays cancelled, and an ended one can not be cancelled', async (t) => {
  const { service, client, options } = await server.service();
  const { taskId } = await client.submit(service, {});
  assert.equal((await client.cancel(service, taskId)).status, 'CANCELLED');
  assert.equal((await client.cancel(service, taskId)).status, 'CANCELLED');
  const other = await client.submit(service, {});
  start(t, options, () => 1);
  await client.wait(service, other.taskId);
  await assert.rejects(client.cancel(service, other.taskId), refused(409002));
});

test('services are listed with what they take', async () => {
  const jsonSchema = { type: 'object', required: ['pages'] };
  const { service, client } = await server.service({ jsonSchema });
  const expected = { serviceName: service, jsonSchema, roles: ['consume', 'work'], paused: false };
  assert.deepEqual(await client.services(), [expected]);
  assert.deepEqual(await client.service(service), expected);
  assert.match((await client.signingSecrets())[0]?.secret ?? '', /^whsec_/);
  const { taskId } = await client.submit(service, { pages: 1 });
  assert.deepEqual(await client.callbacks(service, taskId), []);
});

test('large numbers keep all their digits, where one asks for it', async (t) => {
  const text = '{"id":12345678901234567890,"price":0.10}';
  const passOn = { parse: (/** @type {string} */ json) => json, stringify: (/** @type {string} */ json) => json };
  const { service, client, credentials, options } = await server.service({}, passOn);
  start(t, { ...options, stringify: passOn.stringify }, (_, { rawBody }) => rawBody);
  const { taskId } = await client.submit(service, text);
  assert.equal((await client.wait(service, taskId)).response, text);
  const plain = await new Client({ url: server.url, ...credentials }).get(service, taskId);
  assert.equal(plain.rawResponse, text);
  assert.equal(plain.response.id, 12345678901234567000);
  assert(!Object.keys(plain).includes('rawResponse'));
});

test('a server that is away, or something that is not Relais, is an error that says so', async (t) => {
  const proxy = await Proxy.start(t, server.url);
  const { credentials } = await server.service();
  const options = { url: proxy.url, ...credentials, retries: 1 };
  proxy.answer('HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello');
  await assert.rejects(new Client(options).services(), /HTTP 200\) is not one of Relais/);
  proxy.answer('HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\nConnection: close\r\n\r\n');
  await assert.rejects(new Client(options).services(), /does not answer/);
  proxy.swallow();
  await assert.rejects(new Client({ ...options, retries: 0, timeout: 100 }).services(), /nothing came for 0.1 s/);
  await proxy.close();
  await assert.rejects(new Client(options).services(), /ECONNREFUSED/);
  assert.throws(() => new Client({ ...options, url: 'ftp://x' }), TypeError);
  assert.throws(() => new Client({ ...options, clientSecret: '' }), /clientSecret/);
  assert.throws(() => new Client({ ...options, url: 'http://user:pass@127.0.0.1' }), /clientId/);
});
