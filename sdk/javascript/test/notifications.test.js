/** Notifications, audiences and tickets, against a real server. */

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Client, RelaisError } from '@relais/sdk';
import { eventually } from './support/worker.js';
import { Proxy } from './support/proxy.js';
import { Server } from './support/server.js';

/** @type {Server} */
let server;
before(async () => (server = await Server.start()));
after(() => server.close());

/** @param {number | undefined} number */
const refused = (number) => (/** @type {unknown} */ error) => {
  assert(error instanceof RelaisError, String(error));
  assert.equal(error.number, number, error.message);
  return true;
};

/**
 * A client that may do everything with notifications.
 *
 * @param {string} clientId
 * @param {object} [notifications]
 */
async function emitter(clientId, notifications = { emit: ['*'], audience: ['*'], ticket: ['*'] }) {
  const credentials = { clientId, clientSecret: 'hush' };
  await server.declare({ clients: [{ ...credentials, notifications }] });
  return { client: new Client({ url: server.url, ...credentials }), credentials };
}

/** @param {string[]} targets */
const to = (...targets) => ({ routing: { audience: { type: 'USER', targets } } });

/**
 * What a user has, by a ticket.
 *
 * @param {Client} client
 * @param {string} user
 * @returns {Promise<any[]>}
 */
async function seen(client, user) {
  const { ticket, expires } = await client.issueTicket({ user, ttl: '5m' });
  assert(Date.parse(expires) > Date.now() && Date.parse(expires) < Date.now() + 6 * 60_000, expires);
  const answer = await fetch(`${server.url}/v1/notifications`, { headers: { Authorization: `Bearer ${ticket}` } });
  return (await answer.json()).data.notifications.map((/** @type {any} */ { message }) => message);
}

test('notifications reach who they are for, one or many in a call', async () => {
  const { client } = await emitter('shop');
  const id = await client.notify({ metadata: { type: 'SYSTEM' }, payload: { n: 1 }, ...to('ann') });
  const ids = await client.notify([{ payload: 2, ...to('ann', 'bob') }, to('bob')]);
  assert.equal(ids.length, 2);
  const [second, first] = await seen(client, 'ann');
  assert.deepEqual([first.metadata.id, first.metadata.type, first.metadata.emitter], [id, 'SYSTEM', 'shop']);
  assert.deepEqual([first.payload, second.metadata.id, second.payload], [{ n: 1 }, ids[0], 2]);
  assert.deepEqual((await seen(client, 'bob')).map(({ payload }) => payload), [null, 2]);
});

test('an idempotency key stores a message once, whether it is given or made up', async (t) => {
  const { client, credentials } = await emitter('once');
  const first = await client.notify({ payload: 1, ...to('cem') }, { idempotencyKey: 'k' });
  assert.equal(await client.notify({ payload: 1, ...to('cem') }, { idempotencyKey: 'k' }), first);
  await assert.rejects(client.notify({ payload: 2, ...to('cem') }, { idempotencyKey: 'k' }), RelaisError);

  const proxy = await Proxy.start(t, server.url);
  const shaky = new Client({ url: proxy.url, ...credentials });
  proxy.loseNextAnswer();
  const id = await shaky.notify({ payload: 3, ...to('cem') });
  assert.equal(proxy.lost, 1);
  proxy.loseNextAnswer();
  await assert.rejects(shaky.notify({ payload: 4, ...to('cem') }, { idempotencyKey: false }), refused(undefined));
  assert.deepEqual((await seen(client, 'cem')).map(({ payload }) => payload), [4, 3, 1]);
  assert.equal((await seen(client, 'cem'))[1].metadata.id, id);
});

test('large numbers of a payload keep their digits', async () => {
  const { credentials } = await emitter('exact');
  const stringify = (/** @type {string} */ text) => text;
  const client = new Client({ url: server.url, ...credentials, stringify });
  const id = await client.notify({ payload: '{"n":12345678901234567890}', ...to('dan') });
  const { ticket } = await client.issueTicket({ user: 'dan' });
  const list = await (await fetch(`${server.url}/v1/notifications?ticket=${ticket}`)).text();
  assert(list.includes(id) && list.includes('12345678901234567890'), list);
  await assert.rejects(new Client({ url: server.url, ...credentials }).notify({ payload: 1n, ...to('dan') }), TypeError);
});

test('a notification is withdrawn or replaced, and only by its client', async () => {
  const { client } = await emitter('owner');
  const { client: other } = await emitter('other');
  const [first, second] = await client.notify([{ payload: 1, ...to('eve') }, { payload: 2, ...to('eve') }]);
  assert(first && second);
  await assert.rejects(other.withdrawNotification(first), refused(404013));
  await client.withdrawNotification(first);
  const third = await client.replaceNotification(second, { payload: 3, ...to('eve') });
  const list = await seen(client, 'eve');
  assert.deepEqual(list.map(({ metadata, payload }) => [metadata.id, payload]), [[third, 3]]);
  await assert.rejects(other.replaceNotification(third, { payload: 4, ...to('eve') }), refused(404013));
  await client.withdrawNotification(first);
});

test('who has not acknowledged is in the error log', async () => {
  const { client } = await emitter('strict');
  assert.deepEqual(await client.notificationErrors(), { notifications: [] });
  await client.setAudience('GROUP', 'staff', ['fay', 'gil']);
  const retry = { ack_required: true, limit: 0 };
  const routing = { audience: { type: 'GROUP', targets: ['staff'] }, retry };
  const toNobody = { ...routing, audience: { type: 'GROUP', targets: ['nobody'] } };
  await assert.rejects(client.notify({ routing: toNobody }), refused(400016));
  const id = await client.notify({ payload: 'read this', routing });
  await server.admin('POST', `/admin/notifications/${id}/ack`, { user: 'fay' });
  await eventually('it has failed', async () => (await client.notificationErrors()).notifications.length === 1);
  const { notifications: [failed] } = await client.notificationErrors({ limit: 7 });
  assert.deepEqual([failed?.message.metadata.id, failed?.status, failed?.clientId], [id, 'FAILED', 'strict']);
  assert.deepEqual(failed?.ledger?.map(({ user, awaited, acknowledged }) => [user, awaited, acknowledged !== undefined]), [
    ['gil', true, false],
    ['fay', true, true],
  ]);
});

test('members are set, added, removed and listed page by page', async () => {
  const { client } = await emitter('school');
  assert.deepEqual(await client.setAudience('GROUP', '1b', ['ann', 'bob']), { joined: 2, left: 0 });
  const part = { type: 'GROUP', target: 'a/b' };
  assert.deepEqual(await client.addToAudience('GROUP', '1b', ['bob', part]), { joined: 1, left: 0 });
  assert.deepEqual(await client.removeFromAudience('GROUP', '1b', ['ann', 'nobody']), { joined: 0, left: 1 });
  const members = [];
  for await (const member of client.audienceMembers('GROUP', '1b', { pageSize: 1 })) members.push(member);
  assert.deepEqual(members, [part, { type: 'USER', target: 'bob' }]);
  assert.deepEqual(await client.removeFromAudience('GROUP', '1b', [part]), { joined: 0, left: 1 });
  await assert.rejects(client.setAudience('GROUP', '1b', [{ type: 'GROUP', target: '1b' }]), refused(400017));
  await assert.rejects(client.addToAudience('USER', 'ann', ['bob']), refused(400017));
});

test('a client does only what it has the rights for', async () => {
  const { client } = await emitter('limited', { emit: ['GROUP'] });
  await assert.rejects(client.notify(to('ann')), refused(403001));
  await assert.rejects(client.setAudience('GROUP', '1b', []), refused(403001));
  await assert.rejects(client.issueTicket({ user: 'ann' }), refused(403001));
  await assert.rejects(client.issueTicket({ user: 'ann', ttl: 'soon' }), TypeError);
});
