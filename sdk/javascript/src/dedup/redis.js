/**
 * Claims and marks in Redis, Valkey or KeyDB: one key for each message.
 *
 * A claim is `SET key claim:TOKEN NX PX ms`, a mark the value `1` under the same key. Any other value is somebody else's code
 * that says `SET key value NX EX n` before it processes a message: it counts as a mark.
 */

import { createHash, randomBytes } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { checkId, checkName, checkWindow, ClaimExpired, DAY, span } from './model.js';

const EXTEND = script(`-- Lets a claim (ARGV[1]) last for ARGV[2] ms, unless somebody else has the message (KEYS[1]) by now.
local value = redis.call('GET', KEYS[1])
if value and value ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
`);

const MARK = script(`-- Turns a claim (ARGV[1]) into a mark for ARGV[2] ms, unless somebody else has the message (KEYS[1]) by now.
local value = redis.call('GET', KEYS[1])
if value and value ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], '1', 'PX', ARGV[2])
return 1
`);

const RELEASE = script(`-- Removes a claim (ARGV[1]), unless somebody else has the message (KEYS[1]) by now.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
`);

const CLAIM = 'claim:';

/** The first pause before a mark is tried again. It doubles each time. */
const PAUSE = 50;

/** @param {string} text */
function script(text) {
  return { text, sha: createHash('sha1').update(text).digest('hex') };
}

/** Processes messages once, by keys in Redis. */
export class RedisDedup {
  #client;
  #prefix;
  #window;
  #claim;
  #warn;

  /**
   * @param {import('../../types/dedup.js').RedisClient} client
   * @param {import('../../types/dedup.js').RedisDedupOptions} [options]
   */
  constructor(client, options = {}) {
    const { consumer = '', window = DAY, claim = 30_000, prefix = 'dedup:processed:', warn = console.warn } = options;
    this.#client = client;
    const name = checkName(consumer).replaceAll('%', '%25').replaceAll(':', '%3A');
    this.#prefix = name ? `${prefix}${name}:` : prefix;
    this.#window = span(window, 'window');
    this.#claim = span(claim, 'claim');
    this.#warn = warn;
  }

  /** @param {number | string} longestRetry */
  check(longestRetry) {
    checkWindow(this.#window, longestRetry);
  }

  /**
   * @template T
   * @param {string} id
   * @param {(context: { signal: AbortSignal }) => T | Promise<T>} handler
   * @returns {Promise<import('../../types/dedup.js').Once<T>>}
   */
  async once(id, handler) {
    const key = this.#prefix + checkId(id);
    const token = CLAIM + randomBytes(16).toString('hex');
    const asked = performance.now();
    let claimed;
    try {
      claimed = await this.#call('SET', key, token, 'NX', 'PX', String(this.#claim));
    } catch (error) {
      await this.#giveUp(key, token); // There may be a claim whose answer was lost.
      throw error;
    }
    if (claimed === null) return this.#busy(key);
    const lost = new AbortController();
    const keeper = new Keeper(this.#claim, asked, () => this.#run(EXTEND, key, token, this.#claim), lost);
    let result;
    try {
      result = await handler({ signal: lost.signal });
    } catch (error) {
      await keeper.stop();
      if (lost.signal.reason === TAKEN) return { status: 'busy', wait: this.#claim };
      await this.#giveUp(key, token);
      if (!lost.signal.aborted) throw error;
      throw new ClaimExpired(`the claim of ${key} ran out while Redis could not be reached`);
    }
    await this.#mark(key, token, id);
    await keeper.stop();
    return { status: 'done', result };
  }

  /**
   * What a key that is there means.
   *
   * @param {string} key
   * @returns {Promise<import('../../types/dedup.js').Once<never>>}
   */
  async #busy(key) {
    const [value, left] = await Promise.all([this.#call('GET', key), this.#call('PTTL', key)]);
    if (value !== null && !String(value).startsWith(CLAIM)) return { status: 'already done' };
    // What is not there any more was a claim: a mark would not end just now.
    return { status: 'busy', wait: Math.max(0, Number(left)) };
  }

  /**
   * While Redis does not answer, this is tried for as long as a claim lasts.
   *
   * @param {string} key @param {string} token @param {string} id
   */
  async #mark(key, token, id) {
    const end = performance.now() + this.#claim;
    for (let pause = PAUSE; ; pause *= 2) {
      try {
        if (await this.#run(MARK, key, token, this.#window)) return;
        return this.#warn(`message ${id} was processed, but its claim was taken over`);
      } catch (error) {
        if (performance.now() + pause >= end) {
          return this.#warn(`message ${id} was processed, but could not be marked: ${error}`);
        }
      }
      await sleep(pause);
    }
  }

  /** @param {string} key @param {string} token */
  async #giveUp(key, token) {
    await this.#run(RELEASE, key, token).catch(() => {}); // It expires.
  }

  /** @param {{ text: string, sha: string }} script @param {string} key @param {(string | number)[]} values */
  async #run({ text, sha }, key, ...values) {
    const rest = ['1', key, ...values.map(String)];
    try {
      return Number(await this.#call('EVALSHA', sha, ...rest)) === 1;
    } catch (error) {
      if (!String(error).includes('NOSCRIPT')) throw error;
      return Number(await this.#call('EVAL', text, ...rest)) === 1;
    }
  }

  /** @param {string} command @param {string[]} values @returns {Promise<unknown>} */
  async #call(command, ...values) {
    const client = this.#client;
    // ioredis; it has a sendCommand of another kind.
    if ('call' in client) return client.call(command, ...values);
    return client.sendCommand([command, ...values]);
  }
}

const TAKEN = new Error('somebody else has the message: the claim had expired');
const EXPIRED = new Error('the claim ran out while Redis could not be reached');

/** Extends a claim each time a third of it has passed, until it is stopped or the claim is lost. */
class Keeper {
  #stopped = new AbortController();
  #ended;

  /**
   * @param {number} claim
   * @param {number} asked
   * @param {() => Promise<boolean>} extend
   * @param {AbortController} lost
   */
  constructor(claim, asked, extend, lost) {
    this.#ended = this.#keep(claim, asked, extend, lost);
  }

  /** Lets it finish what it has begun: an extension that arrives after a release would bring the claim back. */
  async stop() {
    this.#stopped.abort();
    await this.#ended;
  }

  /** @param {number} claim @param {number} asked @param {() => Promise<boolean>} extend @param {AbortController} lost */
  async #keep(claim, asked, extend, lost) {
    const { signal } = this.#stopped;
    let end = asked + claim;
    let pause = claim / 3;
    for (;;) {
      await sleep(Math.min(pause, Math.max(0, end - performance.now())), undefined, { signal }).catch(() => {});
      if (signal.aborted) return;
      const begin = performance.now();
      // What does not answer in time is as good as away.
      const late = new AbortController();
      const timer = sleep(Math.max(1, end - begin), undefined, { signal: late.signal });
      const answer = await Promise.race([extend(), timer.then(() => undefined)]).catch(() => undefined);
      late.abort();
      timer.catch(() => {});
      if (answer === false) return lost.abort(TAKEN);
      if (answer) [end, pause] = [begin + claim, claim / 3];
      else if (performance.now() >= end) return lost.abort(EXPIRED);
      else pause = claim / 10;
    }
  }
}
