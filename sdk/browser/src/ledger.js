/**
 * Which messages a tab knows, and what each event makes of the counts.
 *
 * It remembers a bounded number of messages. Where that is not enough to count, it says that it is in doubt.
 */

import { REMEMBERED } from './limits.js';

/**
 * @typedef {object} Entry
 * @property {number} sent the attempts of its newest sending that came; -1 if none has, and endless if it was withdrawn
 * @property {boolean} [ack_required]
 * @property {boolean} [done] whether it is open no more: acknowledged or withdrawn
 */

/**
 * @param {import('../types/index.js').Counts} counts
 * @param {() => void} doubt the counts must be taken from the server
 */
export const ledgerOf = (counts, doubt) => {
  /** @type {Map<string, Entry>} */
  const entries = new Map();

  /**
   * The entry of a message. One that is known by its id only is a reason for doubt, and no longer open.
   *
   * @param {string} id
   * @param {{ ack_required?: boolean }} [retry]
   */
  const put = (id, retry) => {
    let entry = entries.get(id);
    if (!entry) {
      if (!retry) doubt();
      entry = { ...retry, sent: -1, done: !retry };
    }
    entries.delete(id); // So that the one that was used least recently is forgotten first.
    entries.set(id, entry);
    const [oldest] = entries.keys();
    if (entries.size > REMEMBERED) entries.delete(/** @type {string} */ (oldest));
    return entry;
  };

  /** @param {Entry} entry @param {number} open @param {number} all */
  const count = ({ ack_required, done }, open, all) => {
    counts.all += all;
    if (!done) {
      counts.unread += open;
      if (ack_required) counts.unacknowledged += open;
    }
  };

  /** What is known of a message from now on. @param {import('../types/index.js').Message} message */
  const enter = ({ metadata: { id }, routing }) => put(id, routing?.retry || {});

  /**
   * A message came. Returns its entry, unless this sending of it is known.
   *
   * @param {import('../types/index.js').Message} message
   */
  const arrive = (message) => {
    const known = entries.has(message.metadata.id);
    const entry = enter(message);
    const attempts = message.routing?.retry?.attempts || 0;
    if (!(attempts > entry.sent)) return;
    if (entry.sent < 0) {
      if (!attempts) count(entry, 1, 1);
      // A replay of something unknown was counted long ago, most likely; what is known before it comes, perhaps.
      if (known === !attempts) doubt();
    }
    entry.sent = attempts;
    return entry;
  };

  /** These are acknowledged, or all that are known. Returns those that were not yet. @param {string[]} [ids] */
  const mark = (ids = [...entries.keys()]) => ids.filter((id) => {
    const before = entries.get(id)?.done;
    const entry = put(id);
    count(entry, -1, 0);
    entry.done = true;
    return !before;
  });

  /** Whether it was there still. @param {string} id */
  const withdraw = (id) => {
    const entry = put(id);
    const there = entry.sent < Infinity;
    if (there) count(entry, -1, -1);
    entry.sent = Infinity;
    entry.done = true;
    return there;
  };

  return /** @type {const} */ ([enter, arrive, mark, withdraw]);
};
