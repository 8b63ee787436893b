/** Tasks that wait for others, batches, and what goes from task to task, against a real server. */

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { RelaisError } from '@relais/sdk';
import { Server } from './support/server.js';
import { start } from './support/worker.js';

const TRACEPARENT = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01';

/** @type {Server} */
let server;
before(async () => (server = await Server.start()));
after(() => server.close());

test('a dependent task gets the correlation id and trace', async (t) => {
  const { service, client, options } = await server.service();
  const traced = { correlationId: 'order-1', traceparent: TRACEPARENT };
  const { taskId: first } = await client.submit(service, { n: 1 }, traced);
  const { taskId: second } = await client.submit(service, { n: 2 }, { after: { tasks: [first] } });
  const waiting = await client.get(service, second);
  assert.deepEqual(waiting.after, { tasks: [{ taskId: first }], when: 'allSucceeded' });
  const { taskId: part } = await client.submit(service, { n: 3 }, { parentId: first });
  const parts = await client.page(service, { parentId: first });
  assert.deepEqual(parts.tasks.map(({ taskId, parentId }) => ({ taskId, parentId })), [{ taskId: part, parentId: first }]);
  assert.equal((await client.page(service, { correlationId: 'order-1' })).tasks.length, 3);
  /** @type {number[]} */
  const order = [];
  start(t, options, ({ n }, { correlationId, traceparent }) => {
    order.push(n);
    return { correlationId, traceparent };
  });
  const done = await client.wait(service, second);
  assert.deepEqual(done.response, { correlationId: 'order-1', traceparent: TRACEPARENT });
  assert(order.indexOf(1) < order.indexOf(2), String(order));
});

test('tasks of one submission can depend on each other, and a failure fails its dependents', async (t) => {
  const { service, client, options } = await server.service();
  const answers = await client.submitMany(service, [
    { body: { fails: true }, ref: 'one' },
    { body: {}, ref: 'two', after: { refs: ['one'] } },
    { body: {}, after: { refs: ['one', 'two'], when: 'allEnded' } },
    { body: {}, after: { refs: ['nobody'] } },
  ]);
  const refused = answers.pop();
  assert(refused instanceof RelaisError && refused.number === 400011, String(refused));
  const ids = answers.map((answer) => (answer instanceof RelaisError ? '' : answer.taskId));
  start(t, options, ({ fails }) => {
    if (fails) throw new Error('no');
    return {};
  });
  const second = await client.wait(service, ids[1] ?? '');
  assert.equal(second.status, 'FAILURE');
  assert.equal(second.errorKind, 'dependency');
  assert.match(second.errorMessage ?? '', new RegExp(ids[0] ?? 'nothing'));
  assert.equal((await client.wait(service, ids[2] ?? '')).status, 'SUCCESS');
  const many = Array.from({ length: 1001 }, (_, n) => ({ body: {}, ref: String(n) }));
  await assert.rejects(client.submitMany(service, many), RangeError);
});

test('a batch is created, followed and cancelled', async () => {
  const { service, client } = await server.service();
  const tasks = [
    { service, body: {}, ref: 'a' },
    { service, body: {}, after: { refs: ['a'] } },
  ];
  const { batchId, tasks: taken } = await client.makeBatch({ tasks, open: true, correlationId: 'b' });
  assert.equal(taken.length, 2);
  const { taskId } = await client.submit(service, {}, { batchId });
  const task = await client.get(service, taskId);
  assert.deepEqual([task.batchId, task.correlationId], [batchId, 'b']);
  const open = await client.batch(batchId);
  assert.deepEqual([open.status, open.total, open.pending], ['OPEN', 3, 3]);
  assert.equal((await client.closeBatch(batchId)).status, 'IN_PROGRESS');
  const ended = await client.cancelBatch(batchId);
  assert.deepEqual([ended.status, ended.cancelled], ['ENDED', 3]);
  const again = { tasks: [{ service, body: {} }] };
  const first = await client.makeBatch(again, { idempotencyKey: 'album' });
  assert.deepEqual(await client.makeBatch(again, { idempotencyKey: 'album' }), first);
  assert.notEqual((await client.makeBatch(again)).batchId, first.batchId);
  const wrong = client.makeBatch({ tasks: [{ service, body: {} }, { service: 'nowhere', body: {} }] });
  await assert.rejects(wrong, (error) => {
    assert(error instanceof RelaisError);
    assert.equal(error.number, 404001);
    assert.equal(error.details[0]?.path, '/tasks/1');
    return true;
  });
});
