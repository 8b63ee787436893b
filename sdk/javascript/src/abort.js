/** Listening to signals that many calls may share. */

/**
 * Calls `listener` when the signal is aborted, at once if it is; what comes back ends that.
 *
 * @param {AbortSignal | undefined} signal
 * @param {() => void} listener
 * @returns {() => void}
 */
export function onAbort(signal, listener) {
  if (signal?.aborted) listener();
  if (!signal || signal.aborted) return () => {};
  // Node takes more than ten calls with the same signal for a leak, and says so.
  globalThis.process?.getBuiltinModule?.('node:events')?.setMaxListeners(0, signal);
  signal.addEventListener('abort', listener, { once: true });
  return () => signal.removeEventListener('abort', listener);
}
