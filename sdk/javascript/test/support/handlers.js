/** A handler for workers in processes of their own: it does what its body says, and tells the test through its output. */

/** @param {string} line */
const say = (line) => process.stdout.write(`${line}\n`);

/** @type {import('@relais/sdk/worker').Handler} */
export default async function act({ act }, { taskId, signal, redelivered }) {
  say(`begins ${act} ${taskId}`);
  if (act === 'reject unheard') {
    void Promise.reject(new Error('nobody hears this'));
    await new Promise((resolve) => setImmediate(resolve));
  }
  if (act === 'wait' && !redelivered) await new Promise((resolve) => signal.addEventListener('abort', resolve));
  // Never ends, whatever it is told; the timer keeps the process.
  if (act === 'hang' && !redelivered) await new Promise(() => setInterval(() => {}, 60_000));
  if (act === 'finish when stopped') await stopped;
  if (act === 'die') process.kill(process.pid, 'SIGKILL');
  if (act === 'wait') say(`interrupted ${signal.reason?.why ?? 'not'}`);
  return `${act}: done`;
}

/** @type {Promise<void>} */
const stopped = new Promise((resolve) => process.once('SIGTERM', () => resolve()));
