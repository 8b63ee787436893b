/**
 * Real-time notifications of Relais in a web page: what the events mean, the counts, acknowledgements, and the tabs'
 * work together. The bell that shows them is in `element.js`.
 *
 * One tab leads: it has the link, sends acknowledgements, and says what the counts are. The others get each event from
 * it, and could go on from the same cursor at any time. How a link is kept is in `link.js`.
 *
 * State is in the variables of one function, and not in fields: a page's build can shorten their names.
 */

import { httpOf } from './http.js';
import { ledgerOf } from './ledger.js';
import { keepLink } from './link.js';
import { backoffs, isFinal, isText, platformOf, storageOf } from './platform.js';
import { tabsOf } from './tabs.js';
import { claims, tokensOf } from './tokens.js';

/** Counts from the server may include what is still on its way here: an event within this time puts them in doubt. */
const SETTLE = 2_000;
/** Messages expire without an event, so the counts are taken again every now and then. */
const OFTEN = 3_600_000;
const RETRY = 10_000;
/** How many acknowledgements go in one call, and how many wait at most. The server asks again for lost ones. */
const CHUNK = 200;
const WAITING = 1_000;

/**
 * @param {import('../types/index.js').Options} options
 * @returns {import('../types/index.js').Notifications}
 */
export function connect({
  url, token, getToken, transports = ['sse', 'websocket', 'poll'], share = true, user, storage, cursor,
  patience = 10_000, platform: instead,
}) {
  const platform = platformOf(instead);
  const { after, now, window, document } = platform;
  const store = storageOf(storage);
  const tokens = tokensOf(token, getToken, now);
  const http = httpOf(url, tokens, platform);
  const pause = backoffs(platform);
  const ledger = ledgerOf();
  const listening = new AbortController();

  let state = /** @type {import('../types/index.js').State} */ ('connecting');
  /** @type {import('../types/index.js').Transport | undefined} */
  let transport;
  /** What the tabs of this user share, and where their acknowledgements wait; nothing where the user is not known. */
  let name = '';
  /** @type {ReturnType<typeof tabsOf> | undefined} */
  let tabs;
  /** In the tab that leads. @type {ReturnType<typeof keepLink> | undefined} */
  let link;
  /** Who the server says the user is. @type {string | undefined} */
  let greeted;
  /** What is acknowledged and the server does not have yet. */
  let waiting = /** @type {string[]} */ ([]);
  /** Whether all are to be acknowledged. */
  let everything = false;
  let sending = false;
  let [unretry, unrecount] = [() => {}, () => {}];
  /** Whether a recount is due, and whether there has been a first one. */
  let [due, counted] = [false, false];
  /** How often the counts have changed. An answer that was asked for before the last change is not taken. */
  let version = 0;
  let takenAt = 0;
  let shown = JSON.stringify(ledger.counts);

  /** @param {string} type @param {unknown} [detail] */
  const emit = (type, detail = {}) => self.dispatchEvent(new CustomEvent(type, { detail }));

  /** Tells the other tabs how things are. @param {boolean} [answer] */
  const tell = (answer) => {
    if (link) tabs?.post({ is: counted && { state, transport, counts: ledger.counts, cursor }, answer });
  };

  /**
   * @param {import('../types/index.js').State} next
   * @param {import('../types/index.js').Transport} [by]
   * @param {string} [reason]
   */
  const setState = (next, by, reason) => {
    if (state === 'closed' || (state === next && transport === by)) return;
    [state, transport] = [next, by];
    tell();
    emit('state', { state, transport, reason });
    if (state === 'open') send();
  };

  /** Something changed the counts, perhaps. */
  const changed = () => {
    const json = JSON.stringify(ledger.counts);
    if (json !== shown) {
      shown = json;
      version += 1;
      if (now() - takenAt < SETTLE) ledger.doubt = true;
      tell();
      emit('counts', self.counts);
    }
    if (ledger.doubt) recount(SETTLE);
    ledger.doubt = false;
  };

  /**
   * Takes the counts of an answer, if nothing has changed them since it was asked for.
   *
   * @param {any} counts
   * @param {number} since
   */
  const take = ({ unread, unacknowledged, all }, since) => {
    if (since !== version) return recount(SETTLE);
    takenAt = 0;
    ledger.counts = { unread, unacknowledged, all };
    changed();
    takenAt = now();
  };

  /** Takes the counts from the server, after a while. @param {number} millis */
  const recount = (millis) => {
    if (!link) return;
    unrecount();
    due = true;
    unrecount = after(millis, async () => {
      due = false;
      const since = version;
      let next = OFTEN;
      try {
        // Until the server has all acknowledgements, its counts are not ours. Its answer to the last one brings them.
        if (waitingAcks().length) await send();
        else take(await http.data('/counts'), since);
      } catch {
        next = RETRY;
      }
      if (!due) recount(next);
    });
  };

  /** With those of other tabs, and of pages before this one. */
  const waitingAcks = () => {
    const stored = name && store(name);
    return (waiting = [...new Set([...waiting, ...(Array.isArray(stored) ? stored.filter(isText) : [])])]);
  };

  /** @param {string[]} ids */
  const keep = (ids) => {
    waiting = ids.slice(-WAITING);
    if (name) store(name, waiting);
  };

  /** These need not be sent any more, by any tab. @param {string[]} ids */
  const sent = (ids) => {
    keep(waitingAcks().filter((id) => !ids.includes(id)));
    if (link) tabs?.post({ sent: ids });
  };

  /** The leader sends what waits; one call at a time. */
  const send = async () => {
    if (!link || sending) return;
    sending = true;
    unretry();
    let ids = /** @type {string[]} */ ([]);
    try {
      while ((ids = waitingAcks()).length || everything) {
        const [all, since] = [everything, version];
        everything = false; // Now or never: later, it would mean messages that nobody has seen.
        if (!all) ids = ids.slice(0, CHUNK);
        const { counts } = await http.data('/ack', all ? { all } : { ids });
        sent(ids);
        if (!waiting.length) take(counts, since);
      }
    } catch (error) {
      // What the server will never take must not keep the rest waiting.
      if (isFinal(/** @type {any} */ (error).status)) sent(ids);
      unretry = after(RETRY, send);
    }
    sending = false;
  };

  /** @param {string[]} ids */
  const acknowledged = (ids) => {
    const news = ledger.acknowledge(ids);
    changed();
    if (news.length) emit('acknowledged', { ids: news });
  };

  /** What this tab knows is sent, whatever becomes of the rest. */
  const acknowledgedAll = () => {
    const ids = ledger.acknowledgeAll();
    keep([...waitingAcks(), ...ids]);
    everything = !!link;
    changed();
    emit('acknowledged', { ids, all: true });
    send();
  };

  /** Acknowledged here, or in another tab. @param {string[]} ids */
  const acknowledge = (ids) => {
    keep([...waitingAcks(), ...ids]);
    acknowledged(ids);
    send();
  };

  /**
   * An event, from the link or from the leader. What is malformed is ignored: the next one may not be.
   *
   * @param {string} [event]
   * @param {string} [id]
   * @param {any} [data]
   */
  const receive = (event, id, data) => {
    const entry = event === 'notification' && isText(data?.metadata?.id) && ledger.arrive(data);
    // A replay of what is acknowledged: the server has not heard of it, and perhaps another tab has not either.
    const again = entry && entry.done && [data.metadata.id];
    if (link) {
      if (again) tabs?.post({ ack: again });
      tabs?.post({ event, id, data });
    }
    if (entry) {
      changed();
      if (again) acknowledge(again);
      else emit('notification', data);
    } else if (event === 'withdrawn' && isText(data?.id)) {
      if (ledger.withdraw(data.id)) {
        changed();
        emit(event, data);
      }
    } else if (event === 'acknowledged' && Array.isArray(data?.ids)) {
      acknowledged(data.ids.filter(isText));
    } else if (event === 'gap' || event === 'audiences') {
      recount(0);
      emit(event, data);
    } else if (event === 'hello' && isText(data?.user)) {
      // Another user's token came into this page: what follows is not for who is looking at it.
      if (data.user !== (greeted ??= data.user)) return end('user');
    }
    cursor = valid(id) ?? cursor;
  };

  /** What another tab says. @param {any} message */
  const hear = ({ event, id, data, ack, all, sent: gone, is, answer }) => {
    if (gone) sent(gone);
    if (ack) acknowledge(ack);
    if (all) acknowledgedAll();
    if (link) return;
    if (event !== undefined) receive(event, id, data);
    if (is) {
      counted = true;
      ledger.counts = is.counts;
      changed();
      setState(is.state, is.transport);
      // All that the leader told before has been heard, unless this tab was asleep.
      const missed = answer && cursor && cursor !== is.cursor;
      if (answer) cursor = is.cursor;
      if (missed) emit('gap', { reason: 'missed' });
    }
  };

  /** The counts and the cursor that belong together: the stream tells all that comes after. */
  const prepare = async () => {
    if (counted && cursor) return;
    await send();
    const since = version;
    const { counts, cursor: from } = await http.data('?filter=all&limit=1');
    if (!link) return;
    take(counts, since);
    counted = true;
    if (cursor) return; // The page's own. Events follow that are counted already.
    cursor = valid(from);
    takenAt = 0;
  };

  const lead = () => {
    ledger.acknowledge(waitingAcks());
    link = keepLink({
      transports: transports.filter((one) => one !== 'websocket' || platform.WebSocket),
      http, tokens, platform, pause, patience, prepare, receive, setState, end,
      memory: (worked) => store(http.base, worked),
      cursor: () => cursor,
    });
    recount(counted ? SETTLE : OFTEN);
  };

  const follow = () => {
    link?.stop();
    link = undefined;
    unrecount();
    unretry();
  };

  const leave = () => {
    tabs?.leave();
    follow();
  };

  /** @param {string} [reason] */
  const end = (reason) => {
    leave();
    listening.abort();
    setState('closed', undefined, reason);
    pause.skip();
  };

  const wake = () => {
    if (document?.hidden) return;
    link?.wake();
    pause.skip();
    tabs?.look();
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
  on(window, 'pageshow', ({ persisted }) => persisted && tabs?.join());

  (async () => {
    // The tabs of a user share, so the user must be known first. The token says who it is, if it is a JWT.
    for (let failures = 1; user === undefined && state !== 'closed'; failures += 1) {
      try {
        user = String(claims(await tokens.get()).sub ?? '');
      } catch {
        setState('waiting');
        await pause.wait(failures);
      }
    }
    if (state === 'closed') return;
    if (user) name = `${http.base} ${user}`;
    tabs = tabsOf(share ? name : '', platform, { lead, follow, asked: () => tell(true), hear });
    tabs.join();
  })();

  const self = new (class extends EventTarget {
    get state() {
      return state;
    }

    get counts() {
      return { ...ledger.counts };
    }

    get cursor() {
      return cursor;
    }

    /** @param {string | readonly string[]} ids */
    ack(ids) {
      const ack = [ids].flat().filter(isText);
      tabs?.post({ ack });
      acknowledge(ack);
    }

    ackAll() {
      tabs?.post({ all: true });
      acknowledgedAll();
    }

    /** @param {import('../types/index.js').ListOptions} [options] */
    async list({ filter = 'all', limit = 50, before = '' } = {}) {
      const query = new URLSearchParams({ filter, limit: String(limit), ...(before && { before }) });
      const page = await http.data(`?${query}`);
      for (const listed of page.notifications) {
        const entry = ledger.enter(listed.message);
        if (listed.acknowledged) entry.done = true;
        // The server does not know yet what waits to be sent.
        else if (entry.done) listed.acknowledged = new Date(now()).toISOString();
      }
      return page;
    }

    close() {
      end();
    }
  })();
  return self;
}

/** A cursor that can be sent: another one would fail every request after it. @param {unknown} cursor */
const valid = (cursor) => (isText(cursor) && /^[!-~]{1,2000}$/.test(cursor) ? cursor : undefined);
