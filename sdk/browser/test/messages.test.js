/** What a page sees of messages, and that the counts are the server's. */

import assert from 'node:assert/strict';
import { test as nodeTest } from 'node:test';
import { message, Server } from './support/server.js';
import { Browser, soon } from './support/world.js';

/** @param {string} name @param {(t: import('node:test').TestContext) => Promise<void>} run */
const test = (name, run) => nodeTest(name, { timeout: 10_000 }, run);

/** @param {import('node:test').TestContext} t @param {Partial<import('relais-browser').Options>} [options] */
async function opened(t, options) {
  const server = await Server.start(t);
  const browser = new Browser(t, server);
  const page = browser.tab(options);
  await page.state('open');
  return { server, browser, page, clock: browser.clock };
}

/** A page whose acknowledgement the server refused for now, and the next one. @param {import('node:test').TestContext} t */
async function leftOver(t) {
  const { server, browser, clock, page } = await opened(t);
  const id = server.emit({ ack: true });
  await page.until(() => page.ids().length);
  server.fault['ack'] = 503;
  page.client.ack(id);
  await clock.until(10_000);
  page.client.close();
  const next = browser.tab();
  await next.state('open');
  return { server, clock, id, next };
}

test('a message is shown once, and a replay again only while it is not acknowledged', async (t) => {
  const { server, page } = await opened(t);
  const id = server.emit({ ack: true });
  server.replay(id, 0);
  server.replay(id, 1);
  server.replay(id, 1);
  const last = server.emit();
  await page.until(() => page.ids().includes(last));
  assert.deepEqual(page.of('notification').map((one) => [one.metadata.id, one.routing.retry.attempts]), [[id, 0], [id, 1], [last, 0]]);
  assert.deepEqual(page.client.counts, { unread: 2, unacknowledged: 1, all: 2 });
});

for (const transport of /** @type {const} */ (['sse', 'websocket', 'poll'])) {
  test(`a payload arrives as it is over ${transport}, whatever ends its lines`, async (t) => {
    const { server, page } = await opened(t, { transports: [transport] });
    const payload = { title: 'one\u2028id: x\u2029data: y\u0085z', body: ': two\r\n\r\nevent: gap\u2028' };
    server.emit({ payload });
    await page.until(() => page.ids().length);
    assert.deepEqual(page.of('notification')[0].payload, payload);
    assert.equal(page.client.cursor, server.cursor);
  });
}

test('a payload that its emitter has written on many lines arrives', async (t) => {
  const { server, page } = await opened(t);
  const [start, end] = ['event: notification\ndata: {"metadata": {"id": "lines"},\ndata:\r\n', 'data:  "payload": [1,\ndata: 2]}\n\n'];
  for (const link of server.links) {
    link.raw(start);
    link.raw(end);
  }
  await page.until(() => page.ids().length);
  assert.deepEqual(page.of('notification'), [{ metadata: { id: 'lines' }, payload: [1, 2] }]);
});

test('a replay of what was acknowledged is acknowledged again, and not shown', async (t) => {
  const { server, page } = await opened(t);
  const id = server.emit({ ack: true });
  await page.until(() => page.ids().length === 1);
  page.client.ack(id);
  await server.until(() => server.to('ack').length === 1);
  server.replay(id, 1);
  await server.until(() => server.to('ack').length === 2);
  assert.deepEqual(server.to('ack')[1]?.body, { ids: [id] });
  assert.deepEqual(page.ids(), [id]);
});

test('an acknowledgement counts at once, and is told once', async (t) => {
  const { server, page } = await opened(t);
  const ids = [server.emit({ ack: true }), server.emit()];
  await page.until(() => page.ids().length === 2);
  page.client.ack(ids);
  assert.deepEqual(page.client.counts, { unread: 0, unacknowledged: 0, all: 2 });
  assert.deepEqual(page.of('acknowledged'), [{ ids }]);
  await server.until(() => server.counts.unread === 0);
  const last = server.emit();
  await page.until(() => page.ids().includes(last));
  assert.equal(page.of('acknowledged').length, 1, 'the server tells it too');
  assert.deepEqual(page.client.counts, server.counts);
});

test('what another device acknowledges or an emitter withdraws is told', async (t) => {
  const { server, page } = await opened(t);
  const [one, two, three] = [server.emit({ ack: true }), server.emit(), server.emit()];
  await page.until(() => page.ids().length === 3);
  server.ack([one]);
  server.withdraw(two);
  server.withdraw(two);
  server.replay(two, 1);
  await page.until(() => page.of('withdrawn').length);
  assert.deepEqual(page.of('acknowledged'), [{ ids: [one] }]);
  const last = server.emit();
  await page.until(() => page.ids().includes(last));
  assert.deepEqual(page.of('withdrawn'), [{ id: two }]);
  assert.deepEqual(page.ids(), [one, two, three, last]);
  assert.deepEqual(page.client.counts, server.counts);
});

test('acknowledgements wait while offline, and outlive the page', async (t) => {
  const { server, browser, page } = await opened(t);
  const ids = [server.emit(), server.emit()];
  await page.until(() => page.ids().length === 2);
  server.fault['*'] = 'cut';
  server.cut();
  await page.state('waiting');
  page.client.ack(ids);
  assert.equal(page.client.counts.unread, 0);
  await server.until(() => server.to('ack').length);
  page.client.close();
  server.fault = {};
  const next = browser.tab();
  await next.state('open');
  assert.equal(server.counts.unread, 0, 'they are sent before the counts are taken');
  assert.equal(next.client.counts.unread, 0);
});

test('acknowledgements that the server refused for now are sent when the link is back', async (t) => {
  const { server, clock, page } = await opened(t);
  const id = server.emit();
  await page.until(() => page.ids().length);
  server.fault['ack'] = 503;
  page.client.ack(id);
  await clock.until(10_000);
  const { notifications } = await page.client.list();
  assert(notifications[0]?.acknowledged, 'the list says so too');
  server.fault = {};
  clock.advance(10_000);
  await server.until(() => server.counts.unread === 0);
  assert.equal(page.client.counts.unread, 0);
  assert.deepEqual(page.of('counts').map(({ unread }) => unread), [1, 0], 'it never looked unread again');
});

test('acknowledgements that will never be taken do not keep others waiting', async (t) => {
  const { server, clock, page } = await opened(t);
  const [one, two] = [server.emit(), server.emit()];
  await page.until(() => page.ids().length === 2);
  server.fault['ack'] = 422;
  page.client.ack(one);
  await clock.until(10_000);
  server.fault = {};
  page.client.ack(two);
  await server.until(() => server.to('ack').length === 2);
  assert.deepEqual(server.to('ack')[1]?.body, { ids: [two] });
});

test('many acknowledgements go in several calls, and only so many wait', async (t) => {
  const { server, page } = await opened(t);
  page.client.ack(Array.from({ length: 1_500 }, (_, n) => `x${n}`));
  await server.until(() => server.to('ack').length === 5);
  const sent = server.to('ack').flatMap(({ body }) => body.ids);
  assert.equal(sent.length, 1_000);
  assert.equal(sent.at(-1), 'x1499');
});

test('ackAll acknowledges what was never listed, when the server is there', async (t) => {
  const server = await Server.start(t);
  for (let n = 0; n < 3; n += 1) server.emit({ ack: true });
  const page = new Browser(t, server).tab();
  await page.state('open');
  assert.deepEqual(page.client.counts, { unread: 3, unacknowledged: 3, all: 3 });
  page.client.ackAll();
  assert.deepEqual(page.client.counts, { unread: 0, unacknowledged: 0, all: 3 });
  await server.until(() => server.counts.unread === 0);
  assert.deepEqual(server.to('ack').map(({ body }) => body), [{ all: true }]);
});

test('ackAll offline never acknowledges what came later', async (t) => {
  const { server, clock, page } = await opened(t);
  const id = server.emit();
  await page.until(() => page.ids().length);
  server.fault['*'] = 'cut';
  server.cut();
  await page.state('waiting');
  page.client.ackAll();
  await server.until(() => server.to('ack').length);
  assert.equal(page.client.counts.unread, 0);
  server.fault = {};
  const unseen = server.emit();
  clock.advance(1_000);
  await page.until(() => page.ids().includes(unseen));
  await server.until(() => server.counts.unread === 1);
  assert.deepEqual(server.to('ack').at(-1)?.body, { ids: [id] });
  await page.until(() => page.client.counts.unread === 1);
});

test('ackAll that could not be sent at once never acknowledges what came later', async (t) => {
  const { server, clock, page } = await opened(t);
  const ids = [server.emit(), server.emit()];
  await page.until(() => page.ids().length === 2);
  server.fault['ack'] = 503;
  page.client.ack(ids[0] ?? '');
  page.client.ackAll(); // While the call before it is under way, which fails.
  await clock.until(10_000);
  const unseen = server.emit();
  await page.until(() => page.ids().includes(unseen));
  server.fault = {};
  clock.advance(10_000);
  await server.until(() => server.counts.unread === 1);
  assert.deepEqual(server.to('ack').at(-1)?.body, { ids });
});

test('what a page before acknowledged is sent again and again until the server takes it', async (t) => {
  const { server, clock } = await leftOver(t);
  const tried = server.to('ack').length;
  for (let n = 1; n <= 3; n += 1) {
    await clock.untilDue(10_000);
    clock.advance(10_000);
    await server.until(() => server.to('ack').length === tried + n);
  }
  await clock.untilDue(10_000);
  server.fault = {};
  clock.advance(10_000);
  await server.until(() => server.counts.unread === 0);
});

test('after a gap and after a change of audiences, the counts are the server\'s', async (t) => {
  const { server, clock, page } = await opened(t);
  for (const event of ['gap', 'audiences']) {
    for (let n = 0; n < 3; n += 1) server.list.push({ message: message() }); // Without an event.
    server.tell(event, event === 'gap' ? { reason: 'purged' } : {});
    await page.until(() => page.of(event).length);
    clock.advance(0);
    await page.until(() => page.client.counts.all === server.list.length);
    assert.deepEqual(page.client.counts, server.counts);
  }
  assert.deepEqual(page.of('gap'), [{ reason: 'purged' }]);
  assert.equal((await page.client.list()).notifications.length, 6);
});

test('a cursor of another epoch is a gap, and the stream goes on from there', async (t) => {
  const server = await Server.start(t);
  const browser = new Browser(t, server);
  const page = browser.tab({ cursor: 'old:3' });
  await page.until(() => page.of('gap').length);
  assert.equal(page.client.cursor, server.cursor);
  server.emit();
  await page.until(() => page.ids().length);
});

test('counts that were taken while something was on its way are taken again', async (t) => {
  const { server, clock, page } = await opened(t);
  const id = server.emit();
  await page.until(() => page.ids().length);
  // The answer to the acknowledgement counts a message that the stream has not brought yet.
  const late = message();
  server.list.push({ message: late });
  page.client.ack(id);
  await page.until(() => page.client.counts.all === 2);
  server.tell('notification', late);
  await page.until(() => page.ids().length === 2);
  assert.equal(page.client.counts.all, 3, 'counted twice, for now');
  await clock.until(2_000);
  clock.advance(2_000);
  await page.until(() => page.client.counts.all === 2);
  assert.deepEqual(page.client.counts, server.counts);
});

test('an answer that was asked for before an acknowledgement does not undo it', async (t) => {
  /** @type {((go: void) => void) | undefined} */
  let release;
  /** @type {typeof fetch} */
  const slow = async (input, init) => {
    const response = await fetch(input, init);
    if (String(input).endsWith('/counts')) await new Promise((resolve) => (release = resolve));
    return response;
  };
  const { server, clock, page } = await opened(t, { platform: { fetch: slow } });
  const id = server.emit({ ack: true });
  await page.until(() => page.ids().length);
  server.tell('gap', { reason: 'purged' });
  await page.until(() => page.of('gap').length);
  clock.advance(0);
  await soon(() => release);
  page.client.ack(id);
  await server.until(() => server.counts.unread === 0);
  release?.();
  await clock.until(2_000);
  assert.deepEqual(page.of('counts').map(({ unread }) => unread), [1, 0]);
});

test('while acknowledgements wait, the counts of the server are not taken', async (t) => {
  const { server, clock, page } = await opened(t);
  const id = server.emit();
  await page.until(() => page.ids().length);
  server.fault['ack'] = 503;
  page.client.ack(id);
  await clock.until(10_000);
  server.tell('gap', { reason: 'purged' });
  await page.until(() => page.of('gap').length);
  clock.advance(0);
  await server.until(() => server.to('ack').length === 2);
  assert.equal(server.to('counts').length, 0);
  assert.equal(page.client.counts.unread, 0);
});

test('what a page before acknowledged is not shown, even if the server has not heard of it', async (t) => {
  const { server, id, next } = await leftOver(t);
  server.replay(id, 1);
  const last = server.emit();
  await next.until(() => next.ids().includes(last));
  assert.deepEqual(next.ids(), [last]);
});

test('a replay of something unknown puts the counts in doubt', async (t) => {
  const { server, clock, page } = await opened(t);
  server.list.push({ message: message({ id: 'odd' }) }); // Its first sending never came.
  server.replay('odd', 3);
  await page.until(() => page.ids().length);
  await clock.until(2_000);
  clock.advance(2_000);
  await page.until(() => page.client.counts.all === 1);
});

test('a cursor that no header can carry is not kept', async (t) => {
  const { server, clock, page } = await opened(t);
  const { cursor } = page.client;
  for (const link of server.links) link.raw('id: \u2603\nevent: notification\ndata: {"metadata":{"id":"snow"}}\n\n');
  await page.until(() => page.ids().length);
  assert.equal(page.client.cursor, cursor);
  server.cut();
  await clock.until(1_000);
  clock.advance(1_000);
  await server.until(() => server.to('stream').length === 2);
  assert.equal(server.to('stream')[1]?.headers['last-event-id'], cursor);
});

test('counts are taken again every hour, as messages expire without a word', async (t) => {
  const server = await Server.start(t);
  server.emit();
  const browser = new Browser(t, server);
  const page = browser.tab({ transports: ['poll'] });
  await page.state('open');
  server.list = [];
  for (const { run } of [...browser.clock.timers].filter(({ millis }) => millis === 3_600_000)) run();
  await page.until(() => page.client.counts.all === 0);
});

test('after any sequence of events, the counts are the server\'s', async (t) => {
  for (let seed = 1; seed <= 12; seed += 1) {
    let state = seed;
    const random = (/** @type {number} */ n) => (state = (state * 48_271) % 2_147_483_647) % n;
    const server = await Server.start(t);
    const browser = new Browser(t, server);
    for (let n = 0; n < random(4); n += 1) server.emit({ ack: true });
    const page = browser.tab();
    await page.state('open');
    const any = () => server.list[random(server.list.length || 1)]?.message.metadata.id ?? 'none';
    for (let step = 0; step < 40; step += 1) {
      [
        () => server.emit({ ack: random(2) === 0 }),
        () => server.emit(),
        () => server.ack([any(), any()]),
        () => server.replay(any(), random(4)),
        () => server.list.length && server.withdraw(any()),
        () => page.client.ack(any()),
        () => random(8) === 0 && page.client.ackAll(),
        () => random(4) === 0 && server.cut(),
        () => browser.clock.advance(random(3_000)),
      ][random(9)]?.();
      if (random(3) === 0) await new Promise(setImmediate);
    }
    const last = server.emit();
    while (!page.ids().includes(last)) {
      browser.clock.advance(1_000);
      await new Promise(setImmediate);
    }
    while (JSON.stringify(page.client.counts) !== JSON.stringify(server.counts)) {
      browser.clock.advance(1_000);
      await new Promise(setImmediate);
    }
    const shown = page.of('notification').map((one) => `${one.metadata.id} ${one.routing.retry.attempts}`);
    assert.equal(new Set(shown).size, shown.length, `seed ${seed}: shown twice`);
    const places = server.log.map(({ data }) => (data.metadata ? `${data.metadata.id} ${data.routing.retry.attempts}` : ''));
    assert.deepEqual(shown, [...new Set(places)].filter((one) => shown.includes(one)), `seed ${seed}: out of order`);
    page.client.close();
  }
});

for (const transport of /** @type {const} */ (['sse', 'websocket', 'poll'])) {
  test(`malformed events over ${transport} are ignored`, async (t) => {
    const { server, page } = await opened(t, { transports: [transport] });
    for (const data of [null, 1, 'text', [], {}, { metadata: null }, { metadata: { id: 7 } }, { metadata: { id: '' } }]) {
      for (const event of ['notification', 'withdrawn', 'acknowledged', 'hello', 'nobody-knows', '__proto__']) server.tell(event, data);
    }
    server.tell('acknowledged', { ids: [null, 3, {}] });
    server.tell('notification', { metadata: { id: 'bare' } });
    for (const link of server.links) {
      if (transport === 'sse') {
        link.raw('event: notification\nid: \u2603\ndata: {"metadata"\n\n');
        link.raw(':\n\n\n\ndata\n\nevent\nretry: 1\n: x: y\n\nnothing\n\n__proto__: 7\n\n');
        link.raw('data: [1,\r\ndata: 2]\r\nevent: notification\r\n\r\n');
      } else {
        for (const text of ['', 'null', '[]', '{', '{"event":null}', '{"event":{"a":1},"id":{"b":2}}']) link.raw(text);
      }
    }
    const id = server.emit();
    await page.until(() => page.ids().includes(id));
    assert.deepEqual(page.ids(), ['bare', id]);
    assert.equal(page.client.cursor, server.cursor);
    assert.equal(page.client.state, 'open');
  });
}

test('a poll that answers nonsense is a failure, and no end', async (t) => {
  const server = await Server.start(t);
  const browser = new Browser(t, server);
  let nonsense = ['null', '[]', '{"data":null}', '<html>'];
  /** @type {typeof fetch} */
  const odd = (input, init) => (String(input).includes('/poll') && nonsense.length
    ? Promise.resolve(new Response(nonsense.pop())) : fetch(input, init));
  const page = browser.tab({ transports: ['poll'], platform: { fetch: odd } });
  for (const pause of [1_000, 2_000, 4_000, 8_000]) {
    await page.state('waiting');
    await browser.clock.until(pause);
    browser.clock.advance(pause);
    await page.until(() => page.client.state !== 'waiting');
  }
  await page.state('open');
});

test('the list comes in pages, and says why it was refused', async (t) => {
  const { server, page } = await opened(t);
  const ids = [server.emit(), server.emit(), server.emit()];
  server.ack([ids[2] ?? '']);
  const first = await page.client.list({ limit: 2 });
  assert.deepEqual(first.notifications.map(({ message }) => message.metadata.id), [ids[2], ids[1]]);
  const second = await page.client.list({ limit: 2, before: String(first.next) });
  assert.deepEqual(second.notifications.map(({ message }) => message.metadata.id), [ids[0]]);
  assert.equal(second.next, undefined);
  assert.equal((await page.client.list({ filter: 'unread' })).notifications.length, 2);
  server.fault['*'] = 403;
  await assert.rejects(page.client.list(), (error) => error instanceof Error && /** @type {any} */ (error).status === 403 && error.message === 'fault 403');
});

test('storage that throws or lies is no storage', async (t) => {
  const throws = () => {
    throw new Error('denied');
  };
  for (const getItem of [throws, () => '{', () => '7', () => '{"a":1}']) {
    const { server, page } = await opened(t, { storage: { getItem, setItem: throws, removeItem: throws } });
    const id = server.emit();
    await page.until(() => page.ids().length);
    page.client.ack(id);
    await server.until(() => server.counts.unread === 0);
  }
});

test('a token is needed', async (t) => {
  const server = await Server.start(t);
  assert.throws(() => new Browser(t, server).tab({ token: '' }), TypeError);
});
