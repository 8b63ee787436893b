/**
 * Real-time notifications of Relais in a web page: what the events mean, the counts, acknowledgements, and the tabs'
 * work together. The bell that shows them is in `element.js`.
 *
 * One tab leads: it has the link, sends acknowledgements, and says what the counts are. The others get each event from
 * it, and could go on from the same cursor at any time. How a link is kept is in `link.js`.
 *
 * State is in the variables of functions, and not in fields, and what a part of the library can do comes as an array: a
 * page's build shortens the names of variables.
 */

import { claims, httpOf, isFinal, query, saying } from './http.js';
import { ledgerOf } from './ledger.js';
import { CHUNK, LONG_AGO, LONGEST_PAUSE, OFTEN, PAUSE, RETRY, SETTLE, WAITING } from './limits.js';
import { keepLink } from './link.js';
import { isText, settingOf, storageOf, texts, timerOf } from './platform.js';
import { tabsOf } from './tabs.js';

/**
 * @param {import('../types/index.js').Options} options
 * @returns {import('../types/index.js').Notifications}
 */
export const connect = (options) => {
  const setting = settingOf(options);
  const { share = true, now, window, document } = setting;
  let { user, cursor } = setting;
  const store = storageOf(setting);
  const http = httpOf(setting);
  const counting = timerOf(setting);
  const pause = timerOf(setting);
  const listening = new AbortController();
  const counts = /** @type {any} */ ({ unread: 0, unacknowledged: 0, all: 0 });

  let state = /** @type {import('../types/index.js').State} */ ('connecting');
  /** @type {import('../types/index.js').Transport | undefined} */
  let transport;
  /**
   * What the tabs of this user share, and where their acknowledgements wait; nothing where the user is not known.
   *
   * @type {string | undefined}
   */
  let name;
  /** In the tab that leads. @type {ReturnType<typeof keepLink> | undefined} */
  let link;
  /** What follows a pause. @type {(() => void) | undefined} */
  let go;
  /** Who the server says the user is. @type {string | undefined} */
  let greeted;
  /** What is acknowledged and the server does not have yet. */
  let waiting = /** @type {string[]} */ ([]);
  /** Whether all are to be acknowledged. @type {unknown} */
  let everything;
  /** @type {boolean | undefined} */
  let sending;
  /** How often the counts have changed. */
  let version = 0;
  /** When the server's counts were taken; 0 before they were. */
  let takenAt = 0;
  let shown = JSON.stringify(counts);

  /** @param {string} type @param {unknown} [detail] */
  const emit = (type, detail = {}) => {
    changed();
    self.dispatchEvent(new CustomEvent(type, { detail }));
  };

  /** Tells the other tabs how things are. @param {boolean} [answer] */
  const tell = (answer) => link && post('is', answer, takenAt && counts, state, transport, cursor);

  /**
   * @param {import('../types/index.js').State} next
   * @param {import('../types/index.js').Transport} [by]
   * @param {string} [reason]
   */
  const setState = (next, by, reason) => {
    if (state === next && transport === by) return;
    state = next;
    transport = by;
    tell();
    emit('state', { state, transport, reason });
  };

  /**
   * Waits before the next try. After `n` failures: 1 s, 2 s, 4 s… up to 30 s, each shortened by up to half, so that a
   * server that is back is not called by all at once.
   *
   * @param {number} failures
   * @returns {Promise<any>}
   */
  const wait = (failures) => new Promise((/** @type {any} */ resolve) => {
    go = resolve;
    pause(Math.min(LONGEST_PAUSE, PAUSE * 2 ** failures) * (1 - setting.random() / 2), resolve);
    setState('waiting');
  });

  /** Ends such a pause. */
  const skip = () => {
    pause();
    go?.();
  };

  /** Something changed the counts, perhaps. */
  const changed = () => {
    for (const name in counts) counts[name] = Math.max(0, counts[name]);
    const json = JSON.stringify(counts);
    if (json === shown) return;
    shown = json;
    version += 1;
    if (now() - takenAt < SETTLE) recount();
    tell();
    emit('counts', { ...counts });
  };

  /** Called when counts are asked for; what it returns takes them, if nothing has changed since. */
  const taking = (since = version) => (/** @type {any} */ answer) => {
    if (since !== version) return recount();
    takenAt = LONG_AGO;
    Object.assign(counts, answer?.counts ?? answer);
    changed();
    takenAt = now();
  };

  /**
   * After a while, sends what waits, or takes the counts from the server: until it has all acknowledgements, its counts
   * are not ours. Its answer to the last one brings them.
   */
  const recount = (millis = SETTLE) => link && counting(millis, () => {
    recount(OFTEN);
    if (queue().length) send();
    else http.data('/counts').then(taking(), () => recount(RETRY));
  });

  const [enter, arrive, mark, withdraw] = ledgerOf(counts, recount);

  /**
   * What waits, with that of other tabs and of pages before this one.
   *
   * @param {string[]} [gone] the server has these, or will never take them
   * @param {string[]} [more]
   */
  const queue = (gone = [], more = []) => {
    waiting = [...new Set([...waiting, ...texts(name && store(name)), ...more])]
      .filter((id) => !gone.includes(id)).slice(-WAITING);
    if (name) store(name, waiting);
    return waiting;
  };

  /** These need not be sent any more, by any tab. @param {string[]} ids */
  const sent = (ids) => {
    queue(ids);
    post('sent', ids);
  };

  /** The leader sends what waits, one call at a time. */
  const send = async () => {
    if (!link || sending) return;
    sending = true;
    let ids = queue();
    try {
      for (; ids.length || everything; ids = waiting) {
        const take = taking();
        const body = everything ? { all: true } : { ids: (ids = ids.slice(0, CHUNK)) };
        everything = false; // Now or never: later, it would mean messages that nobody has seen.
        const answer = await http.data('/ack', saying(body));
        sent(ids);
        if (!waiting.length) take(answer);
      }
    } catch (error) {
      // What the server will never take must not keep the rest waiting.
      if (isFinal(/** @type {any} */ (error)?.status)) sent(ids);
      recount(RETRY);
    }
    sending = everything = false;
  };

  /** These are acknowledged; all, if none are named: then it returns those that were not. @param {string[]} [ids] */
  const acknowledged = (ids) => {
    const news = mark(ids);
    if (!ids) counts.unread = counts.unacknowledged = 0;
    if (!ids || news.length) emit('acknowledged', ids ? { ids: news } : { ids: news, all: true });
    return ids ?? news;
  };

  /**
   * By the user, here or in another tab. What this tab knows is sent, whatever becomes of the rest.
   *
   * @param {string[]} [ids]
   */
  const acknowledge = (ids) => {
    queue([], acknowledged(ids));
    everything ||= !ids && link;
    send();
  };

  /** By the user, here. @param {string[]} [ids] */
  const ack = (ids) => {
    post('ack', ids);
    acknowledge(ids);
  };

  /**
   * An event, from the link or from the leader. What is malformed is ignored: the next one may not be.
   *
   * @param {any} [event]
   * @param {any} [id]
   * @param {any} [data]
   * @returns {any} the cursor behind it
   */
  const receive = (event, id, data) => {
    const { metadata, id: about, ids, user: owner } = data ?? {};
    const entry = /** @type {any} */ (event === 'notification' && isText(metadata?.id) && arrive(data));
    // A replay of what is acknowledged: the server has not heard of it, and perhaps another tab has not either.
    const again = entry?.done;
    if (again) (link ? ack : acknowledge)([metadata.id]);
    if (link) post('event', event, id, data);
    if (entry && !again) emit(event, data);
    if (event === 'withdrawn' && isText(about) && withdraw(about)) emit(event, data);
    if (event === 'acknowledged') acknowledged(texts(ids));
    if (event === 'gap' || event === 'audiences') {
      recount(0);
      emit(event, data);
    }
    if (event === 'hello') {
      // Another user's token came into this page: what follows is not for who is looking at it.
      if (owner && owner !== (greeted ??= owner)) return end('user');
      send();
    }
    if (isText(id) && /^[!-~]{1,2000}$/.test(id)) cursor = id; // Another one would fail every request after it.
    return cursor;
  };

  /** The counts and the cursor that belong together: the stream tells all that comes after. */
  const prepare = async () => {
    if (!takenAt || !cursor) {
      await send();
      const take = taking();
      const page = await self.list({ limit: 1 });
      if (!link) return;
      take(page);
      if (!cursor) { // Else it is the page's own, and events follow that are counted already.
        takenAt = LONG_AGO;
        cursor = page.cursor;
      }
    }
    return cursor;
  };

  const [post, join, leave, look] = tabsOf(
    setting,
    // This tab leads.
    () => {
      link = keepLink(setting, http, store, wait, prepare, receive, setState, end);
      mark(queue());
      recount(takenAt ? SETTLE : OFTEN);
    },
    // It does not, or not any more.
    () => {
      link?.stop();
      link = undefined;
      counting();
      skip();
    },
    // What other tabs say.
    {
      ask: () => tell(true),
      ack: acknowledge,
      sent: queue,
      event: (...event) => link || receive(...event),
      is: (answer, told, next, by, at) => {
        if (link || !told) return;
        taking()(told);
        setState(next, by);
        if (answer) {
          // All that the leader told before has been heard, unless this tab was asleep.
          if (cursor && cursor !== at) emit('gap', { reason: 'missed' });
          cursor = at;
        }
      },
    },
  );

  /** @param {string} [reason] */
  const end = (reason) => {
    leave();
    listening.abort();
    setState('closed', undefined, reason);
  };

  const wake = () => {
    if (document?.hidden) return;
    if (link) link.wake();
    else look();
    skip();
    send();
  };

  /**
   * @param {Pick<EventTarget, 'addEventListener'> | undefined} target
   * @param {string} type
   * @param {(event: any) => void} run
   */
  const on = (target, type, run) => target?.addEventListener(type, run, { signal: listening.signal });
  on(window, 'online', wake);
  on(document, 'visibilitychange', wake);
  // A page that is kept for the way back must not keep the others from the link.
  on(window, 'pagehide', leave);

  const self = new (class extends EventTarget {
    get state() {
      return state;
    }

    get counts() {
      return { ...counts };
    }

    get cursor() {
      return cursor;
    }

    /** @param {string | readonly string[]} ids */
    ack(ids) {
      ack(texts(ids));
    }

    ackAll() {
      ack();
    }

    /** @param {import('../types/index.js').ListOptions} [options] */
    async list(options) {
      const page = await http.data(query({ filter: 'all', limit: 50, ...options }));
      for (const listed of page.notifications) {
        const entry = enter(listed.message);
        // The server does not know yet what waits to be sent.
        if (entry.done ||= listed.acknowledged) listed.acknowledged ??= new Date(now()).toISOString();
      }
      return page;
    }

    close() {
      end();
    }
  })();

  (async () => {
    // The tabs of a user share, so the user must be known first. The token says who it is, if it is a JWT.
    for (let failures = 1; user == null; failures += 1) {
      user = await http.get().then((token) => claims(token)?.sub ?? '', () => (state === 'closed' ? '' : wait(failures)));
    }
    name = user && `${http.base} ${user}`;
    if (state !== 'closed') join(share && name);
    on(window, 'pageshow', ({ persisted }) => persisted && join());
  })();

  return self;
};
