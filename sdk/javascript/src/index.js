/** The consumer's side of Relais. Workers are in `@relais/sdk/worker`. */

export { Client } from './client.js';
export { RelaisError } from './error.js';
