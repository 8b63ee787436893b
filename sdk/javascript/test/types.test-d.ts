/** Checked by the compiler, never run: the declared types are those of the code, and what users write has types. */

import { Client, RelaisError, type Task } from '@relais/sdk';
import { PostgresDedup, RedisDedup } from '@relais/sdk/dedup';
import { Failure, type Handler, TryAgain, Worker } from '@relais/sdk/worker';
import { Redis } from 'ioredis';
import pg from 'pg';
import { createClient } from 'redis';
import * as dedupCode from '../src/dedup/index.js';
import * as code from '../src/index.js';
import * as workerCode from '../src/worker/index.js';

export const declared: typeof import('@relais/sdk') = code;
export const declaredDedup: typeof import('@relais/sdk/dedup') = dedupCode;
export const declaredWorker: typeof import('@relais/sdk/worker') = workerCode;

interface Pages {
  pages: number;
}

export const handler: Handler<Pages, { sheets: number }> = async ({ pages }, context) => {
  const { signal, progress, attempt, rawBody, deadline } = context;
  if (deadline && deadline.getTime() < Date.now()) throw new Failure('too late', { kind: 'late', retryAfter: '1m' });
  signal.throwIfAborted();
  progress(50);
  if (rawBody.length === 0) throw new TryAgain();
  if (attempt !== undefined && attempt > 2) throw new Failure('no paper', { retryable: false });
  return { sheets: pages / 2 };
};

export async function use(): Promise<number> {
  const client = new Client({ url: 'http://127.0.0.1:8080', clientId: 'me', clientSecret: 'secret', timeout: '10s' });
  const { taskId } = await client.submit('print', { pages: 2 }, { correlationId: 'c', idempotencyKey: false });
  const task: Task<{ sheets: number }> = await client.wait('print', taskId, { timeout: 1000 });
  for await (const { event, task } of client.stream('print', taskId)) {
    const kind: 'status' | 'progress' | 'position' = event;
    void [kind, task.status];
  }
  for (const answer of await client.submitMany('print', [{ body: { pages: 1 } }])) {
    if (answer instanceof RelaisError) throw answer;
    void answer.taskPosition;
  }
  const rule = { limit: 3, base: '10s', cap: 60_000, exceptKinds: ['paper'] };
  const terms = { priority: 9, scheduledDate: new Date(), expiresAfter: '1h', uniqueKey: 'k', uniqueFor: 1000 };
  const { duplicate } = await client.submit('print', { pages: 2 }, { ...terms, timeout: '5m', retry: rule });
  await client.submitMany('print', [{ body: { pages: 1 }, delay: '10m', retry: 'classic' }]);
  const { retryDate, scheduledDate, priority, errorKind } = await client.retry('print', taskId);
  void [duplicate, retryDate, scheduledDate, priority, errorKind];
  // @ts-expect-error there is no such policy
  void client.submit('print', { pages: 2 }, { retry: 'sometimes' });
  // @ts-expect-error there is no such status
  for await (const task of client.list('print', { status: ['DONE'] })) void task.taskId;
  // @ts-expect-error a client needs a secret
  void new Client({ url: 'http://127.0.0.1:8080', clientId: 'me' });

  const audience = { type: 'GROUP', targets: ['teachers'] };
  const id: string = await client.notify({ payload: { n: 1 }, routing: { audience, retry: { ack_required: true } } });
  const ids: string[] = await client.notify([{ metadata: { type: 'SYSTEM', expiration: new Date() }, routing: { audience } }]);
  const { notifications } = await client.notificationErrors({ limit: 7 });
  const { ticket } = await client.issueTicket({ user: 'ann', audiences: { GROUP: ['teachers'] }, ttl: '2h' });
  const { joined } = await client.setAudience('GROUP', 'teachers', ['ann', { type: 'GROUP', target: '1b' }]);
  for await (const { type, target } of client.audienceMembers('GROUP', 'teachers')) void [type, target];
  void [id, ids, notifications[0]?.ledger?.[0]?.user, ticket, joined];
  // @ts-expect-error a message goes to somebody
  void client.notify({ payload: 1 });

  const limits = { grace: '100s', interruptible: true, timeout: '30m', heartbeat: 5_000 };
  const worker = new Worker({ url: 'amqp://127.0.0.1', service: 'print', concurrency: 4, health: 8081, ...limits });
  await worker.run(handler, { signal: AbortSignal.timeout(1000) });
  void new Worker(); // As the environment says.
  // @ts-expect-error a service has a name
  void new Worker({ service: 7 });
  return task.response?.sheets ?? 0;
}

export async function useDedup(): Promise<number> {
  for (const client of [new Redis(), createClient()]) {
    const outcome = await new RedisDedup(client, { consumer: 'print', window: '7d' }).once('7', ({ signal }) => signal.aborted ? 0 : 2);
    if (outcome.status === 'done') return outcome.result;
    if (outcome.status === 'busy') return outcome.wait;
  }
  // @ts-expect-error a consumer has a name
  void new PostgresDedup({});
  const outcome = await new PostgresDedup({ consumer: 'print' }).once(new pg.Client(), '7', async (client) => {
    return (await client.query('SELECT 1')).rows.length;
  });
  return outcome.status === 'done' ? outcome.result : 0;
}
