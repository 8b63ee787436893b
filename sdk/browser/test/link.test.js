/** How the link is kept: reconnecting, falling back, renewing. */

import assert from 'node:assert/strict';
import { test as nodeTest } from 'node:test';
import { Server } from './support/server.js';
import { Browser, jwt } from './support/world.js';

/** @param {string} name @param {(t: import('node:test').TestContext) => Promise<void>} run */
const test = (name, run) => nodeTest(name, { timeout: 10_000 }, run);

test('messages arrive over SSE, with the token in a header', async (t) => {
  const server = await Server.start(t);
  const page = new Browser(t, server).tab();
  assert.equal(page.client.state, 'connecting');
  await page.state('open');
  const id = server.emit({ payload: { title: 'hello' } });
  await page.until(() => page.ids().length);
  assert.equal(page.of('notification')[0].metadata.id, id);
  assert.equal(server.to('stream')[0]?.token, jwt({ sub: 'ann' }));
  assert.equal(server.to('stream')[0]?.query.size, 0);
  assert.deepEqual(page.of('state').map(({ state, transport }) => [state, transport]), [['connecting', 'sse'], ['open', 'sse']]);
});

test('the stream begins where the list ended, and goes on from the cursor', async (t) => {
  const server = await Server.start(t);
  const browser = new Browser(t, server);
  const early = server.emit();
  const page = browser.tab();
  await page.state('open');
  assert.equal(server.to('stream')[0]?.headers['last-event-id'], server.cursor);
  const first = server.emit();
  await page.until(() => page.ids().length === 1);
  server.cut();
  await page.state('waiting');
  const second = server.emit();
  await browser.clock.until(1_000);
  browser.clock.advance(1_000);
  await page.until(() => page.ids().length === 2);
  assert.deepEqual(page.ids(), [first, second]);
  assert(!page.ids().includes(early));
  assert.equal(server.to('').length, 1, 'the list is not read again');
  assert.deepEqual(page.client.counts, server.counts);
});

test('the cursor moves only after the listeners ran', async (t) => {
  const server = await Server.start(t);
  const page = new Browser(t, server).tab();
  await page.state('open');
  const before = page.client.cursor;
  /** @type {unknown[]} */
  const during = [];
  page.client.addEventListener('notification', () => during.push(page.client.cursor));
  server.emit();
  await page.until(() => page.ids().length);
  assert.deepEqual(during, [before]);
  assert.equal(page.client.cursor, server.cursor);
});

test('pauses grow while the server is away, and end when the network is back', async (t) => {
  const server = await Server.start(t);
  const browser = new Browser(t, server);
  server.fault['*'] = 'cut';
  const page = browser.tab();
  for (const pause of [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]) {
    await page.state('waiting');
    await browser.clock.until(pause);
    browser.clock.advance(pause);
    await page.state('connecting');
  }
  await page.state('waiting');
  delete server.fault['*'];
  page.window.dispatchEvent(new Event('online'));
  await page.state('open');
  assert.equal(page.of('state').at(-1).transport, 'sse', 'a server that is away says nothing about the transport');
});

test('a quiet link is not trusted when the page comes into sight', async (t) => {
  const server = await Server.start(t);
  const browser = new Browser(t, server);
  const page = browser.tab();
  await page.state('open');
  browser.clock.advance(10_000);
  page.document.dispatchEvent(new Event('visibilitychange'));
  assert.equal(page.client.state, 'open', 'it was heard of ten seconds ago');
  browser.clock.advance(20_000);
  page.document.hidden = true;
  page.document.dispatchEvent(new Event('visibilitychange'));
  assert.equal(page.client.state, 'open', 'nobody looks');
  page.document.hidden = false;
  page.document.dispatchEvent(new Event('visibilitychange'));
  await server.until(() => server.to('stream').length === 2);
  await page.until(() => page.of('state').length === 4);
  assert.deepEqual(page.of('state').map(({ state }) => state), ['connecting', 'open', 'connecting', 'open']);
});

test('a link that is silent for longer than three heartbeats is replaced', async (t) => {
  const server = await Server.start(t);
  const browser = new Browser(t, server);
  const page = browser.tab();
  await page.state('open');
  browser.clock.advance(45_000);
  await page.state('waiting');
  const id = server.emit();
  await browser.clock.until(1_000);
  browser.clock.advance(1_000);
  await page.until(() => page.ids().length);
  assert.deepEqual(page.ids(), [id]);
});

test('where SSE is held back the WebSocket is used, remembered, and left again later', async (t) => {
  const server = await Server.start(t);
  const browser = new Browser(t, server);
  server.fault['stream'] = 'hold';
  const page = browser.tab();
  await browser.clock.until(10_000);
  await server.until(() => server.to('stream').length);
  browser.clock.advance(10_000);
  await page.state('open');
  assert.equal(page.of('state').at(-1).transport, 'websocket');
  const id = server.emit();
  await page.until(() => page.ids().length);
  assert.deepEqual(page.ids(), [id]);
  page.client.close();
  const next = browser.tab();
  await next.state('open');
  assert.equal(server.to('stream').length, 1, 'what worked is tried first');
  server.fault = {};
  for (let beat = 1; beat < 15; beat += 1) {
    browser.clock.advance(44_000);
    server.emit(); // So that the link is not silent for too long.
    await next.until(() => next.ids().length === beat);
    assert.equal(next.of('state').at(-1).transport, beat < 14 ? 'websocket' : 'sse');
  }
});

test('a WebSocket lives on by its heartbeats, which nobody sees, and ends without them', async (t) => {
  const server = await Server.start(t);
  const browser = new Browser(t, server);
  const page = browser.tab({ transports: ['websocket'] });
  await page.state('open');
  const seen = page.seen.length;
  for (let beat = 0; beat < 5; beat += 1) {
    browser.clock.advance(30_000);
    for (const link of server.links) link.send('heartbeat', undefined, {});
    await browser.clock.untilDue(45_000);
  }
  assert.equal(page.seen.length, seen);
  browser.clock.advance(45_000);
  await page.state('waiting');
});

test('where nothing but plain requests passes, long-poll is used', async (t) => {
  const server = await Server.start(t);
  const browser = new Browser(t, server);
  server.fault = { stream: 404, socket: 'hold' };
  const page = browser.tab();
  await page.state('waiting');
  await browser.clock.until(1_000);
  browser.clock.advance(1_000);
  await server.until(() => server.to('socket').length);
  await browser.clock.until(10_000);
  browser.clock.advance(10_000);
  await page.state('open');
  assert.equal(page.of('state').at(-1).transport, 'poll');
  await server.until(() => server.to('poll').length === 2);
  const ids = [server.emit(), server.emit()];
  await page.until(() => page.ids().length === 2);
  assert.deepEqual(page.ids(), ids);
  await server.until(() => server.to('poll').at(-1)?.query.get('after') === server.cursor);
});

test('an answer that is not a stream is no stream', async (t) => {
  const server = await Server.start(t);
  const browser = new Browser(t, server);
  /** @type {typeof fetch} */
  const portal = (input, init) => (String(input).endsWith('/stream')
    ? Promise.resolve(new Response('<h1>Please log in</h1>', { headers: { 'Content-Type': 'text/html' } })) : fetch(input, init));
  const page = browser.tab({ transports: ['sse', 'poll'], platform: { fetch: portal } });
  await page.state('waiting');
  await browser.clock.until(1_000);
  browser.clock.advance(1_000);
  await page.state('open');
  assert.equal(page.of('state').at(-1).transport, 'poll');
});

test('without a WebSocket in the browser, the next transport is used', async (t) => {
  const server = await Server.start(t);
  const browser = new Browser(t, server);
  server.fault['stream'] = 'hold';
  const page = browser.tab({ platform: { WebSocket: undefined } });
  await browser.clock.until(10_000);
  browser.clock.advance(10_000);
  await page.state('open');
  assert.equal(page.of('state').at(-1).transport, 'poll');
});

test('an expired link gets a new token, and goes on at once', async (t) => {
  const server = await Server.start(t);
  const browser = new Browser(t, server);
  let asked = 0;
  const page = browser.tab({ getToken: () => jwt({ sub: 'ann', n: (asked += 1) }) });
  await page.state('open');
  server.refused.add(jwt({ sub: 'ann', n: 1 }));
  server.bye('expired');
  await server.until(() => server.to('stream').length === 2);
  await page.until(() => page.of('state').length === 4);
  assert.equal(server.to('stream').at(-1)?.token, jwt({ sub: 'ann', n: 2 }));
  assert.equal(asked, 2);
  server.emit();
  await page.until(() => page.ids().length === 1);
});

test('a refused token is replaced within the same attempt', async (t) => {
  const server = await Server.start(t);
  const browser = new Browser(t, server);
  let asked = 0;
  const page = browser.tab({ getToken: async () => jwt({ sub: 'ann', n: (asked += 1) }) });
  await page.state('open');
  server.refused.add(jwt({ sub: 'ann', n: 1 }));
  const { counts } = await page.client.list();
  assert.deepEqual(counts, server.counts);
  assert.equal(asked, 2);
});

test('a token is renewed on the open link before it expires', async (t) => {
  const server = await Server.start(t);
  const browser = new Browser(t, server);
  let asked = 0;
  const getToken = () => ({ token: `ticket-${(asked += 1)}`, expires: new Date(browser.clock.time + 100_000).toISOString() });
  const page = browser.tab({ getToken });
  await page.state('open');
  const [link] = server.links;
  await browser.clock.until(90_000);
  for (let n = 1; n <= 9; n += 1) { // So that the link is not silent for too long.
    browser.clock.advance(10_000);
    if (n < 9) server.emit();
    await page.until(() => page.ids().length === Math.min(n, 8));
  }
  await server.until(() => link?.token === 'ticket-2');
  assert.equal(server.links.size, 1);
  assert.equal(server.to('stream').length, 1, 'it is the same stream');
  await browser.clock.until(90_000); // And so on.
});

test('a renewal that is refused makes a new link', async (t) => {
  const server = await Server.start(t);
  const browser = new Browser(t, server);
  let asked = 0;
  const getToken = () => ({ token: `ticket-${(asked += 1)}`, expires: browser.clock.time + 20_000 });
  const page = browser.tab({ getToken });
  await page.state('open');
  for (const link of server.links) link.id = 'gone';
  browser.clock.advance(18_000);
  await server.until(() => server.to('stream').length === 2);
  assert.equal(server.to('stream').at(-1)?.token, 'ticket-2');
  await page.until(() => page.of('state').length === 4);
});

test('a renewal that fails is tried again, on the same link', async (t) => {
  const server = await Server.start(t);
  const browser = new Browser(t, server);
  let asked = 0;
  const page = browser.tab({
    getToken: async () => {
      asked += 1;
      if (asked === 2) throw new Error('the backend is away');
      return { token: `ticket-${asked}`, expires: browser.clock.time + 40_000 };
    },
  });
  await page.state('open');
  await browser.clock.until(36_000);
  browser.clock.advance(36_000);
  await browser.clock.until(10_000);
  const [link] = server.links;
  server.emit();
  await page.until(() => page.ids().length === 1);
  browser.clock.advance(10_000);
  await server.until(() => link?.token === 'ticket-3');
  assert.equal(server.to('stream').length, 1);
});

test('without getToken, an expired token closes the client', async (t) => {
  const server = await Server.start(t);
  const page = new Browser(t, server).tab();
  await page.state('open');
  server.refused.add(jwt({ sub: 'ann' }));
  server.bye('expired');
  await page.state('closed');
  assert.equal(page.of('state').at(-1).reason, 'expired');
  const other = new Browser(t, server).tab();
  await other.state('closed');
  assert.equal(other.of('state').at(-1).reason, 'expired');
});

test('getToken that fails is asked again', async (t) => {
  const server = await Server.start(t);
  const browser = new Browser(t, server);
  let asked = 0;
  const page = browser.tab({
    getToken: async () => {
      if ((asked += 1) < 3) throw new Error('away');
      return 'ticket';
    },
  });
  for (const pause of [1_000, 2_000]) {
    await browser.clock.until(pause);
    assert.equal(page.client.state, 'waiting');
    browser.clock.advance(pause);
  }
  await page.state('open');
});

test('a link that is closed as soon as it opens is not reopened in a hurry', async (t) => {
  const server = await Server.start(t);
  const browser = new Browser(t, server);
  const page = browser.tab();
  for (const pause of [1_000, 2_000, 4_000, 8_000]) {
    await page.state('open');
    server.bye('replaced');
    await page.state('waiting');
    await browser.clock.until(pause);
    browser.clock.advance(pause);
  }
  await page.state('open');
});

test('a stream for another user ends it', async (t) => {
  const server = await Server.start(t);
  const browser = new Browser(t, server);
  const page = browser.tab();
  await page.state('open');
  server.user = 'bob';
  server.cut();
  await page.state('waiting');
  server.emit();
  await browser.clock.until(1_000);
  browser.clock.advance(1_000);
  await page.state('closed');
  assert.equal(page.of('state').at(-1).reason, 'user');
  assert.deepEqual(page.ids(), []);
});

test('after close nothing arrives and nothing runs', async (t) => {
  const server = await Server.start(t);
  const browser = new Browser(t, server);
  const page = browser.tab({ getToken: () => ({ token: 'ticket', expires: browser.clock.time + 60_000 }) });
  await page.state('open');
  await browser.clock.until(54_000);
  page.client.close();
  assert.equal(page.client.state, 'closed');
  await server.until(() => server.links.size === 0);
  server.emit();
  page.window.dispatchEvent(new Event('online'));
  await new Promise(setImmediate);
  assert.deepEqual(page.ids(), []);
  assert.equal(browser.clock.timers.size, 0);
});
