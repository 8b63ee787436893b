/**
 * Processing a message once, for Node: a delivery that comes again within a window does nothing. The clients and connections
 * are yours (ioredis or node-redis, pg). Programs in Rust, Python and JavaScript share a window.
 */

import type { Duration } from './index.js';

export type { Duration } from './index.js';

/** What became of a message. */
export type Once<T = any> =
  /** The handler has processed it now. */
  | { status: 'done'; result: T }
  /** It was processed before, within the window. The handler did not run. */
  | { status: 'already done' }
  /**
   * Somebody else is processing it. Do not acknowledge it: if the other one fails, it must come again. Ask again after `wait`
   * milliseconds.
   */
  | { status: 'busy'; wait: number };

/** A client of ioredis, or of node-redis. */
export type RedisClient =
  | { call(command: string, ...values: string[]): Promise<unknown> }
  | { sendCommand(values: string[]): Promise<unknown> };

export interface RedisDedupOptions {
  /**
   * Consumers with different names process each message for themselves; processes that share the work have the same name.
   * None if absent.
   */
  consumer?: string;
  /** How long a message counts as processed; a day if absent. */
  window?: Duration;
  /** How long a claim lasts without a sign of its process; 30 s if absent. */
  claim?: Duration;
  /** What keys begin with; `dedup:processed:` if absent. */
  prefix?: string;
  /** Where to say that a message was processed and could not be marked; `console.warn` if absent. */
  warn?: (message: string) => void;
}

/** Processes messages once, by keys in Redis, Valkey or KeyDB. */
export class RedisDedup {
  constructor(client: RedisClient, options?: RedisDedupOptions);
  /** Checks that a repeat finds the mark: throws a RangeError if it may come later. */
  check(longestRetry: Duration): void;
  /**
   * Runs the handler unless the message was processed within the window, or is being processed. The claim is extended while it
   * runs. What it throws is thrown; then there is no mark, and the message can be tried again.
   *
   * The signal is aborted if the claim is lost: then stop. If somebody else has taken the message over and the handler throws,
   * the message is busy; if Redis could not be reached, that is a `ClaimExpired`.
   */
  once<T>(id: string, handler: (context: { signal: AbortSignal }) => T | Promise<T>): Promise<Once<T>>;
}

/** A connection of pg: a `Client`, or one from a `Pool`. Not a `Pool`: a transaction needs one connection. */
export interface PostgresClient {
  query(text: string, values?: any[]): Promise<{ rowCount: number | null; rows: any[] }>;
}

export interface PostgresDedupOptions {
  /** Who processes the messages. */
  consumer: string;
  /** How long a message counts as processed; a day if absent. */
  window?: Duration;
  /** The table, or schema and table; `relais_dedup` if absent. */
  table?: string;
}

/** Processes messages once, with marks in the transaction of their handlers: mark and effect commit together. */
export class PostgresDedup {
  constructor(options: PostgresDedupOptions);
  /** Checks that a repeat finds the mark: throws a RangeError if it may come later. */
  check(longestRetry: Duration): void;
  /** Makes the table, if it is not there. */
  create(client: PostgresClient): Promise<void>;
  /**
   * Runs the handler in a transaction with the mark, unless the message was processed within the window, or is being
   * processed. What it throws is thrown, and all of its transaction is rolled back.
   */
  once<T, C extends PostgresClient>(client: C, id: string, handler: (client: C) => T | Promise<T>): Promise<Once<T>>;
  /**
   * Writes the mark in the transaction that is open; then process the message and commit. If it does not, because the message
   * is done or busy, it returns that: do not process it, and roll back.
   */
  mark(client: PostgresClient, id: string): Promise<Once<never> | undefined>;
  /** Removes at most `limit` marks and claims that are over; how many there were. The Rust library does it by itself. */
  purge(client: PostgresClient, limit?: number): Promise<number>;
}

/** The claim ran out because Redis could not be reached. The handler was told to stop. */
export class ClaimExpired extends Error {}
