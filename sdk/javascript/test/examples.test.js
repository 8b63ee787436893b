/** The examples run, and the README shows them as they are. */

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { Vhost } from './support/broker.js';
import { ended, environment, Program } from './support/process.js';
import { Server } from './support/server.js';
import { eventually } from './support/worker.js';

const root = fileURLToPath(new URL('..', import.meta.url));
const readme = readFileSync(`${root}README.md`, 'utf8');
/** @param {string} language */
const blocks = (language) => [...readme.matchAll(new RegExp(`^\`\`\`${language}\n(.*?)^\`\`\``, 'gms'))].map(([, text]) => text);

/** @type {Server} */
let server;
/** @type {Vhost} */
let vhost;
const env = { RELAIS_URL: '', RELAIS_CLIENT: 'me', RELAIS_SECRET: 'hush' };
const ends = /** @type {(() => Promise<void>)[]} */ ([]);
before(async () => {
  vhost = await Vhost.create({ after: (end) => ends.push(end) });
  server = await Server.start('--broker', vhost.url.href);
  ends.unshift(() => server.close());
  env.RELAIS_URL = server.url;
});
after(async () => {
  for (const end of ends) await end();
});

/** @param {'builtin' | 'rabbitmq'} transport */
const declare = (transport) => server.declare({
  services: [{ serviceName: 'resize', transport }],
  clients: [{ clientId: 'me', clientSecret: 'hush' }],
  authorizations: [{ clientId: 'me', serviceName: 'resize', roles: ['consume', 'work'] }],
});

/** Submits with the example, and sees that it gets what it should. */
async function submit() {
  const consumer = new Program('examples/submit.js', [], env);
  assert.equal(await consumer.end(), 0, consumer.output);
  assert.match(consumer.output, /^submitted [0-9a-f-]{36}, number 1 in the queue$/m);
  assert.match(consumer.output, /^SUCCESS 100 %$/m);
  assert.match(consumer.output, /^{"pixels":\[\[0,200\]\]}$/m);
}

test('the README shows the examples as they are', () => {
  const shown = blocks('js');
  for (const name of ['resize', 'worker', 'submit', 'terms', 'notify', 'once']) {
    assert(shown.includes(readFileSync(`${root}examples/${name}.js`, 'utf8')), `README.md shows another ${name}.js`);
  }
});

test('the program of the README does what its consumer submits', async (t) => {
  await declare('builtin');
  const worker = new Program('examples/worker.js', [], env);
  t.after(() => worker.signal('SIGKILL'));
  await submit();
  const consumer = new Program('examples/terms.js', [], env);
  assert.equal(await consumer.end(), 0, consumer.output);
  assert.equal(consumer.output, 'true true\nSUCCESS\ntrue\nSUCCESS');
  worker.signal('SIGTERM');
  assert.equal(await worker.end(), 0, worker.output);
});

test('the emitter of the README sends notifications', async () => {
  const notifications = { emit: ['*'], audience: ['*'], ticket: true };
  await server.declare({ clients: [{ clientId: 'me', clientSecret: 'hush', notifications }] });
  const emitter = new Program('examples/notify.js', [], env);
  assert.equal(await emitter.end(), 0, emitter.output);
  assert.equal(emitter.output, 'true\ntrue\n0');
});

test('the commands of the README do it too, over HTTP and over RabbitMQ', async (t) => {
  const commands = blocks('console').map((block) => block?.replaceAll(/^\$ (npm install .*\n)?/gm, '') ?? '');
  assert.equal(commands.length, 2);
  for (const [command, transport, url] of /** @type {const} */ ([
    [commands[0], 'builtin', server.url], [commands[1], 'rabbitmq', vhost.url.href],
  ])) {
    await declare(transport);
    const line = command?.replace(/(RELAIS_(?:BROKER_)?URL)=\S+/, `$1='${url}'`)
      .replace('npx relais-worker', `exec '${process.execPath}' bin/relais-worker.js`);
    const worker = spawn('/bin/sh', ['-ec', line ?? ''], { cwd: root, env: environment(), stdio: 'inherit' });
    t.after(() => worker.kill('SIGKILL'));
    await submit();
    worker.kill('SIGTERM');
    assert.equal(await ended(worker), 0);
    await eventually('nobody consumes any more', async () => {
      return transport === 'builtin' || (await vhost.count('resize-in')).consumers === 0;
    });
  }
});

test('an example that is refused says why', async () => {
  const consumer = new Program('examples/submit.js', [], { ...env, RELAIS_SECRET: 'wrong' });
  assert.equal(await consumer.end(), 1);
  assert.match(consumer.output, /refused: Forbidden\. 403001/);
});
