/**
 * Web Push, end to end but for the push service of the browser's maker: the real server pushes to one of the test's own, which
 * decrypts with the browser's key as the browser would, and Chromium's own protocol hands that to the service worker.
 */

import assert from 'node:assert/strict';
import { createDecipheriv, createECDH, hkdfSync, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { after, describe, it } from 'node:test';
import { jwt, Relais } from './relais.js';
import { browser, stop } from './support.js';

after(stop);

/** The page: nothing is connected, as if it were closed, until a test asks for it. */
const SCRIPT = `
import { connect } from '/src/index.js';
import { subscribePush, unsubscribePush } from '/src/push.js';
const { url, token } = Object.fromEntries(new URLSearchParams(location.search));
const options = { url, token, worker: '/relais-worker.js', title: 'Shop' };
Object.assign(window, {
  connect: () => (window.client = connect({ url, token, user: 'ann' })),
  subscribe: (more) => subscribePush({ ...options, ...more }).then(({ id }) => id, ({ reason, message }) => reason ?? message),
  unsubscribe: () => unsubscribePush(options),
  shown: async () => (await (await navigator.serviceWorker.ready).getNotifications())
    .map(({ title, body, tag, data }) => ({ title, body, tag, url: data.relais.url })),
});
`;

/** A service worker of the page's own that has more to do; and the handlers, as no script can make a click. */
const WORKER = `
self.handlers = {};
const add = self.addEventListener.bind(self);
self.addEventListener = (type, run) => add(type, (self.handlers[type] = run));
importScripts('/src/worker.js');
self.opened = [];
clients.openWindow = async (url) => void self.opened.push(url);
WindowClient.prototype.focus = async function () { self.opened.push('focus ' + this.url); };
self.click = async (tag) => {
  const [notification] = await registration.getNotifications({ tag });
  let done;
  self.handlers.notificationclick({ notification, waitUntil: (promise) => (done = promise) });
  await done;
  return self.opened;
};
`;

/** A browser's keys, and the push service that it would have. @param {import('node:test').TestContext} t */
async function pushService(t) {
  const keys = createECDH('prime256v1');
  keys.generateKeys();
  const auth = randomBytes(16);
  /** @type {any[]} */
  const pushes = [];
  const seen = new EventTarget();
  const server = createServer(async (incoming, response) => {
    const parts = [];
    for await (const part of incoming) parts.push(part);
    response.writeHead(201).end();
    pushes.push(decrypt(Buffer.concat(parts)));
    seen.dispatchEvent(new Event('push'));
  });
  /** RFC 8188 and RFC 8291, from the browser's side. @param {Buffer} body */
  const decrypt = (body) => {
    const [salt, theirs, sealed] = [body.subarray(0, 16), body.subarray(21, 86), body.subarray(86)];
    const who = Buffer.concat([Buffer.from('WebPush: info\0'), keys.getPublicKey(), theirs]);
    const input = Buffer.from(hkdfSync('sha256', keys.computeSecret(theirs), auth, who, 32));
    const key = Buffer.from(hkdfSync('sha256', input, salt, 'Content-Encoding: aes128gcm\0', 16));
    const nonce = Buffer.from(hkdfSync('sha256', input, salt, 'Content-Encoding: nonce\0', 12));
    const decipher = createDecipheriv('aes-128-gcm', key, nonce).setAuthTag(sealed.subarray(-16));
    const text = Buffer.concat([decipher.update(sealed.subarray(0, -16)), decipher.final()]);
    return JSON.parse(text.subarray(0, text.lastIndexOf(2)).toString());
  };
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => void server.close().closeAllConnections());
  const { port } = /** @type {import('node:net').AddressInfo} */ (server.address());
  return {
    port,
    subscription: {
      endpoint: `http://127.0.0.1:${port}/push/1`,
      keys: { p256dh: keys.getPublicKey('base64url'), auth: auth.toString('base64url') },
    },
    /** The push with this number, from 1. @param {number} number */
    async push(number) {
      while (pushes.length < number) await once(/** @type {any} */ (seen), 'push');
      return pushes[number - 1];
    },
  };
}

/** @param {import('node:test').TestContext} t @param {boolean} [granted] */
async function site(t, granted = true) {
  const service = await pushService(t);
  const files = createServer(async (request, response) => {
    const { pathname } = new URL(request.url ?? '', 'http://localhost');
    response.setHeader('Content-Security-Policy', "default-src 'none'; script-src 'self' 'unsafe-eval'; connect-src *");
    const script = { '/page.js': SCRIPT, '/relais-worker.js': WORKER }[pathname] ?? (/^\/src\/[a-z]+\.js$/.test(pathname)
      ? await readFile(new URL(`../..${pathname}`, import.meta.url), 'utf8') : undefined);
    if (script) return void response.setHeader('Content-Type', 'text/javascript').end(script);
    response.setHeader('Content-Type', 'text/html')
      .end('<!doctype html><html lang="en"><title>A page</title><script type="module" src="/page.js"></script>');
  });
  files.listen(0, '127.0.0.1');
  await once(files, 'listening');
  t.after(() => void files.close().closeAllConnections());
  const origin = `http://127.0.0.1:${/** @type {import('node:net').AddressInfo} */ (files.address()).port}`;
  const relais = await Relais.start(t, origin, {
    RELAIS_NOTIFICATIONS_PUSH_CONTACT: 'mailto:ops@shop.example', RELAIS_NOTIFICATIONS_PUSH_DELAY: '0s',
    RELAIS_CALLBACKS_ALLOW_HTTP: 'true', RELAIS_CALLBACKS_ALLOW_NETWORKS: '127.0.0.1',
    RELAIS_CALLBACKS_PORTS: String(service.port),
  });
  const context = await (await browser()).newContext();
  t.after(() => context.close());
  if (granted) await context.grantPermissions(['notifications'], { origin });
  // A browser without a maker's account has no push service: this is what it would give.
  await context.addInitScript((/** @type {any} */ subscription) => {
    const key = 'subscribed with';
    const bytes = (/** @type {string} */ text) =>
      Uint8Array.from(atob(text.replace(/-/g, '+').replace(/_/g, '/')), (character) => character.charCodeAt(0)).buffer;
    const of = (/** @type {string | null} */ applicationServerKey) => applicationServerKey && {
      ...subscription,
      options: { applicationServerKey: bytes(applicationServerKey) },
      toJSON: () => ({ ...subscription, expirationTime: null }),
      unsubscribe: async () => (localStorage.removeItem(key), true),
    };
    Object.assign(PushManager.prototype, {
      getSubscription: async () => of(localStorage.getItem(key)),
      subscribe: async (/** @type {any} */ { applicationServerKey, userVisibleOnly }) => {
        if (!userVisibleOnly) throw new Error('browsers ask for that');
        localStorage.setItem(key, applicationServerKey);
        return of(applicationServerKey);
      },
    });
  }, service.subscription);
  const page = await context.newPage();
  await page.goto(`${origin}/?${new URLSearchParams({ url: relais.url, token: jwt('ann') })}`);
  await page.waitForFunction('window.subscribe');
  const protocol = await context.newCDPSession(page);
  /** @type {Promise<string>} */
  const registered = new Promise((resolve) => {
    protocol.on('ServiceWorker.workerRegistrationUpdated', ({ registrations }) => {
      if (registrations[0]) resolve(registrations[0].registrationId);
    });
  });
  await protocol.send('ServiceWorker.enable');
  /** Hands something to the service worker, as the browser does when it has decrypted a push. @param {unknown} data */
  const deliver = async (data) => protocol.send('ServiceWorker.deliverPushMessage', {
    origin, registrationId: await registered, data: typeof data === 'string' ? data : JSON.stringify(data),
  });
  /** What is shown, once there are so many. @param {number} count @returns {Promise<any[]>} */
  const shown = async (count) => {
    await page.waitForFunction(`shown().then(({ length }) => length === ${count})`);
    return page.evaluate('shown()');
  };
  const subscriptions = async () => {
    const headers = { Authorization: `Bearer ${jwt('ann')}` };
    const answer = await (await fetch(`${relais.url}/v1/notifications/push/subscriptions`, { headers })).json();
    return answer.data.subscriptions;
  };
  return { relais, service, context, page, deliver, shown, subscriptions, origin };
}

// They wait more than they compute.
describe('pushes', { concurrency: 4 }, () => {
  const limit = { timeout: 60_000 };

  it('what is pushed is shown, and a click opens the page and acknowledges', limit, async (t) => {
    const { relais, service, context, page, deliver, shown, subscriptions, origin } = await site(t);
    const id = await page.evaluate('subscribe()');
    assert.deepEqual((await subscriptions()).map((/** @type {any} */ one) => [one.id, one.endpoint]), [[id, service.subscription.endpoint]]);
    assert.equal(await page.evaluate('subscribe()'), id, 'the next page subscribes the same');
    const payload = { title: 'Your order has left', body: '<b>Today</b>', url: '/orders/7' };
    const audience = { type: 'USER', targets: ['ann'] };
    const first = await relais.call('POST', '/v1/notifications', { payload, routing: { audience } });
    const push = await service.push(1);
    await deliver(push);
    assert.deepEqual(await shown(1), [{ title: payload.title, body: payload.body, tag: first.id, url: `${origin}/orders/7` }]);
    await deliver(push);
    const [second] = await relais.emit('ann', [2]);
    await deliver(await service.push(2));
    assert.deepEqual((await shown(2)).map(({ title }) => title).sort(), ['Your order has left', 'number 2']);
    const worker = context.serviceWorkers()[0] ?? (await context.waitForEvent('serviceworker'));
    assert.deepEqual(await worker.evaluate(`click('${first.id}')`), [`${origin}/orders/7`]);
    assert.equal((await relais.counts('ann')).unread, 1);
    assert.deepEqual((await shown(1)).map(({ tag }) => tag), [second]);
    assert.deepEqual((await worker.evaluate(`click('${second}')`))[1], `focus ${page.url()}`, 'it has no address of its own');
    assert.equal((await relais.counts('ann')).unread, 0);
  });

  it('what is withdrawn or read elsewhere is not shown any longer', limit, async (t) => {
    const { relais, service, page, deliver, shown } = await site(t);
    await page.evaluate('subscribe()');
    const [gone, read] = await relais.emit('ann', [1, 2]);
    for (const number of [1, 2]) await deliver(await service.push(number));
    await shown(2);
    await relais.call('DELETE', `/v1/notifications/${gone}`);
    const told = await service.push(3);
    assert.deepEqual(told, { withdrawn: gone });
    await deliver(told);
    assert.deepEqual((await shown(1)).map(({ tag }) => tag), [read]);
    await page.evaluate('subscribe({ client: connect() })');
    await page.waitForFunction('client.state === "open"');
    await page.evaluate(`client.ack('${read}')`);
    await shown(0);
  });

  it('pushes that are not whole, not text, or of somebody else do no harm', limit, async (t) => {
    const { page, deliver, shown } = await site(t);
    await page.evaluate('subscribe()');
    for (const data of ['', 'not JSON', '[]', 'null', '7', '{"other":"push"}', { message: null }, { message: { metadata: {} } }]) {
      await deliver(data);
    }
    await deliver({ id: 'large', ack: 'rp_x' });
    await deliver({ message: { metadata: { id: 'odd', timestamp: 'x' }, payload: { title: 7, body: {}, url: 'javascript:alert(1)' } }, ack: 'rp_y' });
    const all = await shown(2);
    assert.deepEqual(all.map(({ title, body, url }) => [title, body, url]), [['Shop', '', ''], ['Shop', '', '']]);
  });

  it('a user who does not want pushes has none, and one who signs out has none any more', limit, async (t) => {
    const denied = await site(t, false);
    assert.equal(await denied.page.evaluate('subscribe()'), 'denied');
    assert.deepEqual(await denied.subscriptions(), []);
    assert.equal(await denied.page.evaluate('unsubscribe()'), false);
    const { page, subscriptions } = await site(t);
    await page.evaluate('subscribe()');
    assert.equal((await subscriptions()).length, 1);
    assert.equal(await page.evaluate('unsubscribe()'), true);
    assert.deepEqual(await subscriptions(), []);
    assert.equal(await page.evaluate('unsubscribe()'), false);
  });
});
