/** How long, how often and how many: every number that the library decides by. Times are in milliseconds. */

/** A call to the server may take this long. */
export const DEADLINE = 30_000;
/** A token that is good for less is not worth a request. */
export const SHORT = 5_000;
/** The token of a link is renewed after this part of its time, at least this and at most that. */
export const RENEWAL = 0.9;
export const RENEWAL_AT_LEAST = 10_000;
/** Timers that are set for longer than 24 days fire at once. */
export const RENEWAL_AT_MOST = 86_400_000;

/** Silence that means a link is dead. Streams have a heartbeat every 25 s, and a poll is answered after 30 s. */
export const SILENCE = 45_000;
/** A link that lives for less does not count as a success, or a server that closes at once would be called at once. */
export const SHORT_LIFE = 5_000;
/** A link that has been quiet for this long is not trusted when the page comes back. */
export const QUIET = 20_000;
/** After this long on another transport than the first, the first has another chance. */
export const SECOND_CHANCE = 600_000;
/** Connections that fail say little about the transport: the server may be away for all of them. */
export const MISSES = 3;
/** More characters than this without an end of line are not a stream of events. */
export const LINE = 10_000_000;
/** The pause after the first failure is twice this, and twice as long after each other one, up to the longest. */
export const PAUSE = 500;
export const LONGEST_PAUSE = 30_000;

/** How often a tab in sight asks whether the leader is there, and how long it waits for the answer. */
export const ASK = 15_000;
export const ANSWER = 5_000;

/** Counts from the server may include what is still on its way here: an event within this time puts them in doubt. */
export const SETTLE = 2_000;
/** A moment that nothing is close to. */
export const LONG_AGO = 1;
/** Messages expire without an event, so the counts are taken again every now and then. */
export const OFTEN = 3_600_000;
/** What the server did not answer is tried again after this. */
export const RETRY = 10_000;

/** How many acknowledgements go in one call, and how many wait at most. The server asks again for lost ones. */
export const CHUNK = 200;
export const WAITING = 1_000;
/** How many messages are remembered. */
export const REMEMBERED = 1_000;
