/** A consumer: submits a task, shows how it goes, and prints its result. */

import { Client, RelaisError } from '@relais/sdk';

const client = new Client({
  url: process.env.RELAIS_URL ?? 'http://127.0.0.1:8080',
  clientId: process.env.RELAIS_CLIENT ?? '',
  clientSecret: process.env.RELAIS_SECRET ?? '',
});

const pixels = [[0, 0, 200, 200], [0, 0, 200, 200]];
try {
  const { taskId, taskPosition } = await client.submit('resize', { pixels, factor: 2 });
  console.error(`submitted ${taskId}, number ${taskPosition} in the queue`);
  for await (const { task } of client.stream('resize', taskId, { signal: AbortSignal.timeout(60_000) })) {
    console.error(`${task.status} ${task.progress ?? 0} %`);
    if (task.status === 'SUCCESS') console.log(JSON.stringify(task.response));
    if (task.status === 'FAILURE') console.error(task.errorMessage);
  }
} catch (error) {
  if (!(error instanceof RelaisError)) throw error;
  console.error(`refused: ${error.description}`, error.number, error.details); // e.g. 429001: the service is full
  process.exitCode = 1;
}
