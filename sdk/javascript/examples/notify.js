/** An emitter of notifications: who belongs to an audience, a message to it, and a ticket for a web page's user. */

import { Client } from '@relais/sdk';

const client = new Client({
  url: process.env.RELAIS_URL ?? 'http://127.0.0.1:8080',
  clientId: process.env.RELAIS_CLIENT ?? '',
  clientSecret: process.env.RELAIS_SECRET ?? '',
});

await client.setAudience('GROUP', 'teachers', ['ann', 'bob']);
await client.setAudience('STRUCTURE', 'school', [{ type: 'GROUP', target: 'teachers' }]);

const audience = { type: 'STRUCTURE', targets: ['school'] };
const message = {
  payload: { title: 'Room 12 is closed today' },
  routing: { audience, retry: { ack_required: true } }, // Sent again until each member has acknowledged it.
};
const sent = await client.notify(message, { idempotencyKey: 'room-12' });
console.log((await client.notify(message, { idempotencyKey: 'room-12' })) === sent);

// The page gives it to Relais: as a bearer token, or as `?ticket=`.
const { ticket } = await client.issueTicket({ user: 'ann', ttl: '8h' });
console.log(ticket !== '');

const replaced = await client.replaceNotification(sent, { payload: { title: 'Room 12 is open' }, routing: { audience } });
await client.withdrawNotification(replaced);
console.log((await client.notificationErrors()).notifications.length);
