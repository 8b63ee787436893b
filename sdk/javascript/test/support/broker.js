/** A virtual host for one test, on the real broker that `RELAIS_TEST_RABBITMQ` names. */

import { randomUUID } from 'node:crypto';
import { connect } from 'amqplib';
import { PATIENCE, within } from './process.js';

/** A message as it was taken from a queue. @typedef {{ body: any, properties: any, redelivered: boolean }} Taken */

export class Vhost {
  #management;
  #authorization;
  #name = `relais_sdk_${process.pid}_${randomUUID().slice(0, 8)}`;
  #tags = 0;
  /** @type {import('amqplib').ChannelModel | undefined} */
  #connection;
  /** @type {import('amqplib').Channel | undefined} */
  #counter;
  url;
  queueName = 'print';

  /** @param {{ after: (end: () => Promise<void>) => void }} t a test */
  static async create(t) {
    const vhost = new Vhost();
    t.after(() => vhost.#delete());
    await vhost.api('PUT', `vhosts/${vhost.#name}`);
    const all = { configure: '.*', write: '.*', read: '.*' };
    await vhost.api('PUT', `permissions/${vhost.#name}/${vhost.url.username}`, all);
    vhost.#connection = await connect(vhost.url.href);
    vhost.#connection.on('error', () => {});
    return vhost;
  }

  constructor() {
    const given = process.env.RELAIS_TEST_RABBITMQ;
    if (!given) throw new Error('RELAIS_TEST_RABBITMQ must be the URL of a RabbitMQ: amqp://guest:guest@127.0.0.1:5672');
    this.url = new URL(given);
    const { hostname, username, password, searchParams } = this.url;
    this.#management = `http://${hostname}:${searchParams.get('management_port') ?? 15672}/api/`;
    this.#authorization = `Basic ${btoa(`${username}:${password}`)}`;
    this.url.search = '';
    this.url.pathname = this.#name;
  }

  /** What a worker needs to know. */
  get options() {
    return { url: this.url.href, service: 'print', queueName: this.queueName, hostName: 'pod-1' };
  }

  /**
   * One request to the management API.
   *
   * @param {string} method
   * @param {string} path
   * @param {object} [body]
   * @returns {Promise<any>}
   */
  async api(method, path, body) {
    const headers = { Authorization: this.#authorization, 'Content-Type': 'application/json' };
    const response = await fetch(this.#management + path, { method, headers, body: body && JSON.stringify(body) });
    const text = await response.text();
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`);
    return text ? JSON.parse(text) : undefined;
  }

  /** @param {string} queue @param {object} [argumentList] */
  declare(queue, argumentList = {}) {
    return this.api('PUT', `queues/${this.#name}/${queue}`, { durable: true, arguments: argumentList });
  }

  /** @param {string} queue */
  queue(queue) {
    return this.api('GET', `queues/${this.#name}/${queue}`);
  }

  /**
   * How many messages are ready in it, and how many consumers it has, this very moment.
   *
   * @param {string} queue
   */
  async count(queue) {
    this.#counter ??= await this.connection.createChannel();
    const { messageCount, consumerCount } = await this.#counter.checkQueue(queue);
    return { ready: messageCount, consumers: consumerCount };
  }

  /** Takes a message and puts it back: the next one to have it is told that somebody had it. @param {string} queue */
  async look(queue) {
    const options = { count: 1, ackmode: 'ack_requeue_true', encoding: 'auto' };
    const seen = await this.api('POST', `queues/${this.#name}/${queue}/get`, options);
    if (seen.length !== 1) throw new Error(`there is nothing in ${queue}`);
  }

  /** What workers and broker have agreed on, in seconds. @returns {Promise<number[]>} */
  async heartbeats() {
    /** @type {any[]} */
    const connections = await this.api('GET', `vhosts/${this.#name}/connections`);
    const isWorker = (/** @type {any} */ each) => each.client_properties?.connection_name?.startsWith('relais worker');
    return connections.filter(isWorker).map(({ timeout }) => timeout);
  }

  /** @param {string} queue */
  remove(queue) {
    return this.api('DELETE', `queues/${this.#name}/${queue}`);
  }

  /** @param {string} name @param {string} pattern @param {object} definition */
  policy(name, pattern, definition) {
    return this.api('PUT', `policies/${this.#name}/${name}`, { pattern, definition, 'apply-to': 'queues' });
  }

  /**
   * Submits a task as the server does, to a queue that must be there.
   *
   * @param {any} body
   * @returns {Promise<string>} its id
   */
  async submit(body) {
    const taskId = randomUUID();
    const messageType = 'submission';
    await this.send({ taskId, task_id: taskId, data: { messageType, message_type: messageType, body } });
    return taskId;
  }

  /** @param {any} message JSON, or bytes as they are @param {string} [queue] */
  async send(message, queue = `${this.queueName}-in`) {
    const channel = await this.connection.createConfirmChannel();
    const content = Buffer.isBuffer(message) ? message : Buffer.from(JSON.stringify(message));
    channel.publish('', queue, content, { persistent: true, contentType: 'application/json' });
    await channel.waitForConfirms();
    await channel.close();
  }

  get connection() {
    if (!this.#connection) throw new Error('there is no connection');
    return this.#connection;
  }

  /**
   * Follows a queue; `next` waits for its next message.
   *
   * @param {string} [queue]
   */
  async follow(queue = `${this.queueName}-out`) {
    const channel = await this.connection.createChannel();
    /** @type {Taken[]} */
    const arrived = [];
    /** @type {((taken: Taken) => void)[]} */
    const waiting = [];
    const take = (/** @type {import('amqplib').ConsumeMessage | null} */ message) => {
      if (!message) return;
      channel.ack(message);
      const text = message.content.toString();
      const taken = { body: text, properties: message.properties, redelivered: message.fields.redelivered };
      try {
        taken.body = JSON.parse(text);
      } catch {
        // The test will see that it is not JSON.
      }
      const next = waiting.shift();
      if (next) next(taken);
      else arrived.push(taken);
    };
    await channel.consume(queue, take, { consumerTag: `test-${(this.#tags += 1)}` });
    const next = async () => {
      const first = arrived.shift();
      if (first) return first;
      /** @type {Promise<Taken>} */
      const promise = new Promise((resolve) => waiting.push(resolve));
      return within(PATIENCE, `a message comes on ${queue}`, promise);
    };
    return {
      next,
      arrived,
      /** The next message that tells an end. */
      end: async () => {
        for (;;) {
          const taken = await next();
          if (['success', 'failure'].includes(taken.body.data.messageType)) return taken;
        }
      },
    };
  }

  async #delete() {
    await this.#connection?.close().catch(() => {});
    await this.api('DELETE', `vhosts/${this.#name}`);
  }
}
