/** Web Push: messages for users whose page is closed. */

import type { Notifications, Options } from './index.js';

export interface PushOptions extends Pick<Options, 'url' | 'token' | 'getToken' | 'platform'> {
  /** Where the page's server serves `src/worker.js`; `relais-worker.js` beside the page, if absent. */
  worker?: string;
  /** The scope of the service worker; the folder where it lies, if absent. */
  scope?: string;
  /** The title of messages whose payload has none. */
  title?: string;
  /** An image for all messages. */
  icon?: string;
  /** A connected client: what the user acknowledges, and what is withdrawn, is not shown any longer. */
  client?: Notifications;
}

export interface Pushing {
  /** The subscription's id at the server. */
  id: string;
  registration: ServiceWorkerRegistration;
}

/**
 * Asks the user for the permission if it must, and subscribes this browser. Call it from a click for the first time, and on each
 * page once the permission is given: the same again changes nothing, and what the browser has changed is told to the server.
 *
 * Rejects with an `Error` that has the `reason` `unsupported` or `denied`, or the `status` where the server refused.
 */
export function subscribePush(options: PushOptions): Promise<Pushing>;

/** Ends it, at the server and in the browser, such as when the user signs out. Whether there was a subscription. */
export function unsubscribePush(options: PushOptions): Promise<boolean>;
