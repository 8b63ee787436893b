/** Speaks TLS before a broker, with a certificate that nobody trusts but who is given it. */

import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createServer } from 'node:tls';

/**
 * @param {import('node:test').TestContext} t
 * @param {URL} target
 * @returns {Promise<{ url: string, ca: Buffer }>} the broker's address behind TLS, and whom to trust
 */
export async function speakTls(t, target) {
  const { key, cert } = certificate();
  /** @type {Set<import('node:net').Socket>} */
  const sockets = new Set();
  const server = createServer({ key, cert }, (near) => {
    const far = connect(Number(target.port), target.hostname);
    for (const [socket, other] of [[near, far], [far, near]]) {
      socket?.on('error', () => {}).on('close', () => other?.destroy());
      if (socket) sockets.add(socket);
    }
    near.pipe(far).pipe(near);
  });
  t.after(() => {
    server.close();
    for (const socket of sockets) socket.destroy();
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = /** @type {import('node:net').AddressInfo} */ (server.address());
  const url = target.href.replace('amqp:', 'amqps:').replace(target.host, `127.0.0.1:${port}`);
  return { url, ca: cert };
}

function certificate() {
  const folder = mkdtempSync(join(tmpdir(), 'relais-sdk-'));
  const [key, cert] = [join(folder, 'key.pem'), join(folder, 'ca.pem')];
  const kind = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '2'];
  const name = ['-subj', '/CN=relais test', '-addext', 'subjectAltName=IP:127.0.0.1'];
  execFileSync('openssl', ['req', '-x509', ...kind, ...name, '-keyout', key, '-out', cert], { stdio: 'ignore' });
  const made = { key: readFileSync(key), cert: readFileSync(cert) };
  rmSync(folder, { recursive: true });
  return made;
}
