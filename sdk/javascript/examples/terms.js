/** On what terms a task is done: when, how urgently, how often, and only once. */

import { Client } from '@relais/sdk';

const client = new Client({
  url: process.env.RELAIS_URL ?? 'http://127.0.0.1:8080',
  clientId: process.env.RELAIS_CLIENT ?? '',
  clientSecret: process.env.RELAIS_SECRET ?? '',
});

const body = { pixels: [[0, 0, 200, 200], [0, 0, 200, 200]], factor: 2 };
const later = await client.submit('resize', body, {
  delay: 500, // Durations are milliseconds, or text like '10m'. A date: scheduledDate: new Date(…).
  priority: 7, // From 0 to 9; 4 is usual.
  timeout: '5m', // For each attempt.
  expiresAfter: '2h', // If no worker has begun it by then, it fails.
  retry: { limit: 5, base: '10s', factor: 3, cap: '1h', jitter: 0.2 }, // Or 'classic', or 'none'.
  uniqueKey: 'album 7',
  uniqueFor: '10m',
});
const again = await client.submit('resize', body, { uniqueKey: 'album 7' });
console.log(again.duplicate, again.taskId === later.taskId);
console.log((await client.wait('resize', later.taskId)).status);

// From any end, with all its retries anew; one that waits for its time is done now.
console.log((await client.retry('resize', later.taskId)).taskId === later.taskId);
console.log((await client.wait('resize', later.taskId)).status);
