/** A message is processed once: with claims and marks in a real Redis, and with marks in a real PostgreSQL. */

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { after, before, test } from 'node:test';
import pg from 'pg';
import { createClient } from 'redis';
import { ClaimExpired, PostgresDedup, RedisDedup } from '@relais/sdk/dedup';
import { RedisServer } from './support/redis.js';
import { Event, eventually } from './support/worker.js';

/** @type {RedisServer} */
let server;
/** @type {import('ioredis').Redis} */
let redis;
before(async () => {
  server = await RedisServer.start();
  redis = server.client();
});
after(async () => {
  redis.disconnect();
  await server.close();
});

const prefix = () => `dedup:${randomUUID()}:`;

for (const [name, make] of /** @type {const} */ ([
  ['ioredis', async () => ({ client: server.client(), close: (/** @type {any} */ client) => client.disconnect() })],
  ['node-redis', async () => {
    const client = await createClient({ url: server.url }).connect();
    return { client, close: () => client.destroy() };
  }],
])) {
  test(`with ${name}, a second delivery does nothing, and a failure leaves nothing`, async (t) => {
    const { client, close } = await make();
    t.after(() => close(client));
    const dedup = new RedisDedup(client, { consumer: 'billing', prefix: prefix() });
    await assert.rejects(dedup.once('7', () => { throw new TypeError('no'); }), TypeError);
    let runs = 0;
    const handler = async () => (runs += 1);
    assert.deepEqual(await dedup.once('7', handler), { status: 'done', result: 1 });
    assert.deepEqual(await dedup.once('7', handler), { status: 'already done' });
    assert.deepEqual(await dedup.once('8', handler), { status: 'done', result: 2 });
    const other = new RedisDedup(client, { consumer: 'shipping', prefix: prefix() });
    assert.deepEqual(await other.once('7', handler), { status: 'done', result: 3 });
  });
}

test('a message that is being processed is busy, and done afterwards', async () => {
  const dedup = new RedisDedup(redis, { prefix: prefix(), claim: 60_000 });
  const [begun, go] = [new Event('it runs'), new Event('it may end')];
  const first = dedup.once('7', async () => {
    begun.happens(0);
    await go.wait();
  });
  await begun.wait();
  const busy = await dedup.once('7', () => assert.fail('it runs twice'));
  assert(busy.status === 'busy' && busy.wait > 0 && busy.wait <= 60_000, JSON.stringify(busy));
  go.happens(0);
  assert.equal((await first).status, 'done');
  assert.equal((await dedup.once('7', () => assert.fail('it runs twice'))).status, 'already done');
});

test('code that says SET NX EX shares the window both ways', async () => {
  const start = prefix();
  for (const [options, theirs, ours] of /** @type {const} */ ([
    [{}, `${start}7`, `${start}8`],
    [{ consumer: 'a:b' }, `${start}a%3Ab:7`, `${start}a%3Ab:8`],
  ])) {
    const dedup = new RedisDedup(redis, { ...options, prefix: start });
    assert.equal(await redis.set(theirs, '1', 'EX', 60, 'NX'), 'OK');
    assert.equal((await dedup.once('7', () => assert.fail('it was processed'))).status, 'already done');
    await dedup.once('8', async () => assert.equal(await redis.set(ours, '1', 'EX', 60, 'NX'), null));
    assert.equal(await redis.set(ours, '1', 'EX', 60, 'NX'), null);
    const left = await redis.ttl(ours);
    assert(left > 86_300 && left <= 86_400, `${left} s`);
  }
});

test('a long handler keeps its claim', async () => {
  const start = prefix();
  const dedup = new RedisDedup(redis, { prefix: start, claim: 900 });
  const outcome = await dedup.once('7', async ({ signal }) => {
    const begin = performance.now();
    await eventually('it takes longer than a claim', async () => performance.now() - begin > 1500);
    assert(await redis.exists(`${start}7`), 'the claim is there');
    return signal.aborted;
  });
  assert.deepEqual(outcome, { status: 'done', result: false });
});

test('a handler whose claim was taken over is told to stop', async () => {
  const start = prefix();
  const dedup = new RedisDedup(redis, { prefix: start, claim: 600 });
  const outcome = await dedup.once('7', async ({ signal }) => {
    await redis.set(`${start}7`, 'claim:of somebody else');
    await eventually('it is told', async () => signal.aborted);
    signal.throwIfAborted();
  });
  assert.deepEqual(outcome, { status: 'busy', wait: 600 });
  assert.equal(await redis.get(`${start}7`), 'claim:of somebody else');
});

test('what was processed by two is said, and the claim of the second is not touched', async () => {
  const start = prefix();
  const warnings = /** @type {string[]} */ ([]);
  const dedup = new RedisDedup(redis, { prefix: start, warn: (text) => warnings.push(text) });
  await dedup.once('7', () => redis.set(`${start}7`, 'claim:of somebody else'));
  assert.match(warnings.join(), /taken over/);
  assert.equal(await redis.get(`${start}7`), 'claim:of somebody else');
});

test('a handler is told to stop when its claim ends because Redis is away', async (t) => {
  const own = await RedisServer.start();
  const client = own.client();
  t.after(async () => {
    client.disconnect();
    await own.close();
  });
  const dedup = new RedisDedup(client, { claim: 600 });
  await assert.rejects(
    dedup.once('7', async ({ signal }) => {
      own.pause(true);
      await eventually('it is told', async () => signal.aborted);
      own.pause(false);
      signal.throwIfAborted();
    }),
    ClaimExpired,
  );
});

test('what can not be an id, a name or a window is refused', async () => {
  const dedup = new RedisDedup(redis, { window: '24h' });
  dedup.check('17h');
  assert.throws(() => dedup.check('24h'), /86400 s.*must be longer/);
  for (const id of ['', 'a\0b', 'x'.repeat(1025)]) await assert.rejects(dedup.once(id, () => {}), TypeError);
  assert.throws(() => new RedisDedup(redis, { window: 0 }), TypeError);
  assert.throws(() => new RedisDedup(redis, { consumer: 'x'.repeat(256) }), TypeError);
  assert.throws(() => new PostgresDedup({ consumer: 'billing', table: 'a; DROP TABLE b' }), TypeError);
});

/** A database of its own with a table of effects. @param {import('node:test').TestContext} t */
async function database(t) {
  const given = process.env.RELAIS_TEST_POSTGRES;
  if (!given) throw new Error('RELAIS_TEST_POSTGRES must be the URL of a PostgreSQL with a superuser');
  const name = `relais_sdk_${process.pid}_${randomUUID().slice(0, 8)}`;
  const admin = new pg.Client(new URL('/postgres', given).href);
  await admin.connect();
  await admin.query(`CREATE DATABASE ${name}`);
  const pool = new pg.Pool({ connectionString: new URL(`/${name}`, given).href, max: 8 });
  const clients = /** @type {import('pg').PoolClient[]} */ ([]);
  t.after(async () => {
    for (const client of clients) client.release();
    await pool.end();
    await eventually('nobody is connected', async () => {
      const connected = await admin.query('SELECT 1 FROM pg_stat_activity WHERE datname = $1', [name]);
      return connected.rowCount === 0;
    });
    await admin.query(`DROP DATABASE ${name}`);
    await admin.end();
  });
  await pool.query('CREATE TABLE effect (message text)');
  const connect = async () => {
    const client = await pool.connect();
    clients.push(client);
    return client;
  };
  return { pool, connect };
}

test('in a transaction, effect and mark commit together', async (t) => {
  const { pool, connect } = await database(t);
  const [one, other] = [await connect(), await connect()];
  const dedup = new PostgresDedup({ consumer: 'billing' });
  await dedup.create(one);
  await dedup.create(one);
  /** @param {import('pg').PoolClient} client */
  const handler = async (client) => (await client.query("INSERT INTO effect VALUES ('7')")).rowCount;
  const effects = async () => Number((await pool.query('SELECT count(*) FROM effect')).rows[0].count);

  await assert.rejects(dedup.once(one, '7', async (client) => {
    await handler(client);
    throw new TypeError('no');
  }), TypeError);
  assert.equal(await effects(), 0);
  const first = await dedup.once(one, '7', async (client) => {
    await handler(client);
    const busy = await dedup.once(other, '7', () => assert.fail('it runs twice'));
    assert.deepEqual(busy, { status: 'busy', wait: 1000 }, 'while the transaction is open');
    return 'billed';
  });
  assert.deepEqual(first, { status: 'done', result: 'billed' });
  assert.deepEqual(await dedup.once(other, '7', handler), { status: 'already done' });
  assert.equal(await effects(), 1);

  const past = "UPDATE relais_dedup SET expires_at = expires_at - interval '24 h'";
  await pool.query(past);
  assert.deepEqual(await dedup.once(one, '7', handler), { status: 'done', result: 1 }, 'after its window');
  assert.equal(await dedup.purge(one), 0);
  await pool.query(past);
  assert.equal(await dedup.purge(one), 1);
});

test('many transactions at once have one effect', async (t) => {
  const { pool } = await database(t);
  const dedup = new PostgresDedup({ consumer: 'billing' });
  await dedup.create(pool);
  const deliver = async (/** @type {string} */ id) => {
    const client = await pool.connect();
    try {
      for (;;) {
        const handled = dedup.once(client, id, async () => {
          await client.query('INSERT INTO effect VALUES ($1)', [id]);
          if (Math.random() < 0.3) throw new TypeError('no');
        });
        const outcome = await handled.catch((error) => assert(error instanceof TypeError, error));
        if (outcome && outcome.status !== 'busy') return;
      }
    } finally {
      client.release();
    }
  };
  await Promise.all(Array.from({ length: 120 }, (_, number) => deliver(`order-${number % 30}`)));
  const { rows } = await pool.query('SELECT message, count(*)::int AS effects FROM effect GROUP BY 1');
  assert.equal(rows.length, 30);
  assert(rows.every(({ effects }) => effects === 1), JSON.stringify(rows));
});
