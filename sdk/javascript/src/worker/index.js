/** The worker's side of Relais, for Node: over HTTP, or over RabbitMQ. */

export { RelaisError } from '../error.js';
export { Failure, Interrupted, TryAgain } from './outcomes.js';
export { Worker } from './worker.js';
