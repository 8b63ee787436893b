/** The bell: a button with the number of unread messages, and the list of them. */

import type { Message, Notifications, Options } from './index.js';

export interface RelaisBellEventMap extends HTMLElementEventMap {
  /** A message was chosen. `preventDefault()` keeps the browser from going to its address. */
  'relais-select': CustomEvent<Message>;
}

/** `<relais-bell>`. Attributes: `src`, the server; `token`, where there is no `getToken`; `lang`. */
export class RelaisBell extends HTMLElement {
  /** A connected client. Without it, the element connects by itself, to `src`. */
  client: Notifications | undefined;
  /** Gets tokens, where the element connects by itself. */
  getToken: Options['getToken'];
  /** Shows the list. */
  open(): void;
  /** Hides it; the bell gets the focus, unless told not to. */
  close(focus?: boolean): void;
  addEventListener<K extends keyof RelaisBellEventMap>(
    type: K, listener: (this: RelaisBell, event: RelaisBellEventMap[K]) => any,
    options?: boolean | AddEventListenerOptions): void;
  addEventListener(
    type: string, listener: EventListenerOrEventListenerObject, options?: boolean | AddEventListenerOptions): void;
}

declare global {
  interface HTMLElementTagNameMap {
    'relais-bell': RelaisBell;
  }
}
