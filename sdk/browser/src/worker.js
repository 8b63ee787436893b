/**
 * The service worker: shows what is pushed, and a click opens the page and acknowledges.
 *
 * A classic script, so that it runs alone and within another service worker (`importScripts`). It knows the server by the address
 * that it was registered with (`?relais=`), and has no token: each push brings one that is good for its message only.
 */

(() => {
  const worker = /** @type {any} */ (globalThis);
  const { registration, clients } = worker;
  const given = new URLSearchParams(worker.location.search);
  const UNTITLED = /^fr\b/i.test(navigator.language) ? 'Nouvelle notification' : 'New notification';

  /** @param {unknown} value */
  const asText = (value) => (typeof value === 'string' ? value : '');

  /** The address, if it is one that a message may lead to. @param {unknown} url */
  function safe(url) {
    try {
      const { protocol, href } = new URL(asText(url) || 'none:', registration.scope);
      return /^https?:$/.test(protocol) ? href : '';
    } catch {
      return '';
    }
  }

  /** @param {string} tag */
  async function close(tag) {
    for (const shown of await registration.getNotifications({ tag })) shown.close();
  }

  /** Shows a message, or takes it away. @param {any} said */
  async function pushed(said) {
    const { message, ack, withdrawn } = said ?? {};
    if (withdrawn) return close(withdrawn);
    const id = message?.metadata?.id ?? said?.id; // A message that is too large for a push is only named.
    if (!asText(id)) return undefined; // Somebody else's.
    const { title, body, url } = message?.payload ?? {};
    return registration.showNotification(asText(title) || given.get('title') || UNTITLED, {
      body: asText(body),
      tag: id, // What is sent again takes the place of what is shown.
      data: { relais: { ack, url: safe(url) } },
      ...(given.get('icon') && { icon: given.get('icon') }),
      ...(message && { timestamp: Date.parse(message.metadata.timestamp) }),
    });
  }

  /** Acknowledges by the token. What the server does not take stays unread. @param {string} token */
  async function acknowledge(token) {
    const body = JSON.stringify({ token });
    const headers = { 'Content-Type': 'application/json' };
    await fetch(`${given.get('relais')}/push/ack`, { method: 'POST', body, headers, keepalive: true }).catch(() => {});
  }

  /** Shows the page of a message: one that is open, or a new one. @param {string} url */
  async function open(url) {
    const windows = await clients.matchAll({ type: 'window', includeUncontrolled: true });
    const page = windows.find((/** @type {any} */ one) => !url || one.url === url);
    return page ? page.focus() : clients.openWindow(url || registration.scope);
  }

  /** @param {any} notification */
  async function clicked(notification) {
    const { ack, url } = notification.data?.relais ?? {};
    if (!ack) return; // Somebody else's.
    notification.close();
    await Promise.all([open(url), acknowledge(ack)]);
  }

  worker.addEventListener('push', (/** @type {any} */ event) => {
    let said;
    try {
      said = event.data?.json();
    } catch {
      return; // Somebody else's.
    }
    event.waitUntil(pushed(said));
  });
  worker.addEventListener('notificationclick', (/** @type {any} */ event) => event.waitUntil(clicked(event.notification)));
})();
