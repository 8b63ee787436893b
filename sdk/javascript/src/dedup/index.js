/** Processing a message once, for Node: a delivery that comes again within a window does nothing. */

export { ClaimExpired } from './model.js';
export { PostgresDedup } from './postgres.js';
export { RedisDedup } from './redis.js';
