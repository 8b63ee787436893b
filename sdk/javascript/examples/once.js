/**
 * Processes a message once, however often it is delivered: `node once.js URL ID`.
 *
 * By `redis://…` the id is kept in Redis, by `postgresql://…` in the transaction of the handler.
 */

import { Redis } from 'ioredis';
import pg from 'pg';
import { PostgresDedup, RedisDedup } from '@relais/sdk/dedup';

const [url = '', id = ''] = process.argv.slice(2);

/** A claim before the handler, a mark after it. */
async function onceInRedis() {
  const redis = new Redis(url);
  const dedup = new RedisDedup(redis, { consumer: 'billing' });
  dedup.check('17h'); // A repeat that comes after the window runs again.
  return dedup.once(id, () => 'billed').finally(() => redis.quit());
}

/** The bill and the mark commit together: exactly one bill. */
async function onceInATransaction() {
  const client = new pg.Client(url);
  await client.connect();
  const dedup = new PostgresDedup({ consumer: 'billing' });
  await dedup.create(client);
  await client.query('CREATE TABLE IF NOT EXISTS bill (message text)');
  const bill = () => client.query('INSERT INTO bill (message) VALUES ($1)', [id]);
  return dedup.once(client, id, bill).finally(() => client.end());
}

const { status } = await (url.startsWith('redis') ? onceInRedis() : onceInATransaction());
console.log(status); // done; already done; busy, which is not to be acknowledged
