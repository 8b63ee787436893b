/**
 * Which tab has the link. The one that holds a Web Lock leads, and tells the others over a BroadcastChannel.
 *
 * The browser frees the lock of a tab that closes, and gives it to the next. A tab that was suspended keeps it, and
 * says nothing: a tab that the user looks at then takes it away.
 */

import { ANSWER, ASK } from './limits.js';
import { timerOf } from './platform.js';

/**
 * @param {import('./platform.js').Setting} setting
 * @param {() => void} lead
 * @param {() => void} follow this tab does not lead, or not any more
 * @param {Record<string, (...told: any[]) => void>} hear what follows each kind of message of other tabs; `ask`: a tab
 *   wants to know how things are
 */
export const tabsOf = (setting, lead, follow, hear) => {
  const { locks, Channel, document } = setting;
  const timer = timerOf(setting);
  /** @type {any} */
  let name;
  /** @type {import('../types/index.js').Channel | undefined} */
  let channel;
  /** Ends the waiting for the lock, or frees it. @type {AbortController | undefined} */
  let hold;
  /** Whether anybody has said anything since this tab asked. @type {boolean | undefined} */
  let heard;

  const begin = () => {
    timer();
    lead();
  };

  /** Waits for the lock, or takes it. @param {boolean} [steal] */
  const request = async (steal) => {
    hold?.abort();
    const { signal } = (hold = new AbortController());
    let held;
    try {
      await /** @type {LockManager} */ (locks).request(name, steal ? { steal } : { signal }, () => {
        if (signal.aborted) return;
        held = true;
        begin();
        return new Promise((resolve) => (signal.onabort = resolve));
      });
    } catch {
      // It is not waiting any more, or the lock was stolen. Else there are no locks here: then each for itself.
      if (!(held || signal.aborted)) {
        leave();
        begin();
      }
    }
    if (signal.aborted) return;
    follow();
    look();
    request();
  };

  /** @param {unknown} [shared] what the tabs share; without it, nothing */
  const join = (shared = name) => {
    name = shared;
    if (!name || !Channel) return begin();
    channel = new Channel(name);
    channel.onmessage = ({ data: [kind, ...told] }) => {
      heard ||= kind !== 'ask';
      hear[kind]?.(...told);
    };
    look();
    request();
  };

  const leave = () => {
    timer();
    channel?.close();
    channel = undefined;
    hold?.abort();
    follow();
  };

  /** Tells the other tabs: the kind of message, and what it says. @param {...unknown} told */
  const post = (...told) => channel?.postMessage(told);

  /** Asks whether somebody leads. Called by itself every now and then, and when the page comes into sight. */
  const look = () => {
    if (!channel) return;
    post('ask');
    heard = false;
    timer(ANSWER, () => {
      if (!(heard || document?.hidden)) request(true);
      timer(ASK, look);
    });
  };

  return /** @type {const} */ ([post, join, leave, look]);
};
