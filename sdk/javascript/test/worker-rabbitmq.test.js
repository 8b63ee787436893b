/** Workers over RabbitMQ, against a real broker; the test speaks the server's part. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
// @ts-expect-error it has no types
import oldest from 'amqplib-oldest';
import { Failure, Interrupted, TryAgain, Worker } from '@relais/sdk/worker';
import { Vhost } from './support/broker.js';
import { PATIENCE, within } from './support/process.js';
import { Proxy } from './support/proxy.js';
import { speakTls } from './support/tls.js';
import { Event, eventually, Log, start } from './support/worker.js';

/** A promise that lasts until the signal is aborted. @param {AbortSignal} signal */
const untilAborted = (signal) => new Promise((resolve) => signal.addEventListener('abort', resolve));

/** @param {import('node:test').TestContext} t */
async function queues(t) {
  const vhost = await Vhost.create(t);
  await vhost.declare('print-in');
  await vhost.declare('print-out');
  return vhost;
}

/** @param {Vhost} vhost */
const nothingIsLeft = (vhost) => eventually('nothing is left', async () => {
  // Without a consumer, what is not acknowledged is ready again.
  const { ready, consumers } = await vhost.count('print-in');
  return ready === 0 && consumers === 0;
});

for (const [version, amqplib] of /** @type {const} */ ([['today', undefined], ['of the oldest version', oldest]])) {
  test(`a task is run, reported and acknowledged, with amqplib ${version}`, async (t) => {
    const vhost = await Vhost.create(t);
    const { worker, stop } = start(t, { ...vhost.options, amqplib }, async ({ n }, context) => {
      const { taskId, attempt, correlationId, redelivered, rawBody } = context;
      return { double: n * 2, taskId, attempt, correlationId, redelivered, rawBody };
    });
    await eventually('it is ready', () => worker.isReady);
    const out = await vhost.follow();
    const taskId = await vhost.submit({ n: 2 });
    const began = await out.next();
    assert.deepEqual(began.body, { taskId, data: { messageType: 'started', hostName: 'pod-1' } });
    const { body, properties } = await out.next();
    const response = { double: 4, taskId, redelivered: false, rawBody: '{"n":2}' };
    assert.deepEqual(body, { taskId, data: { messageType: 'success', response } });
    assert.equal(properties.deliveryMode, 2);
    assert.equal(properties.contentType, 'application/json');
    assert.deepEqual(await stop(), { done: 1, failed: 0, returned: 0, lost: 0, unsent: 0 });
    await nothingIsLeft(vhost);
  });
}

test('queues that are not there are declared plain and durable', async (t) => {
  const vhost = await Vhost.create(t);
  const { worker } = start(t, vhost.options, () => 1);
  await eventually('it is ready', () => worker.isReady);
  for (const name of ['print-in', 'print-out']) {
    const queue = await vhost.queue(name);
    assert.deepEqual([queue.durable, queue.auto_delete, queue.arguments], [true, false, {}]);
  }
});

test('queues that were declared otherwise are used as they are', async (t) => {
  const vhost = await Vhost.create(t);
  await vhost.declare('print-in', { 'x-queue-type': 'quorum' });
  await vhost.declare('print-out', { 'x-queue-type': 'quorum', 'x-max-length': 1000 });
  start(t, vhost.options, () => 'done');
  const out = await vhost.follow();
  await vhost.submit({});
  assert.equal((await out.end()).body.data.response, 'done');
});

test('messages carry the attempt where the submission does, and both spellings are read', async (t) => {
  const vhost = await queues(t);
  start(t, vhost.options, (body, { attempt, correlationId }) => ({ body, attempt, correlationId }));
  const out = await vhost.follow();
  await vhost.send({ task_id: 'a', data: { message_type: 'submission', body: { n: 1 } } });
  assert.deepEqual((await out.end()).body, { taskId: 'a', data: { messageType: 'success', response: { body: { n: 1 } } } });
  const data = { messageType: 'submission', body: {} };
  await vhost.send({ taskId: 'b', attempt: 3, correlationId: 'c', data });
  const response = { body: {}, attempt: 3, correlationId: 'c' };
  assert.deepEqual((await out.end()).body, { taskId: 'b', attempt: 3, data: { messageType: 'success', response } });
});

test('whatever a handler throws is a failure', async (t) => {
  const vhost = await queues(t);
  const { stop } = start(t, vhost.options, ({ never }) => {
    throw never ? new Failure('never', { retryable: false, retryAfter: 90_000, kind: 'paper' }) : new TypeError('no paper');
  });
  const out = await vhost.follow();
  await vhost.submit({});
  const { errorTrace, ...told } = (await out.end()).body.data;
  assert.deepEqual(told, { messageType: 'failure', errorMessage: 'no paper', errorKind: 'TypeError' });
  assert.match(errorTrace, /^TypeError: no paper\n    at .*worker-rabbitmq\.test\.js/);
  await vhost.submit({ never: true });
  const never = { errorMessage: 'never', retryable: false, retryAfter: '1m30s', errorKind: 'paper' };
  assert.deepEqual((await out.end()).body.data, { messageType: 'failure', ...never });
  assert.equal((await stop()).failed, 2);
  await nothingIsLeft(vhost);
});

test('a deadline is read, and nonsense is none', async (t) => {
  const vhost = await queues(t);
  start(t, vhost.options, (_, { deadline }) => deadline ?? 'none');
  const out = await vhost.follow();
  const data = { messageType: 'submission', body: {} };
  for (const [deadline, read] of [['2100-01-31T08:30:00Z', '2100-01-31T08:30:00.000Z'], ['soon', 'none'], [7, 'none']]) {
    await vhost.send({ taskId: 'a', data, deadline });
    assert.equal((await out.end()).body.data.response, read);
  }
});

test('a failure comes after the progress that was reached', async (t) => {
  const vhost = await queues(t);
  start(t, vhost.options, async (_, { progress }) => {
    progress(10);
    await new Promise((resolve) => setTimeout(resolve, 50)); // It is told; the next one would only be a little later.
    progress(70);
    throw new Failure('too hard');
  });
  const out = await vhost.follow();
  const taskId = await vhost.submit({});
  const told = [];
  do told.push((await out.next()).body); while (told.at(-1).data.messageType !== 'failure');
  assert.deepEqual(told.at(-2), { taskId, data: { messageType: 'progress', progress: 70 } });
});

/**
 * Queues with a task that somebody had before, and no room for what is told of it.
 *
 * @param {import('node:test').TestContext} t
 */
async function withoutRoom(t) {
  const vhost = await Vhost.create(t);
  await vhost.declare('print-out', { 'x-max-length': 1, 'x-overflow': 'reject-publish' });
  await vhost.declare('print-in');
  const taskId = await vhost.submit({});
  await vhost.look('print-in');
  await vhost.send({ data: { messageType: 'of another time' } }, 'print-out');
  return { vhost, taskId };
}

test('a redelivered task begins after its start is confirmed', async (t) => {
  const { vhost } = await withoutRoom(t);
  let room = false;
  start(t, vhost.options, () => room);
  await eventually('the worker has it', async () => (await vhost.count('print-in')).ready === 0);
  room = true;
  const out = await vhost.follow();
  assert.equal((await out.end()).body.data.response, true);
});

test('a task whose start can not be reported is returned at a stop', async (t) => {
  const { vhost, taskId } = await withoutRoom(t);
  let began = false;
  const { stop } = start(t, { ...vhost.options, grace: '1h' }, () => (began = true));
  await eventually('the worker has it', async () => (await vhost.count('print-in')).ready === 0);
  assert.equal((await stop()).returned, 1);
  assert.equal(began, false);
  const left = await vhost.follow('print-in');
  assert.equal((await left.next()).body.taskId, taskId);
});

test('a task past the timeout of its message is stopped, and fails', async (t) => {
  const vhost = await queues(t);
  /** @type {unknown[]} */
  const reasons = [];
  const { stop } = start(t, vhost.options, async ({ deaf }, { signal }) => {
    if (deaf) await new Promise(() => {});
    await untilAborted(signal);
    reasons.push(signal.reason.why);
    return 'too late';
  });
  const out = await vhost.follow();
  const late = { messageType: 'failure', errorMessage: 'It ran for longer than it may.', errorKind: 'timeout' };
  const limits = [{ timeoutMs: 200 }, { timeout_ms: 200 }, { deadline: new Date() }, { timeoutMs: 1, deaf: true }];
  for (const { deaf, ...limit } of limits) {
    await vhost.send({ taskId: 'a', data: { messageType: 'submission', body: { deaf } }, ...limit });
    assert.deepEqual((await out.end()).body, { taskId: 'a', data: late });
  }
  assert.deepEqual(reasons, ['cancelled', 'cancelled', 'cancelled']);
  assert.equal((await stop()).failed, 4);
  await nothingIsLeft(vhost);
});

test('the deadline is the message\'s, or when its time is over', async (t) => {
  const vhost = await queues(t);
  start(t, { ...vhost.options, timeout: '300s' }, (_, { deadline }) => Number(deadline) - Date.now());
  const out = await vhost.follow();
  const data = { messageType: 'submission', body: {} };
  const soon = new Date(Date.now() + 200_000).toISOString();
  for (const [limit, millis] of /** @type {const} */ ([
    [{ timeoutMs: 100_000 }, 100_000], [{ timeoutMs: 1, deadline: soon }, 200_000],
    [{ timeoutMs: 'soon' }, 300_000], [{ timeoutMs: Number.MAX_SAFE_INTEGER }, 300_000],
  ])) {
    await vhost.send({ taskId: 'a', data, ...limit });
    const left = (await out.end()).body.data.response;
    assert(left > millis - PATIENCE && left <= millis, `${left} is not ${millis}`);
  }
});

test('a silent connection is noticed by heartbeats', async (t) => {
  for (const [query, heartbeat, agreed] of /** @type {const} */ ([
    ['', undefined, 10], ['', '7s', 7], ['?heartbeat=4', '7s', 4],
  ])) {
    const vhost = await queues(t);
    start(t, { ...vhost.options, url: vhost.url.href + query, heartbeat }, () => 1);
    const shown = await eventually('the broker shows it', async () => (await vhost.heartbeats()).find(Boolean));
    assert.equal(shown, agreed);
  }
});

test('a result that is ready when the connection is lost is sent over the next one', async (t) => {
  const vhost = await queues(t);
  const proxy = await Proxy.start(t, vhost.url.href);
  /** @type {Event<void>} */
  const began = new Event('the handler begins');
  /** @type {Event<void>} */
  const goOn = new Event('the handler may go on');
  let times = 0;
  const { worker, stop } = start(t, { ...vhost.options, url: proxy.url }, async () => {
    times += 1;
    began.happens();
    await goOn.wait();
    return times;
  });
  const out = await vhost.follow();
  await vhost.submit({});
  await began.wait();
  assert.equal((await out.next()).body.data.messageType, 'started');
  proxy.hold();
  goOn.happens();
  // The result is on its way, and goes no further.
  await new Promise((resolve) => setImmediate(resolve));
  proxy.cut();
  proxy.release();
  assert.equal((await out.end()).body.data.response, 1);
  await eventually('it is back', () => worker.isReady);
  const { done, lost } = await stop();
  assert.deepEqual([done >= 1, lost], [true, 0]);
  await nothingIsLeft(vhost);
});

test('a malformed message becomes a dead letter, and does not block the queue', async (t) => {
  const vhost = await queues(t);
  await vhost.declare('aside');
  const deadLetters = { 'dead-letter-exchange': '', 'dead-letter-routing-key': 'aside' };
  await vhost.policy('aside', '^print-in$', deadLetters);
  const { log } = start(t, vhost.options, () => 'done');
  const out = await vhost.follow();
  const aside = await vhost.follow('aside');
  await vhost.send(Buffer.from('"not a submission"'));
  assert.equal((await aside.next()).body, 'not a submission');
  await vhost.send(Buffer.from('{not JSON'));
  await vhost.send({ taskId: 'a', data: { messageType: 'success', body: {} } });
  assert.match((await out.end()).body.data.errorMessage, /not a submission/);
  await vhost.send({ taskId: 'b', data: { messageType: 'submission' } });
  assert.match((await out.end()).body.data.errorMessage, /no body/);
  await vhost.submit({});
  assert.equal((await out.end()).body.data.response, 'done');
  assert.equal(log.lines.filter((line) => line.startsWith('ERROR a message is not a submission')).length, 2);
});

test('no more tasks are prefetched than run at the same time', async (t) => {
  const vhost = await queues(t);
  for (let n = 0; n < 5; n += 1) await vhost.submit({ n });
  /** @type {Event<void>} */
  const goOn = new Event('the handlers may go on');
  let now = 0;
  let most = 0;
  const { stop } = start(t, { ...vhost.options, concurrency: 2 }, async () => {
    now += 1;
    most = Math.max(most, now);
    await goOn.wait();
    now -= 1;
  });
  await eventually('the broker has three left', async () => (await vhost.count('print-in')).ready === 3);
  goOn.happens();
  const out = await vhost.follow();
  for (let n = 0; n < 5; n += 1) await out.end();
  assert.equal(most, 2);
  assert.equal((await stop()).done, 5);
});

test('a submission is acknowledged only once the broker has the result', async (t) => {
  const vhost = await queues(t);
  // The broker refuses results while there is one in the queue.
  await vhost.policy('full', '^print-out$', { 'max-length': 1, overflow: 'reject-publish' });
  /** @type {Event<void>} */
  const done = new Event('the handler is done');
  const { stop } = start(t, vhost.options, () => {
    setImmediate(() => done.happens());
    return 'done';
  });
  await vhost.submit({});
  await done.wait();
  await eventually('the first message is in', async () => (await vhost.count('print-out')).ready === 1);
  assert.deepEqual(await stop({ now: true }), { done: 0, failed: 0, returned: 0, lost: 0, unsent: 1 });
  const other = start(t, vhost.options, (_, { redelivered }) => redelivered);
  const out = await vhost.follow();
  assert.equal((await out.end()).body.data.response, true);
  assert.equal((await other.stop()).done, 1);
  await nothingIsLeft(vhost);
});

test('a result finds its queue again after that was deleted', async (t) => {
  const vhost = await queues(t);
  /** @type {Event<void>} */
  const began = new Event('the handler begins');
  /** @type {Event<void>} */
  const goOn = new Event('the handler may go on');
  start(t, vhost.options, async () => {
    began.happens();
    await goOn.wait();
    return 'done';
  });
  await vhost.submit({});
  await began.wait();
  await vhost.remove('print-out');
  goOn.happens();
  const out = await eventually('the queue is there again', async () => {
    return (await vhost.queue('print-out').catch(() => undefined)) && vhost.follow();
  });
  assert.equal((await out.end()).body.data.response, 'done');
});

test('a queue that is taken away is declared again', async (t) => {
  const vhost = await queues(t);
  const { worker, log } = start(t, vhost.options, () => 'done');
  await eventually('it is ready', () => worker.isReady);
  await vhost.remove('print-in');
  await eventually('it notices', () => log.lines.some((line) => line.includes('takes print-in away')));
  await eventually('it is ready again', () => worker.isReady);
  const out = await vhost.follow();
  await vhost.submit({});
  assert.equal((await out.end()).body.data.response, 'done');
});

test('a flood of progress becomes a few messages a second, and none follows the result', async (t) => {
  const vhost = await queues(t);
  /** @type {Event<void>} */
  const goOn = new Event('the handler may go on');
  const { stop } = start(t, vhost.options, async (_, { progress }) => {
    const began = performance.now();
    for (let n = 0; n <= 500; n += 1) {
      for (let m = 0; m < 100; m += 1) progress(n / 10);
      await new Promise((resolve) => setImmediate(resolve));
    }
    await goOn.wait();
    for (let n = 0; n < 1000; n += 1) progress(60);
    return performance.now() - began;
  });
  const out = await vhost.follow();
  await vhost.submit({});
  const seen = [];
  for (;;) {
    const { data } = (await out.next()).body;
    if (data.progress === 50) goOn.happens();
    if (data.messageType === 'success') {
      assert(seen.length <= 3 + data.response / 250, `${seen.length} messages in ${data.response} ms`);
      break;
    }
    seen.push(data.progress ?? data.messageType);
  }
  assert(seen[0] === 'started' && seen.includes(50), `${seen}`);
  await stop();
  assert.deepEqual([out.arrived.length, (await vhost.count('print-out')).ready], [0, 0]);
});

test('a lost connection interrupts its tasks; they run again, over a new one', async (t) => {
  const vhost = await queues(t);
  const proxy = await Proxy.start(t, vhost.url.href);
  /** @type {Event<void>} */
  const began = new Event('the handler begins');
  /** @type {Event<unknown>} */
  const interrupted = new Event('the handler is interrupted');
  const { worker, log, stop } = start(t, { ...vhost.options, url: proxy.url }, async (_, { signal, redelivered }) => {
    if (redelivered) return 'again';
    began.happens();
    await untilAborted(signal);
    interrupted.happens(signal.reason);
    return 'too late';
  });
  const out = await vhost.follow();
  await vhost.submit({});
  await began.wait();
  proxy.cut();
  const reason = await interrupted.wait();
  assert(reason instanceof Interrupted);
  assert.equal(reason.why, 'lost');
  assert.equal((await out.end()).body.data.response, 'again');
  assert.equal(worker.isReady, true);
  assert(log.lines.some((line) => line.includes('the broker answers again')), log.lines.join('\n'));
  assert.deepEqual(await stop(), { done: 1, failed: 0, returned: 0, lost: 1, unsent: 0 });
});

test('a handler that does not notice the loss keeps its slot', async (t) => {
  const vhost = await queues(t);
  const proxy = await Proxy.start(t, vhost.url.href);
  /** @type {Event<void>} */
  const began = new Event('the handler begins');
  /** @type {Event<void>} */
  const goOn = new Event('the handler may go on');
  let now = 0;
  const { worker } = start(t, { ...vhost.options, url: proxy.url }, async (_, { redelivered }) => {
    now += 1;
    began.happens();
    if (!redelivered) await goOn.wait();
    const most = now;
    now -= 1;
    return most;
  });
  const out = await vhost.follow();
  await vhost.submit({});
  await began.wait();
  proxy.cut();
  await eventually('the message came again', async () => {
    const { ready, consumers } = await vhost.count('print-in');
    return worker.isReady && ready === 0 && consumers === 1;
  });
  goOn.happens();
  assert.equal((await out.end()).body.data.response, 1);
});

test('a private authority is trusted where it is named', async (t) => {
  const vhost = await queues(t);
  const { url, ca } = await speakTls(t, vhost.url);
  const stranger = start(t, { ...vhost.options, url }, () => 'done');
  await eventually('it is not trusted', () => stranger.log.lines.some((line) => line.includes('self-signed certificate')));
  start(t, { ...vhost.options, url, ca }, () => 'done');
  const out = await vhost.follow();
  await vhost.submit({});
  assert.equal((await out.end()).body.data.response, 'done');
});

test('a broker that is away is waited for', async (t) => {
  const vhost = await queues(t);
  const proxy = await Proxy.start(t, vhost.url.href);
  const port = new URL(proxy.url).port;
  await proxy.close();
  const { worker, log } = start(t, { ...vhost.options, url: proxy.url }, () => 'done');
  await eventually('it notices', () => log.lines.some((line) => line.includes('trying again')));
  assert.equal(worker.isReady, false);
  await proxy.open(Number(port));
  const out = await vhost.follow();
  await vhost.submit({});
  assert.equal((await out.end()).body.data.response, 'done');
});

test('who can not be let in ends with the reason', async (t) => {
  const vhost = await queues(t);
  const run = (/** @type {string} */ url) => {
    const worker = new Worker({ ...vhost.options, url, logger: new Log() });
    return within(PATIENCE, 'it ends', worker.run(() => 1));
  };
  const wrong = new URL(vhost.url);
  wrong.password = 'wrong';
  await assert.rejects(run(wrong.href), /ACCESS.REFUSED/);
});

test('a virtual host that is not there is waited for, and said to be missing', async (t) => {
  const vhost = await queues(t);
  const nowhere = new URL(vhost.url);
  nowhere.pathname = 'nowhere';
  const { log } = start(t, { ...vhost.options, url: nowhere.href }, () => 1);
  await eventually('it says so', () => log.lines.some((line) => line.includes('look at the virtual host')));
});

test('a stopping worker claims nothing new and finishes its tasks', async (t) => {
  const vhost = await queues(t);
  /** @type {Event<void>} */
  const began = new Event('the handler begins');
  /** @type {Event<void>} */
  const goOn = new Event('the handler may go on');
  const { worker, end } = start(t, { ...vhost.options, concurrency: 2 }, async () => {
    began.happens();
    await goOn.wait();
    return 'finished';
  });
  await vhost.submit({});
  await began.wait();
  worker.stop();
  await eventually('it consumes no more', async () => (await vhost.count('print-in')).consumers === 0);
  await vhost.submit({});
  goOn.happens();
  assert.deepEqual(await end(), { done: 1, failed: 0, returned: 0, lost: 0, unsent: 0 });
  const out = await vhost.follow();
  assert.equal((await out.end()).body.data.response, 'finished');
  const left = await vhost.follow('print-in');
  assert.equal((await left.next()).redelivered, false);
});

test('a task that does not finish in the grace period is reported as returned, and requeued', async (t) => {
  const vhost = await queues(t);
  /** @type {Event<void>} */
  const began = new Event('the handler begins');
  const { stop } = start(t, { ...vhost.options, grace: 0 }, async (_, { signal }) => {
    began.happens();
    await untilAborted(signal);
    throw signal.reason;
  });
  const taskId = await vhost.submit({});
  await began.wait();
  assert.deepEqual(await stop(), { done: 0, failed: 0, returned: 1, lost: 0, unsent: 0 });
  const out = await vhost.follow();
  assert.equal((await out.next()).body.data.messageType, 'started');
  assert.deepEqual((await out.next()).body, { taskId, data: { messageType: 'returned', hostName: 'pod-1' } });
  const left = await vhost.follow('print-in');
  assert.equal((await left.next()).body.taskId, taskId);
});

test('a handler returns its task, and gets it again', async (t) => {
  const vhost = await queues(t);
  let times = 0;
  const { stop } = start(t, vhost.options, (_, { redelivered }) => {
    times += 1;
    if (times < 3) throw new TryAgain();
    return { times, redelivered };
  });
  const out = await vhost.follow();
  await vhost.submit({});
  assert.deepEqual((await out.end()).body.data.response, { times: 3, redelivered: true });
  assert.deepEqual(await stop(), { done: 1, failed: 0, returned: 2, lost: 0, unsent: 0 });
});

test('once means one message, however many there are', async (t) => {
  const vhost = await queues(t);
  await vhost.submit({ n: 1 });
  await vhost.submit({ n: 2 });
  const { end } = start(t, { ...vhost.options, once: true, concurrency: 5 }, ({ n }) => n);
  assert.equal((await end()).done, 1);
  const out = await vhost.follow();
  assert.equal((await out.end()).body.data.response, 1);
  const left = await vhost.follow('print-in');
  const second = await left.next();
  assert.deepEqual([second.body.data.body, second.redelivered], [{ n: 2 }, false]);
});
