/** Minifies the modules, as a page's build would, and fails where one is larger than it may be. */

import { gzipSync } from 'node:zlib';
import { build } from 'esbuild';

/** In bytes: minified, and compressed, as it travels. @type {Record<string, [number, number]>} */
const LIMITS = {
  'src/index.js': [7_950, 4_300], 'src/element.js': [10_400, 4_500], 'src/push.js': [3_100, 1_650], 'src/worker.js': [1_400, 800],
};

for (const [entry, [limit, compressedLimit]] of Object.entries(LIMITS)) {
  // The element imports the library; each is weighed by itself.
  const { outputFiles } = await build({
    entryPoints: [entry], bundle: true, minify: true, format: 'esm', target: 'es2022', write: false,
    external: entry.endsWith('element.js') ? ['./index.js'] : [],
  });
  const code = outputFiles[0]?.contents ?? new Uint8Array();
  const compressed = gzipSync(code).length;
  console.log(`${entry}: minified ${code.length} bytes of ${limit}, compressed ${compressed} of ${compressedLimit}`);
  if (code.length > limit || compressed > compressedLimit) process.exitCode = 1;
}
