/**
 * The consumer's side of Relais: submit tasks, follow them, cancel them. And the emitter's: notifications, audiences, tickets.
 */

/** Milliseconds, or text like `250ms`, `30s`, `5m`, `1h30m`. */
export type Duration = number | string;

export interface ClientOptions {
  /** The server, e.g. `https://relais.example.org`. */
  url: string;
  clientId: string;
  clientSecret: string;
  /** How long an answer may take; 30 s if absent. */
  timeout?: Duration;
  /** How often a call is tried again where that is safe; 5 times if absent. */
  retries?: number;
  /** Another `fetch` than the runtime's. */
  fetch?: typeof fetch;
  /**
   * Parses the responses of tasks, from their text; `JSON.parse` if absent, which loses the last digits of integers beyond
   * 2^53. `rawResponse` of a task has the text in any case.
   */
  parse?: (text: string) => any;
  /** Writes the bodies of tasks as JSON text; `JSON.stringify` if absent. */
  stringify?: (value: any) => string | undefined;
}

export type TaskStatus = 'PENDING' | 'IN_PROGRESS' | 'SUCCESS' | 'FAILURE' | 'CANCELLED';

/** A task. Which fields there are depends on its status. Dates are RFC 3339, UTC. */
export interface Task<Response = any> {
  taskId: string;
  status: TaskStatus;
  /** PENDING: its place in its service's queue, from 1. */
  taskPosition?: number;
  submitionDate: string;
  /** PENDING: when it may start, judging by the last minutes. */
  estimatedStartDate?: string;
  startDate?: string;
  endDate?: string;
  /** From 0 to 100. */
  progress?: number;
  /** SUCCESS: the worker's result. Not in a listing. */
  response?: Response;
  /** The same as it was written: all digits of large numbers are there. */
  readonly rawResponse?: string;
  /** FAILURE: why. */
  errorMessage?: string;
  /** FAILURE: a word for programs, where it is known. `timeout`, `expired`, `lost` and `dependency` are the server's own. */
  errorKind?: string;
  correlationId?: string;
  /** For when it was asked, if not for at once. */
  scheduledDate?: string;
  /** PENDING after a failure: when it is tried again. */
  retryDate?: string;
  /** How urgent it is, where that was said. */
  priority?: number;
  /** The task that it is a part of. */
  parentId?: string;
  /** The batch that it belongs to. */
  batchId?: string;
  /** What it waits for, or waited for, and how each ended as far as it was told. Not in a listing. */
  after?: { tasks: { taskId: string; status?: TaskStatus }[]; when: AfterWhen };
}

/** When a task need not wait for others any more. With `allSucceeded` it fails as soon as one of them ends otherwise. */
export type AfterWhen = 'allSucceeded' | 'allEnded' | 'anyEnded';

/** What a task waits for: it is not started before. */
export interface After {
  /** Tasks of the client, of any service; with `refs`, at most 100. */
  tasks?: readonly string[];
  /** Among tasks that go in one call: those before it with these words as `ref`. */
  refs?: readonly string[];
  /** `allSucceeded` if absent. */
  when?: AfterWhen;
}

/** A batch: tasks that are followed as one. */
export interface Batch {
  batchId: string;
  /** OPEN: tasks may be added. ENDED: it was closed, and all of its tasks have ended. */
  status: 'OPEN' | 'IN_PROGRESS' | 'ENDED';
  total: number;
  pending: number;
  inProgress: number;
  success: number;
  failure: number;
  cancelled: number;
  submitionDate: string;
  closeDate?: string;
  endDate?: string;
  correlationId?: string;
}

/** A batch to be made. */
export interface NewBatch {
  /** At least one unless it is open. */
  tasks?: Iterable<Submission & { service: string }>;
  /** Where to tell that it has ended. */
  callback?: Omit<Callback, 'events'>;
  /** One id through a chain of tasks; tasks that have none get it. */
  correlationId?: string;
  /** Whether tasks may be added later, by submissions with its `batchId`. */
  open?: boolean;
}

/** Where to tell what becomes of a task. */
export interface Callback {
  /** `https`; `http` where the operator allows it; `amqp`. */
  type: 'https' | 'http' | 'amqp' | (string & {});
  /** `https`, `http`: where to. */
  url?: string;
  /** `amqp`: the name of a destination that the operator declared. */
  destination?: string;
  /** What is to be told; its end, whichever it is, if absent. */
  events?: ('started' | 'progress' | 'success' | 'failure' | 'cancelled')[];
  compression?: 'gzip';
}

/** How often a task that failed is tried again, and when. */
export interface RetryRule {
  /** At most so many retries. */
  limit: number;
  /** How long to wait before the first one; a minute if absent. */
  base?: Duration;
  /** Each wait is so many times as long as the one before; 2 if absent. */
  factor?: number;
  /** No wait is longer than this. */
  cap?: Duration;
  /** The share of each wait that is left to chance, from 0 to 1; 0 if absent. */
  jitter?: number;
  /** No retry begins later than this after the task was submitted, or was to begin. */
  within?: Duration;
  /** Failures of these kinds are not tried again. */
  exceptKinds?: readonly string[];
}

/** A task to be done, and on what terms. What is absent is up to its service. */
export interface Submission<Body = any> {
  /** The arguments: an object that conforms to the service's JSON Schema. */
  body: Body;
  callback?: Callback;
  /** One id through a chain of tasks. */
  correlationId?: string;
  /** How urgent it is, from 0 to 9; 4 if absent. More urgent ones go first, and none waits for ever. */
  priority?: number;
  /** Not to be started before this time. */
  scheduledDate?: Date | string;
  /** Not to be started before so long from now; instead of a date. */
  delay?: Duration;
  /** If no worker has started it so long after it was to start, it fails. */
  expiresAfter?: Duration;
  /** How long an attempt may take. */
  timeout?: Duration;
  /** How often to try again if it fails. `classic`: 10 retries that are 1, 2, 4, … minutes apart. */
  retry?: 'none' | 'classic' | RetryRule;
  /** If the client has a task with this key on the service that has not ended, that one is the answer. */
  uniqueKey?: string;
  /** With `uniqueKey`: for so long after the submission, whether that task has ended or not. */
  uniqueFor?: Duration;
  /** What it waits for. */
  after?: After;
  /** The task that it is a part of: one of the client's, or one that it works on. It gets that one's correlation id and trace. */
  parentId?: string;
  /** The open batch that it is to belong to. */
  batchId?: string;
  /** Among tasks that go in one call: a word by which later ones can wait for this one. */
  ref?: string;
}

export interface SubmitOptions extends Omit<Submission, 'body'>, CallOptions {
  /**
   * Repeating a submission with the same key makes no second task. One is made up if absent, so that a call without an
   * answer can be tried again. `false`: none, and such a call is not tried again.
   */
  idempotencyKey?: string | false;
  /** Whose trace the task is part of, as the W3C writes it. */
  traceparent?: string;
}

export interface Submitted {
  taskId: string;
  /** Its place in its service's queue, from 1. */
  taskPosition: number;
  estimatedStartDate?: string;
  /** True if it is a task that was there before, with the same `uniqueKey`; absent otherwise. */
  duplicate?: boolean;
}

export interface CallOptions {
  /** Gives the call up; it then fails with the signal's reason. */
  signal?: AbortSignal;
}

export interface ListOptions extends CallOptions {
  /** Only in these. */
  status?: TaskStatus | TaskStatus[];
  /** Submitted at this time or later. */
  from?: Date | string;
  /** Submitted before this time. */
  before?: Date | string;
  /** With this correlation id. */
  correlationId?: string;
  /** Parts of this task; not together with `correlationId`. */
  parentId?: string;
  /** How many tasks a call brings, at most 200. */
  pageSize?: number;
  /** Where to begin: `nextCursor` of the page before. */
  cursor?: string;
}

export interface TaskPage {
  tasks: Task[];
  /** Absent on the last page. */
  nextCursor?: string;
}

/** Something changed: the status; or only the progress; or only the place in the queue. */
export interface TaskEvent<Response = any> {
  event: 'status' | 'progress' | 'position';
  /** For `lastEventId`. */
  id: string;
  task: Task<Response>;
}

/** A service that the client may use. */
export interface Service {
  serviceName: string;
  /** What a task's body must conform to. */
  jsonSchema?: object | null;
  roles: ('consume' | 'work')[];
  /** Tasks are taken in but not handed out. */
  paused: boolean;
}

/** What became of telling about a task. */
export interface CallbackState {
  callbackId: string;
  event: string;
  notificationStatus: 'PENDING' | 'SUCCESS' | 'FAILURE';
  type: string;
  target: string;
  attempts: number;
  createdDate: string;
  endDate?: string;
  nextAttemptDate?: string;
  [more: string]: unknown;
}

/** What callbacks are signed with, by the convention of Standard Webhooks. */
export interface SigningSecret {
  secret: string;
  [more: string]: unknown;
}

/** `USER`, `GROUP`, `ROLE`, `STRUCTURE`, `FORMATION`, or any other word. */
export type AudienceType = 'USER' | 'GROUP' | 'ROLE' | 'STRUCTURE' | 'FORMATION' | (string & {});

/** Who gets a notification: targets of one type. */
export interface Audience {
  type: AudienceType;
  targets: readonly string[];
}

/** A user, or another audience with all its members. */
export interface AudienceTarget {
  type: AudienceType;
  target: string;
}

/** A user's name, or a target; without a type it is a user. */
export type Member = string | { type?: AudienceType; target: string };

/** What came of a change of members. */
export interface MembersChange {
  joined: number;
  left: number;
}

/** Whether a notification must be acknowledged, and how it is sent again. */
export interface NotificationRetry {
  /** Whether each member must acknowledge it; false if absent. */
  ack_required?: boolean;
  /** Whether it is sent again to those who have not; true if absent. */
  enabled?: boolean;
  /** How often it is sent again before it goes to the error log; 5 if absent. */
  limit?: number;
  /** How the pauses grow; `EXPONENTIAL` if absent. */
  backoff?: 'FIXED' | 'LINEAR' | 'EXPONENTIAL';
}

export interface NotificationMetadata {
  /** A message with an id that is known is stored once. One is made up if absent. */
  id?: string;
  /** Who is served first under load; `NORMAL` if absent. */
  priority?: 'LOW' | 'NORMAL' | 'HIGH';
  /** What it is for; `NOTIFICATION` if absent. */
  type?: 'REALTIME' | 'SYSTEM' | 'NOTIFICATION';
  /** A program's name, or a user's id; the client if absent. */
  emitter?: string;
  /** What it is about, such as a table. */
  source?: string;
  topic?: string;
  /** What happened to its source. */
  operation?: 'create' | 'update' | 'delete';
  timestamp?: Date | string;
  /** From when on it is not sent any more; ten days after its timestamp if absent. */
  expiration?: Date | string;
}

/** A notification to be sent. What is absent is filled in. */
export interface NotificationDraft<Payload = any> {
  metadata?: NotificationMetadata;
  /** What it says: any JSON. */
  payload?: Payload;
  routing: { audience: Audience; retry?: NotificationRetry };
}

/** A notification, as it is sent. Dates are RFC 3339, UTC. */
export interface Notification<Payload = any> {
  metadata: NotificationMetadata & {
    id: string;
    priority: 'LOW' | 'NORMAL' | 'HIGH';
    type: 'REALTIME' | 'SYSTEM' | 'NOTIFICATION';
    emitter: string;
    timestamp: string;
    expiration: string;
  };
  payload: Payload;
  routing: { audience: Audience; retry: Required<NotificationRetry> & { attempts: number } };
}

/** A user in the ledger of a notification. */
export interface LedgerLine {
  user: string;
  /** Whether the user must acknowledge it. */
  awaited: boolean;
  /** How often it was sent to the user. */
  deliveries: number;
  /** When it was sent to the user for the last time. */
  delivered?: string;
  acknowledged?: string;
}

/** How a notification stands. */
export interface NotificationState<Payload = any> {
  message: Notification<Payload>;
  status: 'OPEN' | 'ACKNOWLEDGED' | 'FAILED' | 'EXPIRED' | 'WITHDRAWN';
  clientId?: string;
  replacedBy?: string;
  /** First those who must acknowledge it and have not. At most 1,000. */
  ledger?: LedgerLine[];
}

export interface NotificationPage {
  notifications: NotificationState[];
  /** For `before`. Absent on the last page. */
  next?: string;
}

/** For whom a ticket is, and for how long. */
export interface TicketRequest {
  user: string;
  /** What the user belongs to, beside what is declared: targets by type. */
  audiences?: Record<string, readonly string[]>;
  /** How long it is valid, at most `24h`; `1h` if absent. */
  ttl?: Duration;
}

/** What proves to Relais who a web page's user is: as a bearer token, or as `?ticket=`. */
export interface Ticket {
  ticket: string;
  expires: string;
}

/**
 * A consumer of services, and an emitter of notifications. Calls are tried again, a few times, where that is safe. They
 * fail with `RelaisError`.
 */
export class Client {
  constructor(options: ClientOptions);
  /** Submits a task. It is stored for good when this resolves. */
  submit(service: string, body: any, options?: SubmitOptions): Promise<Submitted>;
  /**
   * Submits many tasks. One that is refused does not hold up the others: in its place there is the error. Not tried again
   * without an answer, since that could make tasks twice.
   */
  submitMany(service: string, tasks: Iterable<Submission>, options?: CallOptions): Promise<(Submitted | RelaisError)[]>;
  /** A task as it is now. */
  get<Response = any>(service: string, taskId: string, options?: CallOptions): Promise<Task<Response>>;
  /** Waits until a task has ended, or the time is up: look at its status. For ever if there is no `timeout`. */
  wait<Response = any>(
    service: string,
    taskId: string,
    options?: CallOptions & { timeout?: Duration },
  ): Promise<Task<Response>>;
  /** Follows a task to its end; goes on by itself after a lost connection. */
  stream<Response = any>(
    service: string,
    taskId: string,
    options?: CallOptions & { lastEventId?: string },
  ): AsyncGenerator<TaskEvent<Response>, void, void>;
  /** The client's own tasks, the newest first, without their responses. */
  list(service: string, options?: ListOptions): AsyncGenerator<Task, void, void>;
  /** One page of them. */
  page(service: string, options?: ListOptions): Promise<TaskPage>;
  /** Cancels a task. Once it has ended otherwise, this is refused with 409002. */
  cancel(service: string, taskId: string, options?: CallOptions): Promise<Task>;
  /**
   * Does a task once more: one that has ended, with all its retries anew, or one that waits for its time, now. One that
   * waits for a worker, or that a worker has, is refused with 409003. Not tried again without an answer.
   */
  retry(service: string, taskId: string, options?: CallOptions): Promise<Task>;
  /**
   * Makes a batch: all of its tasks are taken, or none. Making it again with the same key gives the same batch. A key is made up
   * if absent, so that a call without an answer can be tried again. `false`: none, and such a call is not tried again.
   */
  makeBatch(
    batch: NewBatch,
    options?: CallOptions & { idempotencyKey?: string | false; traceparent?: string },
  ): Promise<{ batchId: string; tasks: Submitted[] }>;
  /** A batch as it is now. */
  batch(batchId: string, options?: CallOptions): Promise<Batch>;
  /** Takes no more tasks into a batch; it ends when all of them have. */
  closeBatch(batchId: string, options?: CallOptions): Promise<Batch>;
  /** Closes a batch, and cancels all of its tasks that have not ended. */
  cancelBatch(batchId: string, options?: CallOptions): Promise<Batch>;
  /** What was told of a task. */
  callbacks(service: string, taskId: string, options?: CallOptions): Promise<CallbackState[]>;
  /** The services that the client may use. */
  services(options?: CallOptions): Promise<Service[]>;
  /** One of them, with its JSON Schema. */
  service(name: string, options?: CallOptions): Promise<Service>;
  /** What the client's callbacks are signed with, the newest first. */
  signingSecrets(options?: CallOptions): Promise<SigningSecret[]>;
  /**
   * Sends a notification, or a list of at most 1,000: all are stored, or none. Answers its id, or theirs in their order.
   * Sending again with the same key stores nothing more. A key is made up if absent, so that a call without an answer
   * can be tried again. `false`: none; such a call is only tried again if each message has an id.
   */
  notify(
    messages: readonly NotificationDraft[],
    options?: CallOptions & { idempotencyKey?: string | false },
  ): Promise<string[]>;
  notify(message: NotificationDraft, options?: CallOptions & { idempotencyKey?: string | false }): Promise<string>;
  /** Takes a notification back: it is not sent any more, and pages that show it are told. */
  withdrawNotification(id: string, options?: CallOptions): Promise<void>;
  /** Puts another notification in the place of one; answers its id. Not tried again without an answer. */
  replaceNotification(id: string, message: NotificationDraft, options?: CallOptions): Promise<string>;
  /** The client's notifications that were not acknowledged by all who had to, the newest first. */
  notificationErrors(options?: CallOptions & { limit?: number; before?: string }): Promise<NotificationPage>;
  /** A ticket for a user, with which a web page gets that user's notifications. */
  issueTicket(request: TicketRequest, options?: CallOptions): Promise<Ticket>;
  /** An audience has exactly these members from now on. */
  setAudience(
    type: AudienceType,
    target: string,
    members: Iterable<Member>,
    options?: CallOptions,
  ): Promise<MembersChange>;
  /** An audience has these members as well. */
  addToAudience(
    type: AudienceType,
    target: string,
    members: Iterable<Member>,
    options?: CallOptions,
  ): Promise<MembersChange>;
  /** An audience does not have these members any more. They are removed one by one. */
  removeFromAudience(
    type: AudienceType,
    target: string,
    members: Iterable<Member>,
    options?: CallOptions,
  ): Promise<MembersChange>;
  /** The members of an audience, in the order of their names. */
  audienceMembers(
    type: AudienceType,
    target: string,
    options?: CallOptions & { pageSize?: number },
  ): AsyncGenerator<AudienceTarget, void, void>;
}

/** One thing that is wrong with a request. */
export interface ErrorDetail {
  /** Where, as a JSON pointer. */
  path: string;
  message: string;
}

export interface Refusal {
  number?: number;
  description: string;
  details?: ErrorDetail[];
  status?: number;
  retryAfter?: number;
}

/** A server refused, or did not answer. */
export class RelaisError extends Error {
  constructor(refusal: Refusal, options?: ErrorOptions);
  /** The kind of refusal, e.g. 404001. Absent if the answer was not one of Relais, or if there was none. */
  readonly number: number | undefined;
  /** The same, for people. */
  readonly description: string;
  /** What exactly is wrong, where the server says so. */
  readonly details: ErrorDetail[];
  /** The HTTP status; absent if there was no answer. */
  readonly status: number | undefined;
  /** When it may be worth trying again, in milliseconds. */
  readonly retryAfter: number | undefined;
  /** Whether the same call may well succeed later. */
  readonly isPassing: boolean;
}
