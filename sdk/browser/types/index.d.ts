/** Real-time notifications of Relais in a web page. */

export type Priority = 'LOW' | 'NORMAL' | 'HIGH';
export type MessageType = 'REALTIME' | 'SYSTEM' | 'NOTIFICATION';

/** A message as it was emitted. Dates are RFC 3339, UTC. */
export interface Message<Payload = any> {
  metadata: {
    id: string;
    priority: Priority;
    type: MessageType;
    /** A program's name, or a user's id. */
    emitter: string;
    source?: string;
    topic?: string;
    operation?: 'create' | 'update' | 'delete';
    timestamp: string;
    expiration: string;
  };
  payload: Payload;
  routing: {
    audience: { type: string; targets: string[] };
    retry: {
      ack_required: boolean;
      enabled: boolean;
      /** 0 at the first sending; a replay has the same id and a higher number. */
      attempts: number;
      limit: number;
      backoff: 'FIXED' | 'LINEAR' | 'EXPONENTIAL';
    };
  };
}

export interface Counts {
  /** This user has not acknowledged them. */
  unread: number;
  /** They must be acknowledged by this user, and are not. */
  unacknowledged: number;
  all: number;
}

export type Transport = 'sse' | 'websocket' | 'poll';

/** `open`: messages arrive. `waiting`: for the next try. `closed`: for good. */
export type State = 'connecting' | 'open' | 'waiting' | 'closed';

/** A token, and when it expires where it does not say so itself: a date, its text, or milliseconds since 1970. */
export type Token = string | { token: string; expires?: Date | string | number };

export interface Options {
  /** The server, absolute or relative to the page: `https://relais.example.org`. */
  url: string;
  /** A JWT or a ticket. When it has expired, the client is closed; give `getToken` to go on. */
  token?: string;
  /** Gets a new token. Called at the start, before the present one expires, and when the server refuses it. */
  getToken?: () => Token | Promise<Token>;
  /** Which transports to use, best first; all of them, in this order, if absent: `sse`, `websocket`, `poll`. */
  transports?: readonly Transport[];
  /** Whether the tabs of an origin and a user share one link; `true` if absent. */
  share?: boolean;
  /** The user, where the token is not a JWT with `sub`. Without either, tabs share nothing and nothing is stored. */
  user?: string;
  /** Where acknowledgements wait and the transport that worked is remembered; `null`: nowhere. `localStorage` if absent. */
  storage?: Pick<Storage, 'getItem' | 'setItem' | 'removeItem'> | null;
  /** Where to go on from, as an earlier `cursor` said; with the present state of the list if absent. */
  cursor?: string;
  /** How long a transport may take to say anything before the next is tried, in milliseconds; 10,000 if absent. */
  patience?: number;
  /** Another environment than the browser's, for tests. */
  platform?: Partial<Platform>;
}

/** What the library uses of the browser. */
export interface Platform {
  fetch: typeof fetch;
  WebSocket: typeof WebSocket | undefined;
  locks: Pick<LockManager, 'request'> | undefined;
  Channel: (new (name: string) => Channel) | undefined;
  /** Where `online`, `pagehide` and `pageshow` come from. */
  window: Pick<EventTarget, 'addEventListener' | 'removeEventListener'> | undefined;
  /** Where `visibilitychange` comes from. */
  document: (Pick<EventTarget, 'addEventListener' | 'removeEventListener'> & { hidden: boolean }) | undefined;
  now: () => number;
  random: () => number;
  /** Runs something later; what comes back prevents it. */
  after: (millis: number, run: () => void) => () => void;
}

export interface Channel {
  onmessage: ((event: MessageEvent) => void) | null;
  postMessage(message: any): void;
  close(): void;
}

export interface ListOptions {
  /** `all` if absent. */
  filter?: 'unread' | 'unacknowledged' | 'all';
  /** How many at most; 50 if absent. */
  limit?: number;
  /** The `next` of the page before. */
  before?: string;
}

export interface Listed<Payload = any> {
  message: Message<Payload>;
  /** When this user acknowledged it. */
  acknowledged?: string;
}

/** A part of the list, newest first. */
export interface Page<Payload = any> {
  notifications: Listed<Payload>[];
  counts: Counts;
  /** What `before` must be for the next page; absent on the last. */
  next?: string;
}

export interface NotificationsEventMap {
  /** A new message, or a replay of one that is not acknowledged (`routing.retry.attempts` is above 0). */
  notification: CustomEvent<Message>;
  /** A message is void; `replacedBy` names the one that comes instead. */
  withdrawn: CustomEvent<{ id: string; replacedBy?: string }>;
  /** The user has acknowledged these, here, in another tab or on another device. `all`: and all others so far. */
  acknowledged: CustomEvent<{ ids: string[]; all?: boolean }>;
  counts: CustomEvent<Counts>;
  /** It is not known what came meanwhile: read the list again. */
  gap: CustomEvent<{ reason: 'purged' | 'epoch' | 'invalid' | 'missed' | (string & {}) }>;
  /** The user's audiences have changed: read the list again. */
  audiences: CustomEvent<Record<string, never>>;
  state: CustomEvent<{ state: State; transport?: Transport; reason?: string }>;
}

type Listener<K extends keyof NotificationsEventMap> =
  | ((this: Notifications, event: NotificationsEventMap[K]) => any)
  | { handleEvent(event: NotificationsEventMap[K]): any };

/** A user's notifications, as they come. */
export interface Notifications extends EventTarget {
  readonly state: State;
  readonly counts: Counts;
  /** How far this tab has come; moves after the listeners ran. */
  readonly cursor: string | undefined;
  /** Acknowledges. It counts at once; without a connection it is stored, and sent later. */
  ack(ids: string | readonly string[]): void;
  /** Acknowledges all. Without a connection: all that this tab knows of. */
  ackAll(): void;
  /** A page of the list. Rejects with an `Error`, with `status` where the server refused. */
  list<Payload = any>(options?: ListOptions): Promise<Page<Payload>>;
  /** Ends it. Another tab takes over the link. */
  close(): void;
  addEventListener<K extends keyof NotificationsEventMap>(
    type: K, listener: Listener<K> | null, options?: boolean | AddEventListenerOptions): void;
  addEventListener(
    type: string, listener: EventListenerOrEventListenerObject | null, options?: boolean | AddEventListenerOptions): void;
  removeEventListener<K extends keyof NotificationsEventMap>(
    type: K, listener: Listener<K> | null, options?: boolean | EventListenerOptions): void;
  removeEventListener(
    type: string, listener: EventListenerOrEventListenerObject | null, options?: boolean | EventListenerOptions): void;
}

/** Connects, and stays connected until `close()`. */
export function connect(options: Options): Notifications;
