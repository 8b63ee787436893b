/**
 * Which tab has the link. The one that holds a Web Lock leads, and tells the others over a BroadcastChannel.
 *
 * The browser frees the lock of a tab that closes, and gives it to the next. A tab that was suspended keeps it, and
 * says nothing: a tab that the user looks at then takes it away.
 */

/** How often a tab in sight asks whether the leader is there, and how long it waits for the answer. */
const ASK = 15_000;
const ANSWER = 5_000;

/**
 * @typedef {object} Role
 * @property {() => void} lead
 * @property {() => void} follow the lead was lost
 * @property {() => void} asked a tab wants to know how things are
 * @property {(message: any) => void} hear
 */

/**
 * @param {string | undefined} name what the tabs share; without it, nothing
 * @param {import('../types/index.js').Platform} platform
 * @param {Role} role
 */
export function tabsOf(name, { locks, Channel, after, document }, { lead, follow, asked, hear }) {
  /** @type {import('../types/index.js').Channel | undefined} */
  let channel;
  let queued = new AbortController();
  let [release, cancel] = [() => {}, () => {}];
  let [leading, heard] = [false, false];

  const begin = () => {
    cancel();
    leading = true;
    lead();
  };

  const disconnect = () => {
    channel?.close();
    channel = undefined;
  };

  /** Waits for the lock, or takes it. @param {boolean} [steal] */
  const request = async (steal) => {
    queued.abort();
    const { signal } = (queued = new AbortController());
    let held = false;
    await locks?.request(name ?? '', steal ? { steal } : { signal }, () => {
      if (signal.aborted) return;
      held = true;
      begin();
      return /** @type {Promise<void>} */ (new Promise((resolve) => (release = resolve)));
    }).catch((error) => {
      // Not waiting any more, or stolen. Anything else means that there are no locks here: then each for itself.
      if (error.name === 'AbortError') return;
      disconnect();
      begin();
    });
    if (!held || signal.aborted) return;
    leading = false;
    follow();
    request();
    self.look();
  };

  const self = {
    join() {
      if (!name || !locks || !Channel) return begin();
      channel = new Channel(name);
      channel.onmessage = ({ data }) => {
        if (data.ask) {
          if (leading) asked();
        } else {
          heard = true;
          hear(data);
        }
      };
      request();
      self.look();
    },

    leave() {
      leading = false;
      cancel();
      disconnect();
      queued.abort();
      release();
    },

    /** @param {object} message */
    post: (message) => channel?.postMessage(message),

    /** Asks whether somebody leads. Called by itself every now and then, and when the page comes into sight. */
    look() {
      if (!channel || leading) return;
      cancel();
      self.post({ ask: true });
      heard = false;
      cancel = after(ANSWER, () => {
        if (!heard && !document?.hidden) request(true);
        cancel = after(ASK, self.look);
      });
    },
  };
  return self;
}
