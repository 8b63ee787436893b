/** The bell, as people and their keyboards and screen readers meet it. */

import assert from 'node:assert/strict';
import { after, test as nodeTest } from 'node:test';
import { message } from '../support/server.js';
import { picture, site, stop } from './support.js';

/** @param {string} name @param {(t: import('node:test').TestContext) => Promise<void>} run */
const test = (name, run) => nodeTest(name, { timeout: 60_000 }, run);

after(stop);

const DAY = 86_400_000;

/** @param {import('../support/server.js').Server} server */
function fill(server) {
  const texts = [
    ['Your access has changed', 'You can now edit the group “Physics, year 2”.', 400 * DAY],
    ['Essay returned', 'Ms Martin has marked your essay. Read her remarks and hand in the second version by Friday.', 2 * DAY],
    ['Room moved', '', 3 * 3_600_000],
    ['New message', 'Could we meet tomorrow?', 5 * 60_000],
  ];
  for (const [title, body, ago] of texts) {
    const one = message({ payload: { title, body, url: '#there' } });
    one.metadata.timestamp = new Date(Date.now() - Number(ago)).toISOString();
    server.list.push({ message: one });
  }
  server.ack([server.list[0]?.message.metadata.id ?? '']);
  return server.list.map((one) => one.message.metadata.id);
}

test('the bell says how many are unread, and opens the list', async (t) => {
  const { server, profile } = await site(t);
  fill(server);
  const page = await (await profile()).open();
  const bell = page.getByRole('button', { name: 'Notifications, 3 unread notifications' });
  assert.equal(await bell.getAttribute('aria-expanded'), 'false');
  await bell.click();
  assert.equal(await bell.getAttribute('aria-expanded'), 'true');
  const panel = page.getByRole('region', { name: 'Notifications' });
  await panel.getByRole('link').nth(3).waitFor();
  assert.deepEqual(await panel.getByRole('listitem').locator('strong').allTextContents(),
    ['New message', 'Room moved', 'Essay returned', 'Your access has changed']);
  assert.deepEqual(await panel.locator('time').allTextContents(), ['5 minutes ago', '3 hours ago', '2 days ago', 'last year']);
  assert.match(await panel.getByRole('link').first().ariaSnapshot(), /New: /);
  await picture(page, 'light');
  await panel.getByRole('button', { name: 'Mark all as read' }).click();
  await page.getByRole('button', { name: 'Notifications, no unread notifications' }).waitFor();
  await server.until(() => server.counts.unread === 0);
  assert.equal(await panel.getByText('New: ').count(), 0);
  assert.equal(await page.evaluate('document.querySelector("relais-bell").shadowRoot.activeElement?.className'), 'item read', 'the focus is not lost');
  await page.mouse.click(5, 500);
  await panel.waitFor({ state: 'hidden' });
  assert.deepEqual(page.errors, [], 'the policy of the page forbids nothing that the bell does');
});

test('the keyboard opens, walks, chooses and closes', async (t) => {
  const { server, profile } = await site(t);
  const ids = fill(server);
  const page = await (await profile()).open();
  const focused = () => page.evaluate(() => {
    const host = document.activeElement;
    const inside = host?.shadowRoot?.activeElement;
    return inside?.querySelector('strong')?.textContent ?? inside?.className ?? host?.id;
  });
  await page.locator('#before').focus();
  await page.keyboard.press('Tab');
  assert.equal(await focused(), 'bell');
  for (const key of ['Enter', ' ']) {
    await page.keyboard.press(key);
    await page.getByRole('region').getByRole('link').first().waitFor();
    await page.keyboard.press('Escape');
    await page.getByRole('region').waitFor({ state: 'hidden' });
    assert.equal(await focused(), 'bell');
  }
  await page.keyboard.press('ArrowDown');
  await page.getByRole('region').getByRole('link').first().waitFor();
  for (const [key, where] of [['ArrowDown', 'New message'], ['ArrowDown', 'Room moved'], ['End', 'Your access has changed'],
    ['ArrowDown', 'Your access has changed'], ['Home', 'New message'], ['ArrowUp', 'bell'], ['ArrowDown', 'New message']]) {
    await page.keyboard.press(String(key));
    assert.equal(await focused(), where, `after ${key}`);
  }
  server.withdraw(ids[3] ?? '');
  await page.getByText('New message').waitFor({ state: 'detached' });
  assert.equal(await focused(), 'Room moved', 'what had the focus is gone, its neighbour has it');
  await page.keyboard.press('Enter');
  await server.until(() => server.list.find(({ message }) => message.metadata.id === ids[2])?.acknowledged);
  assert.match(page.url(), /#there$/);
  await page.keyboard.press('ArrowDown');
  await page.getByRole('region').getByRole('link').first().waitFor();
  await page.locator('#after').focus();
  await page.getByRole('region').waitFor({ state: 'hidden' });
  assert.equal(await focused(), 'after', 'the focus stays where it went');
});

test('what arrives while the list is open is in it, and announced politely', async (t) => {
  const { server, profile } = await site(t);
  const page = await (await profile()).open();
  const live = page.locator('relais-bell [aria-live=polite]');
  assert.equal(await live.textContent(), '', 'the first count is no news');
  await page.getByRole('button', { name: /^Notifications/ }).click();
  await page.getByText('No notifications', { exact: true }).waitFor();
  await picture(page, 'empty');
  const id = server.emit({ payload: { title: 'One', body: 'a body' } });
  await page.getByRole('region').getByRole('button', { name: /One/ }).waitFor();
  assert.equal(await live.textContent(), '1 unread notification');
  server.replay(id, 1);
  server.emit({ payload: { title: 'Two' } });
  await page.getByText('Two').waitFor();
  assert.equal(await page.getByRole('listitem').count(), 2);
  server.ack([id]);
  await page.waitForFunction('document.querySelector("relais-bell").shadowRoot.querySelectorAll(".read").length === 1');
  server.list.push({ message: message({ payload: { title: 'Three' } }) });
  server.tell('gap', { reason: 'purged' });
  await page.getByText('Three').waitFor();
});

test('a hostile payload is text, and leads nowhere else', async (t) => {
  const { server, profile } = await site(t);
  const page = await (await profile()).open();
  await page.getByRole('button', { name: /^Notifications/ }).click();
  server.emit({ payload: { title: '<img src=x onerror=alert(1)>', body: '<b>bold</b>', url: 'javascript:alert(1)' } });
  server.emit({ payload: { title: { toString: 1 }, body: 7, url: 'data:text/html,x' } });
  server.emit({ payload: null });
  server.emit({ payload: 'text' });
  server.emit({ payload: { title: 'x'.repeat(500), url: 'https://example.org/\u0000' } });
  await page.getByText('xxx').waitFor();
  await page.getByText('<img src=x onerror=alert(1)>').waitFor();
  assert.equal(await page.locator('relais-bell img, relais-bell b').count(), 0);
  assert.equal(await page.getByRole('region').getByRole('link').count(), 1);
  const width = await page.evaluate('document.querySelector("relais-bell").shadowRoot.querySelector("[part=panel]").scrollWidth');
  assert(Number(width) <= 380);
  assert.deepEqual(page.errors, []);
});

test('long lists come in pages', async (t) => {
  const { server, profile } = await site(t);
  for (let n = 1; n <= 45; n += 1) server.list.push({ message: message({ payload: { title: `number ${n}` } }) });
  const page = await (await profile()).open();
  await page.getByRole('button', { name: /^Notifications/ }).click();
  await page.getByText('number 26', { exact: true }).waitFor();
  for (const expected of [40, 45]) {
    await page.getByRole('button', { name: 'Show more' }).click();
    await page.waitForFunction(`document.querySelector("relais-bell").shadowRoot.querySelectorAll("li").length === ${expected}`);
  }
  assert.equal(await page.getByRole('button', { name: 'Show more' }).isVisible(), false);
  assert.match(String(await page.evaluate('document.querySelector("relais-bell").shadowRoot.activeElement.textContent')), /number 5/);
});

test('a list that cannot be loaded says so', async (t) => {
  const { server, profile } = await site(t);
  const page = await (await profile()).open();
  server.fault[''] = 500;
  await page.getByRole('button', { name: /^Notifications/ }).click();
  await page.getByText('The list could not be loaded.').waitFor();
});

test('a page may show a message itself', async (t) => {
  const { server, profile } = await site(t);
  const id = server.emit({ payload: { title: 'One', url: '/elsewhere' } });
  const page = await (await profile()).open();
  await page.evaluate(() => addEventListener('relais-select', (event) => {
    event.preventDefault();
    document.title = /** @type {CustomEvent} */ (event).detail.metadata.id;
  }));
  await page.getByRole('button', { name: /^Notifications/ }).click();
  await page.getByRole('link', { name: /One/ }).click();
  await page.waitForFunction(`document.title === "${id}"`);
  assert.doesNotMatch(page.url(), /elsewhere/);
});

test('an acknowledgement by a click that leaves the page arrives', async (t) => {
  const { server, profile } = await site(t);
  server.emit({ payload: { title: 'One', url: '/elsewhere' } });
  const page = await (await profile()).open();
  await page.getByRole('button', { name: /^Notifications/ }).click();
  await page.getByRole('link', { name: /One/ }).click();
  await page.waitForURL(/elsewhere/);
  await server.until(() => server.counts.unread === 0);
});

test('in French, dark, on a phone', async (t) => {
  const { server, profile } = await site(t);
  fill(server);
  const page = await (await profile({ colorScheme: 'dark', viewport: { width: 360, height: 640 } })).open({ lang: 'fr-FR' });
  await page.getByRole('button', { name: 'Notifications, 3 notifications non lues' }).click();
  await page.getByText('il y a 5 minutes').waitFor();
  await page.getByText('avant-hier').waitFor();
  await page.getByRole('button', { name: 'Tout marquer comme lu' }).waitFor();
  await picture(page, 'french-dark-phone');
  const box = await page.getByRole('region').boundingBox();
  assert(box && box.x >= 0 && box.x + box.width <= 360, JSON.stringify(box));
  const wide = await (await profile({ colorScheme: 'dark' })).open({ html: '<div lang="fr"><relais-bell lang="en"></relais-bell></div>' });
  await wide.getByRole('button', { name: /unread/ }).click();
  await wide.getByText('5 minutes ago').waitFor();
  await picture(wide, 'dark');
});

test('colours of the page and forced colours', async (t) => {
  const { server, profile } = await site(t);
  fill(server);
  const page = await (await profile({ forcedColors: 'active' })).open();
  await page.getByRole('button', { name: /unread/ }).click();
  await page.getByText('5 minutes ago').waitFor();
  await picture(page, 'forced-colours');
  const own = await (await profile()).open();
  await own.evaluate(() => {
    const { style } = /** @type {HTMLElement} */ (document.querySelector('relais-bell'));
    style.setProperty('--relais-bell-background', 'rgb(255, 250, 240)');
    style.setProperty('--relais-bell-accent', 'rgb(160, 30, 30)');
  });
  await own.getByRole('button', { name: /unread/ }).click();
  await own.getByText('5 minutes ago').waitFor();
  await picture(own, 'own-colours');
  const colour = await own.getByRole('region').evaluate((panel) => getComputedStyle(panel).backgroundColor);
  assert.equal(colour, 'rgb(255, 250, 240)');
});

test('the element connects by itself, and lets go when it is removed', async (t) => {
  const { server, profile } = await site(t);
  server.emit({ payload: { title: 'One' } });
  const html = `<relais-bell src="${server.url}" token="ticket"></relais-bell>`;
  const page = await (await profile()).open({ alone: '', html });
  await page.getByRole('button', { name: 'Notifications, 1 unread notification' }).waitFor();
  await server.until(() => server.links.size === 2);
  await page.evaluate(() => document.querySelector('relais-bell')?.remove());
  await server.until(() => server.links.size === 1);
});

test('real tabs share one link, and hand it over', async (t) => {
  const { server, profile } = await site(t);
  const { open } = await profile();
  const [first, second, third] = [await open(), await open(), await open()];
  assert.equal(server.to('stream').length, 1);
  /** @param {import('playwright-core').Page} page @param {string} id */
  const sees = (page, id) => page.waitForFunction(`seen.at(-1) === "${id}"`);
  const one = server.emit();
  for (const page of [first, second, third]) await sees(page, one);
  await first.close();
  const two = server.emit();
  for (const page of [second, third]) await sees(page, two);
  await second.reload();
  await second.waitForFunction('window.client?.state === "open"');
  const four = server.emit({ ack: true });
  for (const page of [second, third]) await sees(page, four);
  assert.deepEqual(await third.evaluate('seen'), [one, two, four]);
  await third.evaluate(`client.ack("${four}")`);
  await second.waitForFunction('client.counts.unacknowledged === 0');
  await server.until(() => server.counts.unacknowledged === 0);
  assert.equal(server.links.size, 1);
});

for (const [name, fault] of /** @type {const} */ ([['websocket', { stream: 'hold' }], ['poll', { stream: 'hold', socket: 'hold' }]])) {
  test(`in a real browser, ${name} takes over where the others are held back`, async (t) => {
    const { server, profile } = await site(t);
    server.fault = { ...fault };
    const page = await (await profile()).open({ patience: '300' });
    assert.equal(await page.evaluate('transport'), name);
    const id = server.emit();
    await page.waitForFunction(`seen.at(-1) === "${id}"`);
    assert.deepEqual(page.errors.filter((error) => !/WebSocket/.test(error)), []);
  });
}
