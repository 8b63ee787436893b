/** The worker's side of Relais, for Node: over HTTP, or over RabbitMQ. */

import type { AddressInfo } from 'node:net';
import type { Duration } from './index.js';

export type { Duration, ErrorDetail, Refusal } from './index.js';
export { RelaisError } from './index.js';

/**
 * Does a task. What it returns is the result, any JSON; what it throws fails the task with its message, unless that is a
 * `TryAgain`. A task may come twice, so that doing it twice should do no harm.
 */
export type Handler<Body = any, Result = any> = (body: Body, context: Context) => Result | Promise<Result>;

/** What a handler knows of its task. */
export interface Context {
  readonly taskId: string;
  /** From 1; absent where the transport does not say. */
  readonly attempt: number | undefined;
  /** One id through a chain of tasks, where one was given. */
  readonly correlationId: string | undefined;
  /** Whose trace the task is part of, where that is known, as the W3C writes it. Give it to what the work calls. */
  readonly traceparent: string | undefined;
  /** What goes with it. */
  readonly tracestate: string | undefined;
  /** Whether somebody may have begun this task before. */
  readonly redelivered: boolean;
  /** When this attempt has taken too long; absent where that is not limited, or where the transport does not say. */
  readonly deadline: Date | undefined;
  /** The body as it was written: all digits of large numbers are there. */
  readonly rawBody: string;
  /** Aborted, with an `Interrupted`, when nobody waits for this result any more. */
  readonly signal: AbortSignal;
  /** Tells how far the task is, from 0 to 100. Cheap: only the newest is sent, a few times a second. */
  progress(percent: number): void;
}

/**
 * The consumer cancelled it, or its deadline has passed; somebody else has it or will have it; the worker is to stop and
 * gives it back.
 */
export type InterruptedBecause = 'cancelled' | 'lost' | 'stopping';

/** What is absent is taken from the environment, where that has a variable for it. */
export interface WorkerOptions {
  /**
   * `http(s)://…` of the server, or `amqp(s)://…` of the broker. This decides how tasks come. `RELAIS_BROKER_URL`, or else
   * `RELAIS_URL`, or else `http://127.0.0.1:8080` if absent.
   */
  url?: string;
  /** The service whose tasks are done; `RELAIS_SERVICE` if absent. */
  service?: string;
  /** Over HTTP: who asks; `RELAIS_CLIENT` if absent. It needs the role `work` on the service. */
  clientId?: string;
  /** Its secret; `RELAIS_SECRET` if absent. */
  clientSecret?: string;
  /**
   * Over RabbitMQ: prefix of `<queueName>-in` and `<queueName>-out`; `RELAIS_QUEUE`, or else the service's name if absent.
   */
  queueName?: string;
  /** How many tasks at the same time; `RELAIS_CONCURRENCY`, or else 1 if absent. */
  concurrency?: number;
  /** How long running tasks may go on once told to stop; `RELAIS_GRACE`, or else 20 s if absent. */
  grace?: Duration;
  /**
   * Whether tasks can be stopped and given back at any time: they are told to stop at once, and have the grace period for
   * that. `RELAIS_INTERRUPTIBLE` if absent.
   */
  interruptible?: boolean;
  /**
   * How long a task may run; then its signal is aborted, and it fails with the kind `timeout`. `RELAIS_TIMEOUT`, or else for
   * ever if absent.
   */
  timeout?: Duration;
  /** Over HTTP: how long the server waits for a sign of life before it hands a task to another worker; 60 s if absent. */
  lease?: Duration;
  /**
   * Over RabbitMQ: how often the two ends make sure of each other, in whole seconds; 10 s if absent, 0 for never. A silent
   * end is given up after about two of them. `?heartbeat=` in the URL, in seconds, wins.
   */
  heartbeat?: Duration;
  /** One task, then end; `RELAIS_ONCE` if absent. */
  once?: boolean;
  /**
   * Over `amqps://`: the authorities to trust instead of the public ones, PEM; those in the file that
   * `RELAIS_BROKER_ROOT_CERTIFICATES` names if absent.
   */
  ca?: string | Uint8Array;
  /** End when nothing came for so long; `RELAIS_IDLE` if absent. */
  idle?: Duration;
  /** Serve `/livez` and `/readyz` on this port. */
  health?: number | HealthOptions;
  /** Shown beside the tasks; `HOSTNAME`, or the machine's name if absent. */
  hostName?: string;
  /** Where to say what happens; stderr if absent. */
  logger?: Logger;
  /** Parses bodies, from their text; `JSON.parse` if absent, which loses the last digits of integers beyond 2^53. */
  parse?: (text: string) => any;
  /** Writes results as JSON text; `JSON.stringify` if absent. */
  stringify?: (value: any) => string | undefined;
  /** Over RabbitMQ: the module `amqplib`, where it can not be imported by its name. */
  amqplib?: object;
}

export interface HealthOptions {
  port: number;
  /** The address to listen on; all of them if absent. */
  host?: string;
}

export interface Logger {
  info(message: string, fields?: Record<string, unknown>): void;
  warn(message: string, fields?: Record<string, unknown>): void;
  error(message: string, fields?: Record<string, unknown>): void;
}

/** What a worker did, from its start to its end. */
export interface Report {
  /** Tasks that ended well. */
  done: number;
  /** Tasks that ended badly. */
  failed: number;
  /** Tasks given back. */
  returned: number;
  /** Tasks that were taken away: cancelled, or handed to another worker. */
  lost: number;
  /** Tasks with a result that could not be told before the end. They will be handed out again. */
  unsent: number;
}

/** Does the tasks of one service. */
export class Worker {
  constructor(options?: WorkerOptions);
  /**
   * Takes tasks and does them until it is stopped, by `stop` or by the signal. A server or broker that is away is waited
   * for. While it runs, a promise of a handler that fails unheard is logged, and does not end the process.
   *
   * Fails if, at the start, the other side says that this will never do: wrong credentials, no such service.
   */
  run<Body = any, Result = any>(handler: Handler<Body, Result>, options?: { signal?: AbortSignal }): Promise<Report>;
  /**
   * Takes nothing new; what runs has the grace period to finish, then it is given back. A second time, or with `now`, it is
   * given back at once.
   */
  stop(options?: { now?: boolean }): void;
  /** The same as `run`, as the whole of a process: stops at SIGTERM and SIGINT, and exits 0; 1 if it can not work. */
  main<Body = any, Result = any>(handler: Handler<Body, Result>): Promise<never>;
  /** Whether it runs, is connected, and takes tasks. */
  readonly isReady: boolean;
  /** Where `/livez` and `/readyz` are served, while it runs. */
  readonly healthAddress: AddressInfo | undefined;
}

export interface FailureOptions {
  retryable?: boolean;
  retryAfter?: Duration;
  kind?: string;
  cause?: unknown;
}

/** Thrown by a handler to fail its task with more to say than a message. */
export class Failure extends Error {
  constructor(message: string, options?: FailureOptions);
  /** False: trying again would not help, whatever the service's policy says. */
  readonly retryable: boolean | undefined;
  /** If there is a retry, it begins after so many milliseconds. */
  readonly retryAfter: number | undefined;
  /** A word for programs, and for `exceptKinds` of a policy. */
  readonly kind: string | undefined;
}

/** Thrown by a handler to give its task back, as if it had never had it. */
export class TryAgain extends Error {
  constructor(message?: string);
}

/** The reason of a context's signal. */
export class Interrupted extends Error {
  constructor(why: InterruptedBecause);
  readonly why: InterruptedBecause;
}
