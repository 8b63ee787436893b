/** Checked by the compiler, never run: the declared types are those of the code, and what users write has types. */

import { connect, type Message, type Notifications, type Page } from 'relais-browser';
import { RelaisBell } from 'relais-browser/element';
import * as elementCode from '../src/element.js';
import * as code from '../src/index.js';

export const declared: typeof import('relais-browser') = code;
export const declaredElement: InstanceType<typeof RelaisBell> = new elementCode.RelaisBell();

interface Note {
  title: string;
}

export async function use(): Promise<number> {
  const getToken = async () => ({ token: 't', expires: '2030-01-01T00:00:00Z' });
  const client: Notifications = connect({ url: '/relais', getToken, transports: ['sse', 'poll'], share: false, storage: null });
  client.addEventListener('notification', ({ detail }) => {
    const message: Message<Note> = detail;
    client.ack(message.metadata.id);
  });
  client.addEventListener('counts', ({ detail: { unread } }) => (document.title = `(${unread})`));
  client.addEventListener('state', ({ detail: { state, transport } }) => void [state === 'open', transport === 'poll']);
  client.addEventListener('withdrawn', { handleEvent: ({ detail }) => void [detail.id, detail.replacedBy] });
  // @ts-expect-error There is no such state.
  void (client.state === 'gone');
  // @ts-expect-error The counts are the server's.
  client.counts = { unread: 0, unacknowledged: 0, all: 0 };
  const page: Page<Note> = await client.list({ filter: 'unread', limit: 10 });
  const bell = document.createElement('relais-bell');
  bell.client = client;
  bell.addEventListener('relais-select', (event) => void event.detail.metadata.id);
  return page.notifications[0]?.message.payload.title.length ?? page.counts.all;
}
