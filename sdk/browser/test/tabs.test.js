/** One link for all tabs of a user. */

import assert from 'node:assert/strict';
import { test as nodeTest } from 'node:test';
import { Server } from './support/server.js';
import { Browser, channels, jwt, soon } from './support/world.js';

/** @param {string} name @param {(t: import('node:test').TestContext) => Promise<void>} run */
const test = (name, run) => nodeTest(name, { timeout: 10_000 }, run);

/** @param {import('node:test').TestContext} t */
async function two(t) {
  const server = await Server.start(t);
  const browser = new Browser(t, server);
  const first = browser.tab();
  await first.state('open');
  const second = browser.tab();
  await second.state('open');
  return { server, browser, first, second, clock: browser.clock };
}

test('two tabs have one link, and both see everything', async (t) => {
  const server = await Server.start(t);
  server.emit({ ack: true });
  const browser = new Browser(t, server);
  const first = browser.tab();
  await first.state('open');
  const second = browser.tab();
  await second.state('open');
  assert.deepEqual(second.client.counts, server.counts);
  const ids = [server.emit(), server.emit()];
  await second.until(() => second.ids().length === 2);
  assert.deepEqual([first.ids(), second.ids()], [ids, ids]);
  assert.equal(second.client.cursor, server.cursor);
  assert.deepEqual(second.client.counts, server.counts);
  assert.equal(server.to('stream').length, 1);
  assert.equal(server.to('').length, 1, 'the second tab asks the first, and not the server');
});

test('when the leader closes, another tab goes on from the cursor', async (t) => {
  const { server, first, second } = await two(t);
  const before = server.emit();
  await second.until(() => second.ids().length === 1);
  first.client.close();
  const between = server.emit();
  await second.until(() => second.ids().length === 2);
  const after = server.emit();
  await second.until(() => second.ids().length === 3);
  assert.deepEqual(second.ids(), [before, between, after]);
  assert.deepEqual(second.client.counts, server.counts);
  await server.until(() => server.links.size === 1);
});

test('whatever tabs close when, no tab loses a message or shows it twice', async (t) => {
  for (let seed = 1; seed <= 15; seed += 1) {
    let state = seed;
    const random = (/** @type {number} */ n) => (state = (state * 48_271) % 2_147_483_647) % n;
    const server = await Server.start(t);
    const browser = new Browser(t, server);
    let tabs = [browser.tab(), browser.tab(), browser.tab()];
    await Promise.all(tabs.map((tab) => tab.until(() => tab.client.cursor)));
    /** @type {string[]} */
    const sent = [];
    /** @param {typeof tabs[number] | undefined} tab */
    const acknowledge = (tab) => tab?.client.ack(tab.ids()[random(sent.length || 1)] ?? 'none');
    for (let step = 0; step < 30; step += 1) {
      const dice = random(10);
      if (dice === 0 && tabs.length > 1) tabs.splice(random(tabs.length), 1)[0]?.client.close();
      else if (dice === 1) server.cut();
      else if (dice === 2) browser.clock.advance(1_500);
      else if (dice === 3) acknowledge(tabs[random(tabs.length)]);
      else sent.push(server.emit({ ack: random(2) === 0 }));
      for (let n = random(4); n > 0; n -= 1) await new Promise(setImmediate);
    }
    sent.push(server.emit());
    for (const tab of tabs) {
      while (tab.ids().at(-1) !== sent.at(-1) || JSON.stringify(tab.client.counts) !== JSON.stringify(server.counts)) {
        browser.clock.advance(1_000);
        await new Promise(setImmediate);
      }
      assert.deepEqual(tab.ids(), sent, `seed ${seed}`);
      assert.deepEqual(tab.of('gap'), [], `seed ${seed}`);
    }
    for (const tab of tabs) tab.client.close();
  }
});

test('an acknowledgement of any tab is sent by the leader, and counts in all', async (t) => {
  const { server, browser, first, second } = await two(t);
  const id = server.emit({ ack: true });
  await second.until(() => second.ids().length);
  second.client.ack(id);
  assert.equal(second.client.counts.unacknowledged, 0);
  await server.until(() => server.counts.unread === 0);
  await first.until(() => first.of('acknowledged').length);
  assert.deepEqual(first.client.counts, server.counts);
  assert.equal(server.to('ack').length, 1);
  server.emit();
  await second.until(() => second.ids().length === 2);
  second.client.ackAll();
  await server.until(() => server.counts.unread === 0);
  assert.deepEqual(server.to('ack').at(-1)?.body, { all: true });
  await first.until(() => first.client.counts.unread === 0);
  // What is sent waits nowhere any more.
  second.client.ack('x');
  await server.until(() => server.to('ack').length === 3);
  assert.deepEqual(server.to('ack').at(-1)?.body, { ids: ['x'] });
  await soon(() => ![...browser.storage.items].some(([, value]) => value.includes('"x"')));
});

test('what a tab acknowledged offline is sent by the tab that takes over', async (t) => {
  const { server, clock, first, second } = await two(t);
  const id = server.emit();
  await second.until(() => second.ids().length);
  server.fault['*'] = 'cut';
  server.cut();
  await second.state('waiting');
  second.client.ack(id);
  await server.until(() => server.to('ack').length);
  first.client.close();
  await second.state('waiting');
  server.fault = {};
  clock.advance(1_000);
  await server.until(() => server.counts.unread === 0);
});

test('a replay of what another tab acknowledged is shown in no tab', async (t) => {
  const { server, browser, first, second } = await two(t);
  const id = server.emit({ ack: true });
  await second.until(() => second.ids().length);
  second.client.ack(id);
  await first.until(() => first.of('acknowledged').length);
  await soon(() => ![...browser.storage.items].some(([, value]) => value.includes(id))); // The server has it.
  const third = browser.tab();
  await third.state('open');
  server.replay(id, 1);
  await server.until(() => server.to('ack').length === 2);
  server.emit();
  await third.until(() => third.ids().length);
  for (const tab of [first, second, third]) assert.equal(tab.of('notification').filter((one) => one.routing.retry.attempts).length, 0);
});

test('a leader that answers keeps the link', async (t) => {
  const { server, second, clock } = await two(t);
  for (let n = 0; n < 3; n += 1) {
    second.document.dispatchEvent(new Event('visibilitychange'));
    await new Promise(setImmediate);
    clock.advance(5_000);
  }
  server.emit();
  await second.until(() => second.ids().length);
  assert.equal(server.to('stream').length, 1);
});

test('a leader that does not answer loses the link, and follows when it wakes', async (t) => {
  const server = await Server.start(t);
  const browser = new Browser(t, server);
  /** @type {any[]} */
  const opened = [];
  const Plain = channels();
  class Sleeping extends Plain {
    /** @param {string} name */
    constructor(name) {
      super(name);
      opened.push(this);
    }
  }
  const Channel = /** @type {any} */ (Sleeping);
  const first = browser.tab({ platform: { Channel } });
  await first.state('open');
  const second = browser.tab({ platform: { Channel } });
  await second.state('open');
  const [channel] = opened;
  const { onmessage } = channel;
  channel.onmessage = null; // It hears nothing.
  channel.postMessage = () => {}; // Nor does it say anything.
  second.document.hidden = true;
  browser.clock.advance(25_000);
  await new Promise(setImmediate);
  assert.equal(server.to('stream').length, 1, 'a tab that nobody looks at takes nothing');
  second.document.hidden = false;
  second.document.dispatchEvent(new Event('visibilitychange'));
  const missed = server.emit();
  browser.clock.advance(5_000);
  await server.until(() => server.to('stream').length === 2);
  await second.until(() => second.ids().includes(missed));
  assert.deepEqual(second.ids(), [missed]);
  delete channel.postMessage;
  channel.onmessage = onmessage;
  const id = server.emit();
  await first.until(() => first.ids().includes(id));
  await server.until(() => server.links.size === 1);
  assert.equal(first.ids().filter((one) => one === id).length, 1);
});

test('a tab that slept through something is told to read the list again', async (t) => {
  const { server, first, second } = await two(t);
  second.window.dispatchEvent(new Event('pagehide'));
  server.emit();
  await first.until(() => first.ids().length);
  const back = Object.assign(new Event('pageshow'), { persisted: true });
  second.window.dispatchEvent(back);
  await second.until(() => second.of('gap').length);
  assert.deepEqual(second.of('gap'), [{ reason: 'missed' }]);
  assert.equal(second.client.cursor, server.cursor);
  assert.deepEqual(second.client.counts, server.counts);
  const id = server.emit();
  await second.until(() => second.ids().includes(id));
  // A leader that is put away lets go of the link, and its own cursor brings it what it missed.
  first.window.dispatchEvent(new Event('pagehide'));
  await server.until(() => server.to('stream').length === 2);
  second.client.close();
  const missed = server.emit();
  first.window.dispatchEvent(Object.assign(new Event('pageshow'), { persisted: true }));
  await first.until(() => first.ids().includes(missed));
});

test('each tab has its own link without locks, without channels, or if told so', async (t) => {
  const denied = /** @type {any} */ ({ request: () => Promise.reject(new DOMException('', 'SecurityError')) });
  for (const options of [{ platform: { locks: undefined } }, { platform: { Channel: undefined } }, { share: false }, { platform: { locks: denied } }]) {
    const server = await Server.start(t);
    const browser = new Browser(t, server);
    const tabs = [browser.tab(options), browser.tab(options)];
    for (const tab of tabs) await tab.state('open');
    assert.equal(server.links.size, 2);
    server.emit();
    for (const tab of tabs) await tab.until(() => tab.ids().length === 1);
  }
});

test('users share nothing with each other, and tickets only under a name', async (t) => {
  const server = await Server.start(t);
  const browser = new Browser(t, server);
  const tabs = [
    browser.tab({ token: jwt({ sub: 'ann' }) }), browser.tab({ token: jwt({ sub: 'bob' }) }),
    browser.tab({ token: 'ticket-1' }), browser.tab({ token: 'ticket-2' }),
    browser.tab({ token: 'ticket-3', user: 'cleo' }), browser.tab({ token: 'ticket-4', user: 'cleo' }),
  ];
  for (const tab of tabs) await tab.state('open');
  assert.equal(server.links.size, 5);
});

test('a leader whose token has expired hands over to a tab that has a good one', async (t) => {
  const server = await Server.start(t);
  const browser = new Browser(t, server);
  const first = browser.tab({ token: jwt({ sub: 'ann', n: 1 }) });
  await first.state('open');
  const second = browser.tab({ token: jwt({ sub: 'ann', n: 2 }) });
  await second.state('open');
  server.refused.add(jwt({ sub: 'ann', n: 1 }));
  server.bye('expired');
  await first.state('closed');
  await server.until(() => server.links.size === 1 && [...server.links][0]?.token === jwt({ sub: 'ann', n: 2 }));
  const id = server.emit();
  await second.until(() => second.ids().length);
  assert.deepEqual(second.ids(), [id]);
});
