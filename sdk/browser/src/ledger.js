/**
 * Which messages a tab knows, and what each event makes of the counts.
 *
 * It remembers a bounded number of messages. Where that is not enough to count, it says that it is in doubt.
 */

const LIMIT = 1_000;

/**
 * @typedef {object} Entry
 * @property {number} sent the attempts of its newest sending that came; -1 if none has
 * @property {boolean} must whether it must be acknowledged
 * @property {boolean} [done] whether it has been
 * @property {boolean} [gone] whether it was withdrawn
 */

export function ledgerOf() {
  /** @type {Map<string, Entry>} */
  const entries = new Map();
  const self = {
    counts: { unread: 0, unacknowledged: 0, all: 0 },
    /** Whether the counts must be taken from the server. */
    doubt: false,

    /**
     * A message came. Returns its entry, unless this sending of it is known.
     *
     * @param {import('../types/index.js').Message} message
     */
    arrive(message) {
      const { id } = message.metadata;
      const known = entries.has(id);
      const entry = self.enter(message);
      const attempts = Number(message.routing?.retry?.attempts) || 0;
      if (entry.gone || attempts <= entry.sent) return;
      if (entry.sent < 0) {
        if (!attempts) count(entry, 1, 1);
        // A replay of something unknown was counted long ago, most likely. What was acknowledged before it came was not.
        if (attempts ? !known : entry.done) self.doubt = true;
      }
      entry.sent = attempts;
      return entry;
    },

    /** What is known of a message from now on. @param {import('../types/index.js').Message} message */
    enter: ({ metadata: { id }, routing }) => put(id, routing?.retry?.ack_required === true),

    /** Which of these were not acknowledged yet; now they are. @param {string[]} ids */
    acknowledge: (ids) => ids.filter((id) => {
      const entry = entries.get(id);
      if (entry?.done) return false;
      if (entry) count(entry, -1, 0);
      else self.doubt = true;
      put(id).done = true;
      return true;
    }),

    /** All are acknowledged; these are the known ones that were not. */
    acknowledgeAll() {
      const ids = self.acknowledge([...entries.keys()]);
      self.counts.unread = self.counts.unacknowledged = 0;
      return ids;
    },

    /** Whether it was there still. @param {string} id */
    withdraw(id) {
      const entry = entries.get(id);
      if (entry?.gone) return false;
      if (!entry) self.doubt = true;
      count(entry ?? { sent: 0, must: false, done: true }, -1, -1);
      put(id).gone = true;
      return true;
    },
  };

  /** @param {string} id @param {boolean} [must] */
  const put = (id, must = false) => {
    const entry = entries.get(id) ?? { sent: -1, must };
    entries.delete(id); // So that the one that was used least recently is forgotten first.
    entries.set(id, entry);
    for (const oldest of entries.keys()) if (entries.size > LIMIT) entries.delete(oldest);
    return entry;
  };

  /** @param {Entry} entry @param {number} open @param {number} all */
  const count = ({ must, done, gone }, open, all) => {
    const { counts } = self;
    /** @param {keyof typeof counts} name @param {number} by */
    const add = (name, by) => (counts[name] = Math.max(0, counts[name] + by));
    add('all', all);
    if (!done && !gone) {
      add('unread', open);
      if (must) add('unacknowledged', open);
    }
  };

  return self;
}
