/** End to end: pages in a real Chromium, and the real server. Each message is shown once, in order, and counts are exact. */

import assert from 'node:assert/strict';
import { after, describe, it } from 'node:test';
import { application, bufferingProxy, demo, draft, network } from './relais.js';
import { browser, picture, stop } from './support.js';

after(stop);

/** @param {number} from @param {number} to */
const numbers = (from, to) => Array.from({ length: to - from + 1 }, (_, index) => from + index);

/** @typedef {Awaited<ReturnType<Awaited<ReturnType<Awaited<ReturnType<typeof application>>['device']>>['open']>>} Page */

/**
 * Waits until these pages have shown these messages: all of them, once, in their order; and until they count like the server.
 *
 * @param {import('./relais.js').Relais} relais
 * @param {string} user
 * @param {Page[]} pages
 * @param {number[]} expected
 */
async function agree(relais, user, pages, expected) {
  const counts = await relais.counts(user);
  for (const page of pages) {
    await page.until(`seen.length >= ${expected.length}`);
    assert.deepEqual(await page.seen(), expected);
    await page.until(`Object.entries(${JSON.stringify(counts)}).every(([name, count]) => client.counts[name] === count)`)
      .catch(async () => assert.deepEqual(await page.counts(), counts));
    assert.deepEqual(page.errors, []);
  }
}

// They wait more than they compute.
describe('with the real server', { concurrency: 3 }, () => {
  const limit = { timeout: 90_000 };

  it('two users on several tabs and devices see their messages, and what they acknowledge counts everywhere', limit, async (t) => {
    const { relais, device } = await application(t);
    const [laptop, phone, other] = [await device('ann'), await device('ann'), await device('bob')];
    const tabs = [await laptop.open(), await laptop.open(), await phone.open()];
    const bob = await other.open();
    for (const page of [...tabs, bob]) await page.open();
    await Promise.all([relais.emit('team', numbers(1, 10)), relais.emit('cyd', numbers(100, 110))]);
    await relais.emit('ann', numbers(11, 15), true);
    await relais.emit('bob', numbers(16, 18), true);
    await agree(relais, 'ann', tabs, numbers(1, 15));
    await agree(relais, 'bob', [bob], [...numbers(1, 10), 16, 17, 18]);
    assert.deepEqual(await relais.counts('ann'), { unread: 15, unacknowledged: 5, all: 15 });
    await tabs[1]?.evaluate(`client.list({ filter: 'unacknowledged' })
      .then(({ notifications }) => client.ack(notifications.slice(0, 3).map(({ message }) => message.metadata.id)))`);
    for (const page of tabs) await page.until('client.counts.unread === 12 && client.counts.unacknowledged === 2');
    await tabs[2]?.evaluate('client.ackAll()');
    for (const page of tabs) await page.until('client.counts.unread === 0 && client.counts.unacknowledged === 0');
    await bob.evaluate('client.ackAll()');
    await bob.until('client.counts.unread === 0');
    while ((await relais.counts('ann')).unread || (await relais.counts('bob')).unread) await bob.waitForTimeout(20);
    await agree(relais, 'ann', tabs, numbers(1, 15));
    await tabs[0]?.getByRole('button', { name: 'Notifications, no unread notifications' }).waitFor();
    const { links } = await relais.call('GET', '/admin/notification-links');
    assert.equal(links.length, 3, 'the tabs of a device share a link');
  });

  it('what is withdrawn or replaced goes away', limit, async (t) => {
    const { relais, device } = await application(t);
    const page = await (await device('ann')).open();
    await page.open();
    const [gone, old] = await relais.emit('ann', numbers(1, 3), true);
    await agree(relais, 'ann', [page], numbers(1, 3));
    await page.getByRole('button', { name: 'Notifications, 3 unread notifications' }).click();
    await page.getByText('number 1').waitFor();
    await relais.call('DELETE', `/v1/notifications/${gone}`);
    const { id } = await relais.call('PUT', `/v1/notifications/${old}`, draft('ann', 4, true));
    await page.until('withdrawn.length === 2');
    assert.deepEqual(await page.evaluate('withdrawn'), [{ id: gone }, { id: old, replacedBy: id }]);
    await page.getByText('number 4').waitFor();
    assert.deepEqual(await page.getByRole('listitem').locator('strong').allTextContents(), ['number 4', 'number 3']);
    assert.deepEqual(await relais.counts('ann'), { unread: 2, unacknowledged: 2, all: 2 });
    await agree(relais, 'ann', [page], numbers(1, 4));
  });

  it('what is not acknowledged is shown again, and counts once', limit, async (t) => {
    const { relais, device } = await application(t, { RELAIS_NOTIFICATIONS_ACK_TIMEOUT: '1s' });
    const { open } = await device('ann');
    const [one, two] = [await open(), await open()];
    await Promise.all([one.open(), two.open()]);
    const [id] = await relais.emit('team', [1], true);
    for (const page of [one, two]) await page.until('seen.length >= 3');
    assert.deepEqual(await one.counts(), { unread: 1, unacknowledged: 1, all: 1 });
    await two.evaluate(`client.ack("${id}")`);
    while ((await relais.counts('ann')).unread) await one.waitForTimeout(20);
    // The last one may have come into one tab just before the click in the other.
    const [first, second] = [(await one.seen()).length, (await two.seen()).length];
    const { ledger } = await relais.call('GET', `/admin/notifications/${id}`);
    const lines = ledger.map((/** @type {any} */ { user, acknowledged }) => [user, !!acknowledged]).sort();
    assert.deepEqual(lines, [['ann', true], ['bob', false]]);
    await relais.emit('ann', [2]);
    await agree(relais, 'ann', [one], [...Array(first).fill(1), 2]);
    await agree(relais, 'ann', [two], [...Array(second).fill(1), 2]);
  });

  it('a server with another database is a gap, and the counts are its own', limit, async (t) => {
    const { relais, device } = await application(t);
    const page = await (await device('ann')).open();
    await page.open();
    await relais.emit('ann', numbers(1, 3));
    await agree(relais, 'ann', [page], numbers(1, 3));
    await relais.kill();
    await relais.restartEmpty();
    await page.until('gaps.length === 1');
    await page.until('client.counts.all === 0');
    await relais.emit('ann', [4]);
    await agree(relais, 'ann', [page], numbers(1, 4));
  });

  it('what came while a device was offline is shown when it is back, and what was acknowledged there is told', limit, async (t) => {
    const { relais, device } = await application(t);
    const { context, open } = await device('ann');
    const { url, cut, mend } = await network(t, relais.url);
    const [one, two] = [await open({ url }), await open({ url })];
    await Promise.all([one.open(), two.open()]);
    await relais.emit('ann', numbers(1, 3), true);
    await agree(relais, 'ann', [one, two], numbers(1, 3));
    await context.setOffline(true); // Leaves alone what is open, but tells the page.
    cut();
    for (const page of [one, two]) await page.until('client.state !== "open"');
    await relais.emit('team', numbers(4, 9));
    await two.evaluate('client.ackAll()');
    await one.until('client.counts.unread === 0');
    mend();
    await context.setOffline(false);
    while ((await relais.counts('ann')).unacknowledged) await one.waitForTimeout(20);
    await agree(relais, 'ann', [one, two], numbers(1, 9));
  });

  it('a server that is killed or stopped, and restarted, costs no message and repeats none', limit, async (t) => {
    const { relais, device } = await application(t);
    const [ann, bob] = [await (await device('ann')).open(), await (await device('bob')).open()];
    await Promise.all([ann.open(), bob.open()]);
    let sent = 0;
    for (let round = 1; round <= 3; round += 1) {
      // The last ones may be stored and not sent yet when the server dies.
      await relais.emit('team', numbers(sent + 1, sent + 5), true);
      sent += 5;
      await (round === 2 ? relais.stop() : relais.kill());
      await ann.until('client.state !== "open"');
      await ann.evaluate('client.ackAll()'); // It knows some, and the server hears of it later.
      await relais.restart();
      await relais.emit('team', [(sent += 1)]);
      await Promise.all([ann, bob].map((page) => page.until(`seen.length >= ${sent}`)));
    }
    await ann.evaluate('client.ackAll()');
    while ((await relais.counts('ann')).unread) await ann.waitForTimeout(20);
    await agree(relais, 'ann', [ann], numbers(1, sent));
    await agree(relais, 'bob', [bob], numbers(1, sent));
  });

  for (const [transport, upgrades] of /** @type {const} */ ([['websocket', true], ['poll', false]])) {
    it(`behind a proxy that holds answers back, ${transport} takes over`, limit, async (t) => {
      const { relais, device } = await application(t);
      const url = await bufferingProxy(t, relais.url, upgrades);
      const { open } = await device('ann');
      const page = await open({ url, patience: upgrades ? '5000' : '3000' });
      await page.open();
      assert.equal((await page.states()).at(-1).transport, transport);
      await relais.emit('team', numbers(1, 5), true);
      await agree(relais, 'ann', [page], numbers(1, 5));
      await page.evaluate('client.ackAll()');
      while ((await relais.counts('ann')).unread) await page.waitForTimeout(20);
      await relais.kill();
      await page.until('client.state !== "open"');
      await relais.restart();
      await relais.emit('ann', numbers(6, 8));
      await agree(relais, 'ann', [page], numbers(1, 8));
      assert((await page.states()).every((state) => state.transport !== 'poll' || transport === 'poll'));
    });
  }

  it('a token is renewed on the open link before it expires; without another one the client is closed', limit, async (t) => {
    const { relais, device } = await application(t);
    const renewed = await (await device('ann')).open({ ttl: '12s' });
    const { ticket } = await relais.ticket('bob', '6s');
    const expired = await (await device('bob')).open({ ticket });
    await Promise.all([renewed.open(), expired.open()]);
    const { links } = await relais.call('GET', '/admin/notification-links');
    await relais.emit('team', [1]);
    await expired.until('client.state === "closed"');
    assert.equal((await expired.states()).at(-1).reason, 'expired');
    await renewed.until('asked === 2');
    await renewed.until('Date.now() > expires + 2_000'); // The first ticket has expired, and the server would have ended the link.
    await relais.emit('ann', [2], true);
    await agree(relais, 'ann', [renewed], [1, 2]);
    assert.deepEqual((await renewed.states()).map(({ state }) => state).filter((state) => state !== 'connecting'), ['open']);
    const still = (await relais.call('GET', '/admin/notification-links')).links;
    assert.deepEqual(still, links.filter((/** @type {any} */ { user }) => user === 'ann'));
  });

  it('in the demo, each user sees at once what the other does', limit, async (t) => {
    const url = await demo(t);
    const context = await (await browser()).newContext({ viewport: { width: 1100, height: 900 } });
    t.after(() => context.close());
    const page = await context.newPage();
    /** @type {string[]} */
    const errors = [];
    page.on('pageerror', (error) => errors.push(String(error)));
    page.on('console', (entry) => entry.type() === 'error' && errors.push(entry.text()));
    await page.goto(`${url}/demo`);
    const [ann, bob] = [page.getByRole('region', { name: 'ann' }), page.getByRole('region', { name: 'bob' })];
    for (const user of [ann, bob]) await user.getByText('connected (sse)').waitFor();
    /** @param {import('playwright-core').Locator} user @param {string} to @param {string} text */
    const send = async (user, to, text) => {
      await user.getByLabel('To').selectOption(to);
      await user.getByLabel('Message', { exact: true }).fill(text);
      await user.getByRole('button', { name: 'Send' }).click();
    };
    await send(ann, 'team', 'Standup at ten');
    for (const user of [ann, bob]) await user.locator('.received').getByText('Standup at ten').waitFor();
    await bob.getByRole('button', { name: 'Notifications, 1 unread notification' }).waitFor();
    await bob.getByRole('button', { name: 'Acknowledge' }).click();
    await ann.locator('.sent').getByText(/bob acknowledged at/).waitFor();
    await bob.getByRole('button', { name: 'Disconnect' }).click();
    await bob.getByText('disconnected').waitFor();
    await send(ann, 'bob', '<b>While you were out</b>');
    await ann.locator('.sent').getByText('bob: not delivered yet').waitFor();
    await bob.getByRole('button', { name: 'Connect', exact: true }).click();
    await bob.locator('.received').getByText('<b>While you were out</b>').waitFor();
    assert.equal(await bob.locator('.received li').count(), 2);
    await picture(page, 'demo');
    await page.emulateMedia({ colorScheme: 'dark' });
    await picture(page, 'demo-dark');
    assert.deepEqual(errors, []);
  });
});
