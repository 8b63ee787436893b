/** The same as a program of its own. */

import { Worker } from '@relais/sdk/worker';
import resize from './resize.js';

// The rest is in the environment: RELAIS_URL, RELAIS_CLIENT and RELAIS_SECRET, or RELAIS_BROKER_URL.
const worker = new Worker({ service: 'resize' });
await worker.main(resize); // SIGTERM: finishes what it has, or gives it back, and exits 0.
