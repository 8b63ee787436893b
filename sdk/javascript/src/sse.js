/** Reads server-sent events, as far as Relais sends them. */

/**
 * @param {ReadableStream<Uint8Array>} stream
 * @param {() => void} heard called whenever anything arrives, comments too
 * @returns {AsyncGenerator<{ event: string, id: string, data: string }, void, void>}
 */
export async function* events(stream, heard) {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  let rest = '';
  let fields = { event: 'message', id: '', data: '' };
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    heard();
    const lines = (rest + decoder.decode(value, { stream: true })).split(/\r\n|\n/);
    rest = lines.pop() ?? '';
    for (const line of lines) {
      if (line === '') {
        if (fields.data) yield fields;
        fields = { event: 'message', id: fields.id, data: '' };
        continue;
      }
      const colon = line.indexOf(':');
      const name = line.slice(0, colon);
      const text = line.slice(colon + 1).replace(/^ /, '');
      if (name === 'data') fields.data += fields.data ? `\n${text}` : text;
      else if (name === 'event' || name === 'id') fields[name] = text;
    }
  }
}
