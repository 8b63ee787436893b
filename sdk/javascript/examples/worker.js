/** The same as a program of its own. */

import { Worker } from '@relais/sdk/worker';
import resize from './resize.js';

const worker = new Worker({
  url: process.env.RELAIS_URL ?? 'http://127.0.0.1:8080', // or amqp://… for a service on RabbitMQ
  clientId: process.env.RELAIS_CLIENT,
  clientSecret: process.env.RELAIS_SECRET,
  service: 'resize',
  concurrency: 4,
});
await worker.main(resize); // SIGTERM: finishes what it has, or gives it back, and exits 0.
