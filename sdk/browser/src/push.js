/** Web Push: messages for users whose page is closed. What they are shown by is in `worker.js`. */

import { httpOf, saying } from './http.js';
import { settingOf } from './platform.js';

/** @typedef {import('../types/push.js').PushOptions} PushOptions */

/** @param {string} reason @param {string} text */
const failure = (reason, text) => Object.assign(new Error(text), { reason });

/** @param {PushOptions} options */
const httpFor = (options) => httpOf(settingOf(options));

/** Where the worker lies, with all that it must know: it has no other way to hear of it. @param {PushOptions} options */
function workerUrl({ worker = 'relais-worker.js', title, icon }, /** @type {string} */ base) {
  const address = new URL(worker, document.baseURI);
  for (const [name, value] of Object.entries({ relais: base, title, icon })) if (value) address.searchParams.set(name, value);
  return address.href;
}

/** @param {ArrayBuffer | null} key */
const text = (key) => btoa(String.fromCharCode(...new Uint8Array(key ?? new ArrayBuffer(0))))
  .replace(/\+/g, '-').replace(/\//g, '_').replace(/=+$/, '');

/** Closes what is shown of these messages. @param {ServiceWorkerRegistration} registration @param {string[]} ids */
async function close(registration, ids) {
  for (const tag of ids) for (const shown of await registration.getNotifications({ tag })) shown.close();
}

/** @param {PushOptions} options */
export async function subscribePush(options) {
  if (!globalThis.PushManager || !navigator.serviceWorker) throw failure('unsupported', 'this browser has no Web Push');
  // First of all, while the click that led here counts.
  if (await Notification.requestPermission() !== 'granted') throw failure('denied', 'the user does not want notifications');
  const http = httpFor(options);
  const { key } = await http.data('/push/key');
  const { scope, client } = options;
  await navigator.serviceWorker.register(workerUrl(options, http.base), scope ? { scope } : {});
  const registration = await navigator.serviceWorker.ready;
  const { pushManager } = registration;
  let subscription = await pushManager.getSubscription();
  if (subscription && text(subscription.options.applicationServerKey) !== key) {
    await subscription.unsubscribe(); // The server has another key now, and could push nothing there.
    subscription = null;
  }
  subscription ??= await pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: key });
  const { id } = await http.data('/push/subscriptions', saying(subscription));
  // What is read or void is not shown any longer.
  client?.addEventListener('acknowledged', ({ detail }) => void close(registration, detail.ids));
  client?.addEventListener('withdrawn', ({ detail }) => void close(registration, [detail.id]));
  return { id, registration };
}

/** @param {PushOptions} options */
export async function unsubscribePush(options) {
  const registration = await navigator.serviceWorker?.getRegistration(options.scope);
  const subscription = await registration?.pushManager.getSubscription();
  if (!subscription) return false;
  const http = httpFor(options);
  const { subscriptions } = await http.data('/push/subscriptions');
  // The server first: a browser that has forgotten its endpoint can not name it any more.
  for (const { id, endpoint } of subscriptions) {
    if (endpoint === subscription.endpoint) await http.send(`/push/subscriptions/${id}`, { method: 'DELETE' });
  }
  return subscription.unsubscribe();
}
