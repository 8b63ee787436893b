/** Calls to the server: address, token, deadline, envelope. */

/**
 * @typedef {object} Call
 * @property {unknown} [body] becomes JSON, and the call a POST
 * @property {string} [method] another one
 * @property {Record<string, string> | undefined} [headers]
 * @property {AbortSignal} [signal] for streams; other calls have a deadline
 * @property {string} [token] this one, and no other
 *
 * @typedef {ReturnType<typeof httpOf>} Http
 */

/**
 * @param {string} url
 * @param {ReturnType<typeof import('./tokens.js').tokensOf>} tokens
 * @param {import('../types/index.js').Platform} platform
 */
export function httpOf(url, tokens, { fetch }) {
  const base = `${new URL(url, globalThis.location?.href).href.replace(/\/+$/, '')}/v1/notifications`;
  /**
   * An answer that is not an error. A token that is refused is replaced once.
   *
   * @param {string} path
   * @param {Call} [call]
   * @returns {Promise<Response>}
   */
  const send = async (path, { body, method = body ? 'POST' : 'GET', headers, signal = AbortSignal.timeout(30_000), token } = {}) => {
    const used = token ?? (await tokens.get());
    const response = await fetch(base + path, {
      method,
      headers: { Authorization: `Bearer ${used}`, ...(body ? { 'Content-Type': 'application/json' } : {}), ...headers },
      body: body ? JSON.stringify(body) : null,
      cache: 'no-store',
      redirect: 'error', // Elsewhere is nobody who may see the token.
      keepalive: !!body, // What is acknowledged by a click that leaves the page arrives all the same.
      signal,
    });
    const { ok, status } = response;
    if (ok) return response;
    if (status === 401 && !token && tokens.renewable) {
      return send(path, { body, method, headers, signal, token: await tokens.get(used) });
    }
    const answer = await response.json().catch(() => {});
    throw Object.assign(new Error(answer?.error?.description ?? `HTTP ${status}`), { status });
  };
  return {
    base,
    send,
    /** The data of an answer. @param {string} path @param {unknown} [body] @returns {Promise<any>} */
    data: async (path, body) => (await (await send(path, { body })).json()).data,
  };
}
