/** A handler that makes images smaller: `factor` × `factor` grey pixels become one, their mean. */

import { Failure } from '@relais/sdk/worker';

/** @type {import('@relais/sdk/worker').Handler<{ pixels: number[][], factor: number }, { pixels: number[][] }>} */
export default async function resize({ pixels, factor }, { progress, signal }) {
  const [height, width] = [pixels.length, pixels[0]?.length ?? 0].map((length) => Math.floor(length / factor));
  if (!height || !width) throw new Failure('there would be nothing left', { retryable: false });
  const smaller = [];
  for (let row = 0; row < height; row += 1) {
    signal.throwIfAborted(); // Cancelled, lost or stopping: nobody waits for this result.
    const rows = pixels.slice(row * factor, (row + 1) * factor);
    smaller.push(Array.from({ length: width }, (_, column) => {
      const square = rows.flatMap((line) => line.slice(column * factor, (column + 1) * factor));
      return Math.round(square.reduce((sum, pixel) => sum + pixel, 0) / square.length);
    }));
    progress((100 * (row + 1)) / height);
    await new Promise(setImmediate); // Lets the heartbeats through.
  }
  return { pixels: smaller };
}
