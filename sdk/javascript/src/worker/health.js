/** Says to whoever runs the process whether it is alive and whether it can work. */

import { createServer } from 'node:http';

/**
 * Serves `/livez`, which answers as long as the process does, and `/readyz`, which answers 200 while it can take tasks.
 *
 * @param {import('../../types/worker.js').HealthOptions} where
 * @param {() => boolean} isReady
 * @returns {Promise<import('node:http').Server>}
 */
export function serveHealth({ port, host }, isReady) {
  const server = createServer((request, response) => {
    const path = (request.url ?? '').replace(/\?.*$/, '');
    const ready = isReady();
    const answers = new Map([['/livez', true], ['/readyz', ready]]);
    const good = answers.get(path);
    const status = good === undefined ? 404 : good ? 200 : 503;
    const text = good === undefined ? 'there is only /livez and /readyz' : good ? 'ok' : 'not ready';
    response.writeHead(status, { 'Content-Type': 'text/plain; charset=utf-8' }).end(`${text}\n`);
  });
  return new Promise((resolve, reject) => {
    server.once('error', reject);
    server.listen(port, host, () => {
      server.off('error', reject);
      resolve(server);
    });
  });
}
