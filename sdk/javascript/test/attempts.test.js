/** When and how often a task is done, as a consumer asks for it and a worker over HTTP hears of it. */

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { RelaisError } from '@relais/sdk';
import { Failure, Interrupted } from '@relais/sdk/worker';
import { milliseconds, written } from '../src/duration.js';
import { failureOf } from '../src/worker/outcomes.js';
import { Server } from './support/server.js';
import { Event, start } from './support/worker.js';

/** @type {Server} */
let server;
before(async () => (server = await Server.start()));
after(() => server.close());

const soon = { limit: 2, base: '50ms' };

/** @param {number} number @param {string} [path] */
const refused = (number, path) => (/** @type {unknown} */ error) => {
  assert(error instanceof RelaisError, String(error));
  assert.equal(error.number, number, error.message);
  if (path) assert.equal(error.details[0]?.path, path);
  return true;
};

test('durations are written as the server reads them', () => {
  const texts = { 0: '0s', 250: '250ms', 1500: '1s500ms', 90_000: '1m30s', 5_400_000: '1h30m', 604_800_005: '7d5ms' };
  for (const [millis, text] of Object.entries(texts)) {
    assert.equal(written(Number(millis)), text);
    assert.equal(milliseconds(text, 'it'), Number(millis));
  }
  assert.equal(written(0.1), '1ms');
  for (const wrong of [-1, NaN, Infinity]) assert.throws(() => written(wrong), TypeError);
});

test('all terms are as the server has them', async () => {
  const { service, client } = await server.service();
  const rule = { limit: 5, base: 10_000, factor: 3, cap: '1h', jitter: 0.2, within: '1d', exceptKinds: ['paper'] };
  const scheduledDate = new Date('2100-01-31T08:30:00Z');
  const terms = { priority: 7, expiresAfter: '2h', timeout: 300_000, uniqueFor: 60_000, scheduledDate };
  for (const retry of /** @type {const} */ (['none', 'classic', rule])) {
    const { taskId, duplicate } = await client.submit(service, {}, { ...terms, retry, uniqueKey: JSON.stringify(retry) });
    const task = await client.get(service, taskId);
    assert.deepEqual([task.status, task.scheduledDate, task.priority], ['PENDING', scheduledDate.toISOString(), 7]);
    assert.deepEqual([task.taskPosition, task.retryDate, duplicate], [undefined, undefined, undefined]);
  }
});

test('invalid terms are refused, here or by the server', async () => {
  const { service, client } = await server.service();
  for (const [wrong, path] of /** @type {[object, string][]} */ ([
    [{ priority: 10 }, '/priority'],
    [{ scheduledDate: 'tomorrow' }, '/scheduledDate'],
    [{ scheduledDate: new Date('2100-01-01'), delay: 1 }, '/delay'],
    [{ expiresAfter: 0 }, '/expiresAfter'],
    [{ timeout: '31d' }, '/timeout'],
    [{ uniqueFor: '1h' }, '/uniqueFor'],
    [{ retry: { limit: 1, jitter: 7 } }, '/retry/jitter'],
  ])) {
    await assert.rejects(client.submit(service, {}, wrong), refused(400003, path));
  }
  for (const wrong of [{ delay: -1 }, { timeout: 'soon' }, { retry: { limit: 1, base: NaN } }, { uniqueFor: Infinity }]) {
    await assert.rejects(client.submit(service, {}, wrong), TypeError, JSON.stringify(wrong));
    await assert.rejects(client.submitMany(service, [{ body: {}, ...wrong }]), TypeError);
  }
  await assert.rejects(client.submit(service, {}, { scheduledDate: new Date(NaN) }), RangeError);
  assert.deepEqual((await client.page(service)).tasks, []);
});

test('a delayed task runs later', async (t) => {
  const { service, client, options } = await server.service();
  start(t, options, () => 'done');
  const { taskId } = await client.submit(service, {}, { delay: '400ms' });
  const { response, submitionDate, scheduledDate, startDate } = await client.wait(service, taskId);
  assert.equal(response, 'done');
  assert(scheduledDate && startDate && startDate >= scheduledDate, `${scheduledDate} ${startDate}`);
  assert(Date.parse(scheduledDate) - Date.parse(submitionDate) > 300);
});

test('tasks with higher priority go first', async (t) => {
  const { service, client, options } = await server.service();
  for (const priority of [4, 0, 9]) await client.submit(service, { priority }, { priority });
  const order = /** @type {number[]} */ ([]);
  /** @type {Event<void>} */
  const all = new Event('all are done');
  start(t, options, ({ priority }) => {
    order.push(priority);
    if (order.length === 3) all.happens();
  });
  await all.wait();
  assert.deepEqual(order, [9, 4, 0]);
});

test('a task that is not started in time expires', async () => {
  const { service, client } = await server.service();
  const { taskId } = await client.submit(service, {}, { expiresAfter: 50 });
  const { status, errorKind } = await client.wait(service, taskId);
  assert.deepEqual([status, errorKind], ['FAILURE', 'expired']);
});

test('a unique key allows one unfinished task', async () => {
  const { service, client } = await server.service();
  const first = await client.submit(service, {}, { uniqueKey: 'report 7' });
  const second = await client.submit(service, {}, { uniqueKey: 'report 7' });
  assert.deepEqual([second.taskId, first.duplicate, second.duplicate], [first.taskId, undefined, true]);
  const many = await client.submitMany(service, ['report 7', 'report 8'].map((uniqueKey) => ({ body: {}, uniqueKey })));
  assert.deepEqual(many.map((answer) => 'duplicate' in answer && answer.duplicate), [true, false]);
  await client.cancel(service, first.taskId);
  const third = await client.submit(service, {}, { uniqueKey: 'report 7', uniqueFor: '1h' });
  assert.equal(third.duplicate, undefined);
  await client.cancel(service, third.taskId);
  const fourth = await client.submit(service, {}, { uniqueKey: 'report 7' });
  assert.equal(fourth.duplicate, true, 'it has ended, but its hour is not over');
});

test('a failing task is retried, and each attempt is shown', async (t) => {
  const { service, client, options } = await server.service({ retry: soon });
  class NoPaper extends Error {}
  const { stop } = start(t, { ...options, hostName: 'pod-7' }, (_, { attempt }) => {
    if (attempt === 1) throw new NoPaper('no paper', { cause: new TypeError('no trees') });
    if (attempt === 2) throw new Failure('no ink', { kind: 'ink', retryAfter: '10ms' });
    return attempt;
  });
  const { taskId } = await client.submit(service, {});
  assert.equal((await client.wait(service, taskId)).response, 3);
  const [first, second, third] = (await server.task(taskId)).attempts;
  assert.deepEqual([first.outcome, second.outcome, third.outcome], ['failure', 'failure', 'success']);
  assert.deepEqual([first.errorMessage, first.errorKind], ['no paper: no trees', 'NoPaper']);
  assert.match(first.errorTrace, /^Error: no paper\n    at .*attempts\.test\.js/);
  assert.match(first.errorTrace, /\ncaused by TypeError: no trees\n    at /);
  assert.deepEqual([second.errorMessage, second.errorKind, second.errorTrace], ['no ink', 'ink', undefined]);
  assert.equal(third.workerHost, 'pod-7');
  const report = await stop();
  assert.deepEqual([report.done, report.failed], [1, 2]);
});

test('a failure that is not retryable is final', async (t) => {
  const { service, client, options } = await server.service({ retry: soon });
  const parse = (/** @type {string} */ text) => JSON.parse(text.replace('"broken"', 'broken'));
  start(t, { ...options, parse }, ({ how }) => {
    if (how === 'result') return 1n;
    if (how === 'large') return 'x'.repeat(2_000_000);
    throw new Failure('never', { retryable: how === 'paper' ? false : undefined, kind: how });
  });
  for (const [how, kind, more] of /** @type {const} */ ([
    ['paper', 'paper', {}], ['result', 'result', {}], ['large', 'result', {}], ['broken', 'body', {}],
    ['ink', 'ink', { retry: { limit: 9, base: 0, exceptKinds: ['ink'] } }],
  ])) {
    const { taskId } = await client.submit(service, { how }, more);
    const { status, errorKind } = await client.wait(service, taskId);
    assert.deepEqual([status, errorKind], ['FAILURE', kind], how);
    assert.equal((await server.task(taskId)).attempts.length, 1);
  }
});

test('errors of all kinds can be reported', () => {
  const told = (/** @type {unknown} */ thrown) => JSON.parse(failureOf(thrown).data);
  const large = told(new RangeError('\u{1f4a5}'.repeat(100_000)));
  assert.equal(large.errorMessage.length, 10_000);
  assert.match(large.errorTrace, /^    at /);
  const deep = new Error('deep');
  deep.stack = `Error: deep${'\n    at x\ud83d\udca5'.repeat(10_000)}`;
  assert.equal(told(deep).errorTrace.length, 16 * 1024);
  const strange = new Error('half \ud800 a letter');
  strange.name = '';
  strange.stack = undefined;
  const errorMessage = 'half \ufffd a letter';
  assert.deepEqual(told(strange), { messageType: 'failure', errorMessage, errorTrace: errorMessage });
  const unreadable = Object.defineProperty(new Error('no'), 'stack', { get: () => assert.fail('not to be read') });
  assert.deepEqual(told(unreadable), { messageType: 'failure', errorMessage: 'no' });
  assert.deepEqual(told('a text'), { messageType: 'failure', errorMessage: 'a text' });
  for (const retryAfter of [-1, 'soon', Infinity]) assert.throws(() => new Failure('no', { retryAfter }), TypeError);
});

test('an ended task is retried', async (t) => {
  const { service, client, options } = await server.service({ retry: { limit: 2, base: '1h' } });
  const { taskId } = await client.submit(service, {}, { delay: '1h' });
  assert.equal((await client.retry(service, taskId)).taskPosition, 1);
  await assert.rejects(client.retry(service, taskId), refused(409003));
  const { stop } = start(t, { ...options, once: true }, () => { throw new Error('no'); });
  const waiting = /** @type {import('@relais/sdk').Task[]} */ ([]);
  for await (const { task } of client.stream(service, taskId)) {
    waiting.push(task);
    if (task.retryDate) break;
  }
  const { status, retryDate, submitionDate } = waiting.at(-1) ?? assert.fail('it was not seen');
  assert.equal(status, 'PENDING');
  assert(Date.parse(retryDate ?? '') - Date.parse(submitionDate) >= 3_600_000);
  await stop();
  const now = await client.retry(service, taskId);
  assert.deepEqual([now.status, now.retryDate, now.taskPosition], ['PENDING', undefined, 1]);
  await client.cancel(service, taskId);
  assert.equal((await client.retry(service, taskId)).status, 'PENDING');
  start(t, options, (_, { attempt }) => attempt);
  assert.equal((await client.wait(service, taskId)).response, 2);
  await assert.rejects(client.retry(service, '019a0000-0000-7000-8000-000000000000'), refused(404002));
});

test('a handler knows its deadline, and is stopped after it', async (t) => {
  const { service, client, options } = await server.service();
  /** @type {Event<{ deadline: Date | undefined, signal: AbortSignal }>} */
  const interrupted = new Event('the handler is interrupted');
  const { stop } = start(t, { ...options, lease: '1s' }, async (_, { deadline, signal }) => {
    await new Promise((resolve) => signal.addEventListener('abort', resolve));
    interrupted.happens({ deadline, signal });
  });
  await client.submit(service, {}, { timeout: '200ms' });
  const { deadline, signal } = await interrupted.wait();
  assert(deadline && deadline.getTime() <= Date.now(), String(deadline));
  assert(signal.reason instanceof Interrupted);
  assert.equal(signal.reason.why, 'cancelled');
  assert.equal((await stop()).lost, 1);
});
