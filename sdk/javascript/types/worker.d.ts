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

export interface WorkerOptions {
  /** `http(s)://…` of the server, or `amqp(s)://…` of the broker. This decides how tasks come. */
  url: string;
  /** The service whose tasks are done. */
  service: string;
  /** Over HTTP: who asks. It needs the role `work` on the service. */
  clientId?: string;
  clientSecret?: string;
  /** Over RabbitMQ: prefix of `<queueName>-in` and `<queueName>-out`; the service's name if absent. */
  queueName?: string;
  /** How many tasks at the same time; 1 if absent. */
  concurrency?: number;
  /** How long running tasks may go on once told to stop; 20 s if absent. 0 for tasks that can be interrupted. */
  grace?: Duration;
  /** Over HTTP: how long the server waits for a sign of life before it hands a task to another worker; 60 s if absent. */
  lease?: Duration;
  /** One task, then end. */
  once?: boolean;
  /** End when nothing came for so long. */
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
  constructor(options: WorkerOptions);
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
