/**
 * One connection to RabbitMQ, from its opening to its loss: a channel that takes, one that tells with confirmation, and one
 * that hears what is said to all workers.
 *
 * Queues are used as they are, whatever they are; those that are not there are declared plain and durable.
 */

import { randomUUID } from 'node:crypto';
import { Backoff, pause } from '../backoff.js';

/** @typedef {Pick<typeof import('amqplib'), 'connect'>} Amqplib */

const CONNECT_LIMIT = 10_000;

/** How long to wait for the broker to say goodbye. */
const CLOSE_LIMIT = 1_000;

/** So many messages wait for a worker that is slow to hear; the oldest are dropped. */
const MOST_WAITING = 10_000;

/** The broker will never take this message. */
export class TooLarge extends Error {}

/** A message came back: there is no such queue any more. */
class Unroutable extends Error {}

export class Session {
  #url;
  #ca;
  #in;
  #out;
  #control;
  #prefetch;
  #name;
  /** @type {import('amqplib').ChannelModel | undefined} */
  #connection;
  /** @type {import('amqplib').Channel | undefined} */
  #consumer;
  #consumerTag = `relais-${randomUUID()}`;
  #consumes = false;
  #wantsMore = true;
  /** @type {Promise<Publisher> | undefined} */
  #publisher;
  #ended = new AbortController();
  #lose = /** @type {(error: unknown) => void} */ (() => {});
  /** Resolves with the reason when the connection is of no use any more. */
  lost;

  /** @param {import('./worker.js').Settings} settings */
  constructor({ url, heartbeat, ca, queueName, concurrency, hostName }) {
    this.#ca = ca;
    this.#url = withHeartbeat(url, heartbeat);
    this.#in = `${queueName}-in`;
    this.#out = `${queueName}-out`;
    this.#control = `${queueName}-control`;
    this.#prefetch = concurrency;
    this.#name = `relais worker of ${queueName} on ${hostName}`;
    this.lost = new Promise((resolve) => {
      this.#lose = (error) => {
        this.#ended.abort();
        resolve(error);
        // Where only a channel was lost, the rest of the connection goes too.
        void this.#hangUp();
      };
    });
  }

  /** Whether something can be told. */
  get isOpen() {
    return this.#consumer !== undefined && !this.#ended.signal.aborted;
  }

  /** Whether tasks come. */
  get isAlive() {
    return this.#consumes && !this.#ended.signal.aborted;
  }

  /**
   * Brings why it does not hear what is said to all workers, if it may not.
   *
   * @param {Amqplib} amqplib
   * @param {(message: import('amqplib').ConsumeMessage) => void} deliver
   * @param {(text: string) => void} heed
   * @returns {Promise<unknown>}
   */
  async open(amqplib, deliver, heed) {
    const clientProperties = { connection_name: this.#name };
    const trust = this.#ca && { ca: [Buffer.from(this.#ca)] };
    const socket = { timeout: CONNECT_LIMIT, noDelay: true, keepAlive: true, clientProperties, ...trust };
    const connection = await amqplib.connect(this.#url, socket).catch(hint);
    this.#connection = connection;
    if (this.#ended.signal.aborted) void this.#hangUp();
    /** @type {unknown} */
    let reason = new Error('the connection was closed');
    connection.on('error', (error) => (reason = error));
    connection.on('close', (error) => this.#lose(error ?? reason));
    try {
      await this.#ensureQueue(this.#in);
      await this.#ensureQueue(this.#out);
      await this.#open();
      // Before any task comes: what is cancelled from then on is heard.
      const deaf = await this.#listen(heed).catch((error) => this.#ended.signal.aborted ? undefined : error);
      const consumer = await connection.createChannel();
      this.#consumer = consumer;
      consumer.on('error', (error) => this.#lose(error));
      consumer.on('close', () => this.#lose(new Error('the channel was closed')));
      await consumer.prefetch(this.#prefetch);
      if (!this.#wantsMore) return deaf;
      const consuming = consumer.consume(this.#in, (message) => {
        if (message) deliver(message);
        else this.#lose(new Error(`the broker takes ${this.#in} away`));
      }, { consumerTag: this.#consumerTag });
      // From now on tasks may come, even before the answer.
      this.#consumes = true;
      await consuming;
      return deaf;
    } catch (error) {
      this.#lose(error);
      throw error;
    }
  }

  /**
   * Resolves when the broker has the message for good. Tried again as long as the connection holds; fails when it does not,
   * or with `TooLarge`.
   *
   * @param {string} text JSON
   */
  async publish(text) {
    const content = Buffer.from(text);
    const backoff = new Backoff();
    for (;;) {
      try {
        const publisher = await this.#open();
        return await publisher.publish(content);
      } catch (error) {
        if (this.#ended.signal.aborted) throw error;
        if (isTooLarge(error, content.length)) throw new TooLarge(/** @type {Error} */ (error).message);
        await pause(backoff.next(), this.#ended.signal);
        if (error instanceof Unroutable) await this.#ensureQueue(this.#out).catch(() => {});
      }
    }
  }

  /** @param {import('amqplib').ConsumeMessage} message */
  ack(message) {
    this.#acknowledge((channel) => channel.ack(message));
  }

  /** @param {import('amqplib').ConsumeMessage} message */
  giveBack(message) {
    return this.#acknowledge((channel) => channel.nack(message, false, true));
  }

  /** @param {import('amqplib').ConsumeMessage} message */
  reject(message) {
    this.#acknowledge((channel) => channel.nack(message, false, false));
  }

  stopConsuming() {
    this.#wantsMore = false;
    if (this.isAlive) this.#consumer?.cancel(this.#consumerTag).catch(() => {});
  }

  /** Says goodbye, which makes sure that the broker has heard everything before it. */
  async close() {
    if (this.#ended.signal.aborted) return;
    this.#ended.abort();
    const late = new AbortController();
    await Promise.race([this.#hangUp(), pause(CLOSE_LIMIT, late.signal).catch(() => {})]);
    late.abort();
  }

  async #hangUp() {
    try {
      await this.#consumer?.close();
    } catch {
      // It was closed before.
    }
    try {
      await this.#connection?.close();
    } catch {
      // The same.
    }
  }

  /** @param {(channel: import('amqplib').Channel) => void} act */
  #acknowledge(act) {
    if (this.#ended.signal.aborted || !this.#consumer) return false;
    try {
      act(this.#consumer);
      return true;
    } catch {
      // The channel was closed this very moment: the broker has the message back.
      return false;
    }
  }

  /** The channel that tells, opened anew when the last one was closed. */
  #open() {
    const connection = this.#connection;
    if (!connection) throw new Error('there is no connection');
    this.#publisher ??= (async () => {
      const channel = await connection.createConfirmChannel();
      const publisher = new Publisher(channel, this.#out);
      void publisher.closed.then(() => (this.#publisher = undefined));
      return publisher;
    })().catch((error) => {
      this.#publisher = undefined;
      throw error;
    });
    return this.#publisher;
  }

  /**
   * Looks first: a queue may have been declared otherwise, and is fine as it is.
   *
   * @param {string} queue
   */
  async #ensureQueue(queue) {
    if (await this.#ask(404, (channel) => channel.checkQueue(queue))) return;
    // Refused: somebody else has declared it meanwhile, with arguments of their own.
    await this.#ask(406, (channel) => channel.assertQueue(queue, { durable: true }));
  }

  /**
   * Hears what is said to all workers, by a queue of its own on a channel of its own, which a refusal closes.
   *
   * @param {(text: string) => void} heed
   */
  async #listen(heed) {
    const connection = this.#connection;
    if (!connection) throw new Error('there is no connection');
    const exchange = this.#control;
    // Looks first: whoever may not make one may still use it.
    if (!(await this.#ask(404, (channel) => channel.checkExchange(exchange)))) {
      await this.#ask(406, (channel) => channel.assertExchange(exchange, 'fanout', { durable: true }));
    }
    const channel = await connection.createChannel();
    channel.on('error', () => {});
    const queue = `${exchange}.${randomUUID()}`;
    // Of a kind that can be somebody's own, whatever is usual in this virtual host.
    const kind = { 'x-queue-type': 'classic', 'x-max-length': MOST_WAITING };
    await channel.assertQueue(queue, { exclusive: true, autoDelete: true, durable: false, arguments: kind });
    await channel.bindQueue(queue, exchange, '');
    await channel.consume(queue, (message) => message && heed(message.content.toString()), {
      noAck: true, exclusive: true,
    });
  }

  /**
   * Asks something on a channel of its own, which a refusal closes. Whether it was not refused with `code`.
   *
   * @param {number} code
   * @param {(channel: import('amqplib').Channel) => Promise<unknown>} question
   */
  async #ask(code, question) {
    const connection = this.#connection;
    if (!connection) throw new Error('there is no connection');
    const channel = await connection.createChannel();
    channel.on('error', () => {});
    try {
      await question(channel);
    } catch (error) {
      if (/** @type {{ code?: number }} */ (error).code === code) return false;
      throw error;
    }
    await channel.close();
    return true;
  }
}

/** A channel with confirmation, and which of its messages came back. */
class Publisher {
  #channel;
  #queue;
  #returned = /** @type {Set<string>} */ (new Set());
  /** What to call for the messages that are not confirmed yet, when they never will be. */
  #pending = /** @type {Set<(error: unknown) => void>} */ (new Set());
  closed;

  /**
   * @param {import('amqplib').ConfirmChannel} channel
   * @param {string} queue
   */
  constructor(channel, queue) {
    this.#channel = channel;
    this.#queue = queue;
    channel.on('return', (message) => this.#returned.add(message.properties.messageId));
    this.closed = new Promise((/** @type {(error: unknown) => void} */ resolve) => {
      channel.on('error', resolve);
      channel.on('close', () => resolve(new Error('the channel was closed')));
    });
    void this.closed.then((error) => {
      for (const fail of this.#pending) fail(error);
    });
  }

  /**
   * @param {Buffer} content
   * @returns {Promise<void>}
   */
  publish(content) {
    const messageId = randomUUID();
    const options = { persistent: true, mandatory: true, contentType: 'application/json', messageId };
    return new Promise((resolve, reject) => {
      this.#pending.add(reject);
      this.#channel.publish('', this.#queue, content, options, (error) => {
        // A channel that is closed says why by itself.
        if (error && error.message !== 'message nacked') return;
        this.#pending.delete(reject);
        // What came back was confirmed all the same, right after.
        if (this.#returned.delete(messageId)) reject(new Unroutable(`there is no queue ${this.#queue}`));
        else if (error) reject(error);
        else resolve();
      });
    });
  }
}

/**
 * The address with a heartbeat, unless it has one.
 *
 * @param {string} url
 * @param {number} millis
 */
function withHeartbeat(url, millis) {
  const address = new URL(url);
  if (!address.searchParams.has('heartbeat')) address.searchParams.set('heartbeat', String(Math.ceil(millis / 1_000)));
  return address.href;
}

/**
 * @param {unknown} error
 * @param {number} size
 */
function isTooLarge(error, size) {
  // The whole channel is closed for it: what went along is tried again.
  const limit = /message size .* max(?:imum)? size (\d+)/.exec(error instanceof Error ? error.message : '')?.[1];
  return limit !== undefined && size > Number(limit);
}

/**
 * @param {Error} error
 * @returns {never}
 */
function hint(error) {
  // All that amqplib says of a virtual host that is not there, or is not for this user.
  if (!/got <ConnectionClose/.test(error.message)) throw error;
  throw new Error('the broker closes the connection: look at the virtual host and who may use it', { cause: error });
}
