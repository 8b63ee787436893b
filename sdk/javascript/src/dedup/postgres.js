/**
 * The mark in the handler's own transaction on PostgreSQL: mark and effect commit together, or neither does.
 *
 * The table is that of the Rust library (`relais_dedup`). Of two transactions with the same message one writes the mark; the
 * other finds the message busy while the first is open, and done once it has committed. Nobody waits for a lock.
 */

import { checkId, checkName, checkWindow, DAY, span } from './model.js';

/** After so many milliseconds a message may be asked for again whose transaction is open. */
const WAIT = 1000;

const LOCK = 'pg_try_advisory_xact_lock(hashtextextended($2::text, hashtext($1::text)))';
const LATER = 'clock_timestamp() + make_interval(secs => $3)';

/** @param {string} table @param {string} name */
const statements = (table, name) => ({
  insert: `INSERT INTO ${table} (consumer, id, processed_at, expires_at)
    SELECT $1::text, $2::text, clock_timestamp(), ${LATER} WHERE ${LOCK} ON CONFLICT (consumer, id) DO NOTHING`,
  replace: `UPDATE ${table} SET token = NULL, processed_at = clock_timestamp(), expires_at = ${LATER}
    WHERE consumer = $1 AND id = $2 AND expires_at <= clock_timestamp() AND ${LOCK}`,
  look: `SELECT token IS NULL AS is_mark, extract(epoch FROM expires_at - clock_timestamp())::float8 AS seconds
    FROM ${table} WHERE consumer = $1 AND id = $2`,
  purge: `DELETE FROM ${table} WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM ${table} WHERE expires_at <= statement_timestamp()
    ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED))`,
  // Programs that start at once take turns.
  create: `SELECT pg_advisory_xact_lock(hashtext('relais_dedup'));
CREATE TABLE IF NOT EXISTS ${table} (
    consumer     text COLLATE "C" NOT NULL,
    id           text COLLATE "C" NOT NULL,
    token        text,
    processed_at timestamptz,
    expires_at   timestamptz NOT NULL,
    PRIMARY KEY (consumer, id)
);
CREATE INDEX IF NOT EXISTS "${name}_expires" ON ${table} (expires_at)`,
});

/** Processes messages once, with marks in the transaction of their handlers. */
export class PostgresDedup {
  #consumer;
  #window;
  #table;
  #sql;

  /** @param {import('../../types/dedup.js').PostgresDedupOptions} options */
  constructor({ consumer, window = DAY, table = 'relais_dedup' }) {
    if (!consumer) throw new TypeError('a consumer has a name');
    if (!/^\w{1,40}(\.\w{1,40})?$/.test(table)) throw new TypeError(`"${table}" is not the name of a table`);
    this.#consumer = checkName(consumer);
    this.#window = span(window, 'window');
    const parts = table.split('.');
    this.#table = parts.map((part) => `"${part}"`).join('.');
    this.#sql = statements(this.#table, String(parts.at(-1)));
  }

  /** @param {number | string} longestRetry */
  check(longestRetry) {
    checkWindow(this.#window, longestRetry);
  }

  /** @param {import('../../types/dedup.js').PostgresClient} client */
  async create(client) {
    // Where it is, nothing is locked: others write to it.
    const { rows } = await client.query('SELECT to_regclass($1) IS NOT NULL AS there', [this.#table]);
    if (!rows[0].there) await client.query(this.#sql.create);
  }

  /**
   * @template T
   * @template {import('../../types/dedup.js').PostgresClient} C
   * @param {C} client
   * @param {string} id
   * @param {(client: C) => T | Promise<T>} handler
   * @returns {Promise<import('../../types/dedup.js').Once<T>>}
   */
  async once(client, id, handler) {
    await client.query('BEGIN');
    let result;
    try {
      const found = await this.mark(client, id);
      if (found) {
        await client.query('ROLLBACK');
        return found;
      }
      result = await handler(client);
    } catch (error) {
      // If the answer does not come, the connection ends, and so does the transaction.
      await client.query('ROLLBACK').catch(() => {});
      throw error;
    }
    await client.query('COMMIT');
    return { status: 'done', result };
  }

  /**
   * @param {import('../../types/dedup.js').PostgresClient} client
   * @param {string} id
   * @returns {Promise<import('../../types/dedup.js').Once<never> | undefined>}
   */
  async mark(client, id) {
    const message = [this.#consumer, checkId(id)];
    const values = [...message, this.#window / 1000];
    // Once more if what was there is removed just now.
    for (let turn = 0; turn < 2; turn += 1) {
      if ((await client.query(this.#sql.insert, values)).rowCount) return undefined;
      const [row] = (await client.query(this.#sql.look, message)).rows;
      if (row && row.seconds > 0) {
        return row.is_mark ? { status: 'already done' } : { status: 'busy', wait: Math.ceil(row.seconds * 1000) };
      }
      if (row && (await client.query(this.#sql.replace, values)).rowCount) return undefined;
    }
    // A transaction that is open has it.
    return { status: 'busy', wait: WAIT };
  }

  /**
   * @param {import('../../types/dedup.js').PostgresClient} client
   * @param {number} [limit]
   */
  async purge(client, limit = 1000) {
    return (await client.query(this.#sql.purge, [limit])).rowCount ?? 0;
  }
}
