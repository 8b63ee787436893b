/** Workers over HTTP, against a real server. */

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Failure, Interrupted, RelaisError, TryAgain, Worker } from '@relais/sdk/worker';
import { PATIENCE, within } from './support/process.js';
import { Proxy } from './support/proxy.js';
import { Server } from './support/server.js';
import { Event, eventually, Log, start } from './support/worker.js';

/** @type {Server} */
let server;
before(async () => (server = await Server.start()));
after(() => server.close());

/** A promise that lasts until the signal is aborted. @param {AbortSignal} signal */
const untilAborted = (signal) => new Promise((resolve) => signal.addEventListener('abort', resolve));

test('a handler gets its task, and its result is stored', async (t) => {
  const { service, client, options } = await server.service();
  const { taskId } = await client.submit(service, { n: 2 }, { correlationId: 'c' });
  const { stop } = start(t, { ...options, hostName: 'pod-7' }, async ({ n }, context) => {
    const { progress, signal, ...facts } = context;
    return { double: n * 2, facts, raw: context.rawBody, aborted: signal.aborted };
  });
  const task = await client.wait(service, taskId);
  const facts = { taskId, attempt: 1, correlationId: 'c', redelivered: false };
  assert.deepEqual(task.response, { double: 4, facts, raw: '{"n":2}', aborted: false });
  assert.equal((await server.task(taskId)).workerHost, 'pod-7');
  assert.deepEqual(await stop(), { done: 1, failed: 0, returned: 0, lost: 0, unsent: 0 });
});

test('whatever a handler throws fails its task only', async (t) => {
  const { service, client, options } = await server.service();
  const circle = /** @type {any} */ ({});
  circle.circle = circle;
  /** @type {[() => any, RegExp][]} */
  const throwers = [
    [() => { throw new Error('no paper'); }, /^no paper$/],
    [() => { throw new Error('no paper', { cause: new Error('no trees') }); }, /^no paper: no trees$/],
    [() => { throw new Failure('never', { retryable: false }); }, /^never$/],
    [() => { throw 'a text'; }, /^a text$/],
    [() => { throw undefined; }, /^no message$/],
    [() => { throw Object.create(null); }, /can not be shown/],
    [() => Promise.reject(new TypeError('later')), /^later$/],
    [() => circle, /circular/i],
    [() => ({ n: 1n }), /BigInt/],
  ];
  const { stop } = start(t, { ...options, concurrency: 2 }, ({ n }) => throwers[n]?.[0]());
  const answers = await client.submitMany(service, throwers.map((_, n) => ({ body: { n } })));
  for (const [n, answer] of answers.entries()) {
    assert(!(answer instanceof RelaisError));
    const task = await client.wait(service, answer.taskId);
    assert.equal(task.status, 'FAILURE');
    assert.match(task.errorMessage ?? '', throwers[n]?.[1] ?? /never/);
  }
  assert.equal((await stop()).failed, throwers.length);
});

test('a result of nothing is null', async (t) => {
  const { service, client, options } = await server.service();
  start(t, options, () => {});
  const { taskId } = await client.submit(service, {});
  assert.equal((await client.wait(service, taskId)).response, null);
});

test('as many run at the same time as are allowed, and no more', async (t) => {
  const { service, client, options } = await server.service();
  await client.submitMany(service, Array.from({ length: 9 }, () => ({ body: {} })));
  let now = 0;
  let most = 0;
  let done = 0;
  /** @type {Event<void>} */
  const three = new Event('three run at once');
  /** @type {Event<void>} */
  const all = new Event('all are done');
  const { stop } = start(t, { ...options, concurrency: 3 }, async () => {
    now += 1;
    most = Math.max(most, now);
    if (now === 3) three.happens();
    await three.wait();
    now -= 1;
    done += 1;
    if (done === 9) all.happens();
  });
  await all.wait();
  assert.equal(most, 3);
  assert.equal((await stop()).done, 9);
});

test('a failure shows the progress that was reached', async (t) => {
  const { service, client, options } = await server.service();
  start(t, options, async (_, { progress }) => {
    progress(10);
    await new Promise((resolve) => setTimeout(resolve, 50)); // It is told; the next one would only be a little later.
    progress(70);
    throw new Error('too hard');
  });
  const { taskId } = await client.submit(service, {});
  const { status, progress } = await client.wait(service, taskId);
  assert.deepEqual([status, progress], ['FAILURE', 70]);
});

test('a flood of progress becomes a few messages, the newest last, and none delays the result', async (t) => {
  const { service, client, options, credentials } = await server.service();
  const proxy = await Proxy.start(t, server.url);
  const { taskId } = await client.submit(service, {});
  const seen = /** @type {number[]} */ ([]);
  /** @type {Event<void>} */
  const halfway = new Event('the progress is seen');
  const following = (async () => {
    for await (const { task } of client.stream(service, taskId)) {
      seen.push(task.progress ?? 0);
      if (task.progress === 50) halfway.happens();
    }
  })();
  const { log } = start(t, { ...options, ...credentials, url: proxy.url }, async (_, { progress }) => {
    for (let n = 0; n <= 50_000; n += 1) progress(n / 1000);
    for (const nonsense of [NaN, 'x', undefined]) progress(/** @type {number} */ (nonsense));
    await halfway.wait();
    for (let n = 0; n < 1000; n += 1) progress(60);
    return 'done';
  });
  const task = await client.wait(service, taskId);
  assert.equal(task.status, 'SUCCESS', log.lines.join('\n'));
  await following;
  const told = proxy.requests.filter((line) => line.includes('/messages'));
  assert(told.length >= 2 && told.length <= 6, `${told.length} calls for 51,000 reports`);
  assert(!seen.includes(60), 'a result follows at once, without the progress before it');
});

test('heartbeats keep a task whose handler takes longer than its lease', async (t) => {
  const { service, client, options } = await server.service();
  const { taskId } = await client.submit(service, {});
  /** @type {Event<void>} */
  const enough = new Event('the lease has been renewed');
  const { stop } = start(t, { ...options, lease: '2s' }, async (_, { signal }) => {
    await enough.wait();
    return signal.aborted;
  });
  const first = await eventually('it is claimed', async () => (await server.task(taskId)).leaseExpires);
  // One and a half leases later it would have been taken away.
  await eventually('it is renewed', async () => {
    return Date.parse((await server.task(taskId)).leaseExpires) - Date.parse(first) > 3_000;
  });
  enough.happens();
  const task = await client.wait(service, taskId);
  assert.equal(task.response, false);
  assert.equal((await server.task(taskId)).attempt, 1);
  assert.equal((await stop()).done, 1);
});

test('a cancelled task is stopped, and its slot is used again', async (t) => {
  const { service, client, options } = await server.service();
  /** @type {Event<AbortSignal>} */
  const began = new Event('the handler begins');
  /** @type {Event<unknown>} */
  const interrupted = new Event('the handler is interrupted');
  const { stop } = start(t, { ...options, lease: '2s' }, async ({ wait }, { signal }) => {
    if (!wait) return 'next';
    began.happens(signal);
    await untilAborted(signal);
    interrupted.happens(signal.reason);
    throw signal.reason;
  });
  const { taskId } = await client.submit(service, { wait: true });
  await began.wait();
  await client.cancel(service, taskId);
  const reason = await interrupted.wait();
  assert(reason instanceof Interrupted);
  assert.equal(reason.why, 'cancelled');
  assert.equal(reason.name, 'AbortError');
  const next = await client.submit(service, { wait: false });
  assert.equal((await client.wait(service, next.taskId)).response, 'next');
  assert.equal((await client.get(service, taskId)).status, 'CANCELLED');
  assert.deepEqual(await stop(), { done: 1, failed: 0, returned: 0, lost: 1, unsent: 0 });
});

test('a worker that loses its lease is told so, and its result is refused', async (t) => {
  const { service, client, options } = await server.service();
  const proxy = await Proxy.start(t, server.url);
  /** @type {Event<void>} */
  const began = new Event('the first worker begins');
  /** @type {Event<unknown>} */
  const interrupted = new Event('the first worker is told');
  const slow = start(t, { ...options, url: proxy.url, lease: '1s' }, async (_, { signal }) => {
    began.happens();
    await untilAborted(signal);
    interrupted.happens(signal.reason);
    return 'slow';
  });
  const { taskId } = await client.submit(service, {});
  await began.wait();
  proxy.hold();
  const fast = start(t, options, (_, { attempt, redelivered }) => ({ attempt, redelivered }));
  assert.deepEqual((await client.wait(service, taskId)).response, { attempt: 2, redelivered: true });
  proxy.release();
  const reason = await interrupted.wait();
  assert(reason instanceof Interrupted);
  assert.equal(reason.why, 'lost');
  assert.equal((await slow.stop()).lost, 1);
  assert.equal((await fast.stop()).done, 1);
});

test('a task that a handler returns runs later, without a loss', async (t) => {
  const { service, client, options } = await server.service({ deliveryLimit: 1 });
  let times = 0;
  const { stop } = start(t, options, () => {
    times += 1;
    if (times < 3) throw new TryAgain('not yet');
    return times;
  });
  const { taskId } = await client.submit(service, {});
  assert.equal((await client.wait(service, taskId)).response, 3);
  assert.equal((await server.task(taskId)).losses, 0);
  assert.deepEqual(await stop(), { done: 1, failed: 0, returned: 2, lost: 0, unsent: 0 });
});

test('a stopping worker claims nothing new and finishes its tasks', async (t) => {
  const { service, client, options } = await server.service();
  /** @type {Event<void>} */
  const began = new Event('the handler begins');
  /** @type {Event<void>} */
  const goOn = new Event('the handler may go on');
  const { worker, end } = start(t, options, async () => {
    began.happens();
    await goOn.wait();
    return 'finished';
  });
  const first = await client.submit(service, {});
  await began.wait();
  const second = await client.submit(service, {});
  worker.stop();
  assert.equal(worker.isReady, false);
  goOn.happens();
  assert.deepEqual(await end(), { done: 1, failed: 0, returned: 0, lost: 0, unsent: 0 });
  assert.equal((await client.get(service, first.taskId)).response, 'finished');
  assert.equal((await client.get(service, second.taskId)).status, 'PENDING');
});

test('tasks claimed during a stop are returned at once', async (t) => {
  const { service, client, options } = await server.service();
  const proxy = await Proxy.start(t, server.url);
  const { worker, stop } = start(t, { ...options, url: proxy.url }, () => assert.fail('it was to stop'));
  await eventually('it waits for tasks', () => worker.isReady && proxy.requests.length === 2);
  proxy.hold();
  const { taskId } = await client.submit(service, {});
  await eventually('it is handed out', async () => (await client.get(service, taskId)).status === 'IN_PROGRESS');
  const stopped = stop();
  proxy.release();
  assert.deepEqual(await stopped, { done: 0, failed: 0, returned: 1, lost: 0, unsent: 0 });
  assert.equal((await client.get(service, taskId)).status, 'PENDING');
});

test('a task that does not finish in the grace period is interrupted and returned at once', async (t) => {
  const { service, client, options } = await server.service({ deliveryLimit: 1 });
  /** @type {Event<void>} */
  const began = new Event('the handler begins');
  let why;
  const { stop } = start(t, { ...options, grace: 0 }, async (_, { signal }) => {
    began.happens();
    await untilAborted(signal);
    why = signal.reason.why;
    throw signal.reason;
  });
  const { taskId } = await client.submit(service, {});
  await began.wait();
  assert.deepEqual(await stop(), { done: 0, failed: 0, returned: 1, lost: 0, unsent: 0 });
  assert.equal(why, 'stopping');
  const { task, losses } = await server.task(taskId);
  assert.equal(task.status, 'PENDING');
  assert.equal(losses, 0);
});

test('a second time, or at once, it does not wait for handlers that do not heed', async (t) => {
  const { service, client, options } = await server.service();
  for (const [grace, how] of /** @type {[number, { now?: boolean }][]} */ ([[60_000, { now: true }], [60_000, {}]])) {
    /** @type {Event<void>} */
    const began = new Event('the handler begins');
    const { worker, stop } = start(t, { ...options, grace }, () => {
      began.happens();
      return new Promise(() => {});
    });
    const { taskId } = await client.submit(service, {});
    await began.wait();
    if (!how.now) worker.stop();
    const since = performance.now();
    assert.equal((await stop(how)).returned, 1);
    assert(performance.now() - since < 15_000, 'it waited');
    assert.equal((await client.cancel(service, taskId)).status, 'CANCELLED');
  }
});

test('once means one task, however many there are', async (t) => {
  const { service, client, options } = await server.service();
  const answers = await client.submitMany(service, [{ body: { n: 1 } }, { body: { n: 2 } }]);
  const { end } = start(t, { ...options, once: true, concurrency: 5 }, ({ n }) => n);
  assert.deepEqual(await end(), { done: 1, failed: 0, returned: 0, lost: 0, unsent: 0 });
  const statuses = answers.map((answer) => client.get(service, 'taskId' in answer ? answer.taskId : ''));
  assert.deepEqual((await Promise.all(statuses)).map(({ status }) => status), ['SUCCESS', 'PENDING']);
});

test('an idle worker ends by itself, if it is set to', async (t) => {
  const { options } = await server.service();
  const { end } = start(t, { ...options, idle: 50 }, () => 1);
  assert.equal((await end()).done, 0);
});

test('a server that is away is waited for, before the start and in the middle', async (t) => {
  const own = await Server.start();
  t.after(() => own.close());
  const { service, client, options } = await own.service();
  /** @type {Event<void>} */
  const began = new Event('the handler begins');
  /** @type {Event<void>} */
  const away = new Event('the server is away');
  const { taskId } = await client.submit(service, {});
  await own.kill();
  const { worker, log, stop } = start(t, options, async () => {
    began.happens();
    await away.wait();
    return 'kept';
  });
  await eventually('it notices', () => log.lines.some((line) => line.includes('trying again')));
  assert.equal(worker.isReady, false);
  await own.restart();
  await began.wait();
  await own.kill();
  away.happens();
  await own.restart();
  assert.equal((await client.wait(service, taskId)).response, 'kept');
  assert.equal((await own.task(taskId)).attempt, 1);
  await eventually('it is ready again', () => worker.isReady);
  assert.equal((await stop()).done, 1);
});

test('a result whose answer is lost is sent again, and counts once', async (t) => {
  const { service, client, options } = await server.service();
  const proxy = await Proxy.start(t, server.url);
  const { stop } = start(t, { ...options, url: proxy.url }, () => {
    proxy.loseNextAnswerTo('/messages');
    return 'told twice';
  });
  const { taskId } = await client.submit(service, {});
  assert.equal((await client.wait(service, taskId)).response, 'told twice');
  await eventually('the answer is lost', () => proxy.lost === 1);
  assert.deepEqual(await stop(), { done: 1, failed: 0, returned: 0, lost: 0, unsent: 0 });
});

test('a result that is too large fails its task, and nobody else\'s', async (t) => {
  const { service, client, options } = await server.service();
  /** @type {Event<void>} */
  const both = new Event('both run');
  let running = 0;
  const { stop } = start(t, { ...options, concurrency: 2 }, async ({ size }) => {
    running += 1;
    if (running === 2) both.happens();
    await both.wait();
    return 'x'.repeat(size);
  });
  const large = await client.submit(service, { size: 2_000_000 });
  const small = await client.submit(service, { size: 1 });
  assert.equal((await client.wait(service, small.taskId)).response, 'x');
  const task = await client.wait(service, large.taskId);
  assert.equal(task.status, 'FAILURE');
  assert.match(task.errorMessage ?? '', /did not take the worker's result.*413001/);
  assert.deepEqual(await stop(), { done: 1, failed: 1, returned: 0, lost: 0, unsent: 0 });
});

test('who is not let in at the start ends with the reason', async () => {
  const { service, options } = await server.service();
  const run = (/** @type {object} */ more) => {
    const worker = new Worker({ ...options, ...more, logger: new Log() });
    return within(PATIENCE, 'it ends', worker.run(() => 1));
  };
  const refused = (/** @type {number} */ number) => (/** @type {any} */ error) => error.number === number;
  await assert.rejects(run({ clientSecret: 'wrong' }), refused(403001));
  await assert.rejects(run({ service: `no-${service}` }), refused(404001));
  await assert.rejects(run({ lease: '2d' }), refused(400003));
});

test('settings that make no sense are refused at once', () => {
  const options = { url: 'http://127.0.0.1:1', service: 'x', clientId: 'a', clientSecret: 'b' };
  const wrong = [
    { service: '' }, { concurrency: 0 }, { concurrency: 1.5 }, { grace: -1 }, { grace: 'soon' }, { lease: '10ms' },
    { clientId: '' }, { url: 'nonsense' }, { url: 'ftp://127.0.0.1' },
  ];
  for (const more of wrong) assert.throws(() => new Worker({ ...options, ...more }), TypeError, JSON.stringify(more));
});

test('it says whether it is alive and ready', async (t) => {
  const { options } = await server.service();
  const { worker, stop } = start(t, { ...options, health: { host: '127.0.0.1', port: 0 } }, () => 1);
  const { port } = await eventually('it listens', () => worker.healthAddress);
  const status = async (/** @type {string} */ path) => (await fetch(`http://127.0.0.1:${port}${path}`)).status;
  await eventually('it is ready', () => worker.isReady);
  assert.deepEqual([await status('/livez'), await status('/readyz'), await status('/')], [200, 200, 404]);
  const other = new Worker({ ...options, health: { host: '127.0.0.1', port }, logger: new Log() });
  await assert.rejects(other.run(() => 1), /EADDRINUSE/);
  await stop();
  await assert.rejects(status('/livez'));
});

test('a worker can be run again, but not twice at once', async () => {
  const { service, client, options } = await server.service();
  const worker = new Worker({ ...options, once: true, logger: new Log() });
  for (const n of [1, 2]) {
    const { taskId } = await client.submit(service, { n });
    const running = worker.run((body) => body.n);
    await assert.rejects(worker.run(() => 1), /runs already/);
    assert.equal((await within(PATIENCE, 'it ends', running)).done, 1);
    assert.equal((await client.get(service, taskId)).response, n);
  }
  const stopped = worker.run(() => 1, { signal: AbortSignal.abort() });
  assert.equal((await within(PATIENCE, 'it ends', stopped)).done, 0);
});
