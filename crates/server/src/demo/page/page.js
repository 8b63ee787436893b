/** Two users in one page. Each has a client of its own; yours has one. */

import { connect } from '/demo/relais/index.js';
import '/demo/relais/element.js';

const USERS = ['ann', 'bob'];
const TARGETS = { ann: 'ann', bob: 'bob', team: 'team (ann and bob)' };

/** How often the page looks who has seen what, while somebody has not. */
const LOOK = 1_000;

const time = (text) => new Date(text).toLocaleTimeString('en-GB');

/** An element with text and children. */
function make(name, { text = '', ...properties } = {}, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(text, ...children);
  return element;
}

async function ask(path, options) {
  const response = await fetch(`/demo/${path}`, options);
  if (!response.ok) throw new Error(`The server says ${response.status}.`);
  return response.json();
}

class Panel {
  /** What was received, by id, newest first. */
  received = new Map();
  cursor;

  constructor(user) {
    this.user = user;
    const root = document.querySelector('#user').content.cloneNode(true).firstElementChild;
    this.find = (selector) => root.querySelector(selector);
    root.setAttribute('aria-label', user);
    this.find('h2').textContent = user;
    this.find('.face').textContent = user[0].toUpperCase();
    const others = Object.keys(TARGETS).filter((target) => target !== user);
    this.find('select').append(...others.map((target) => new Option(TARGETS[target], target)));
    this.find('form').onsubmit = (event) => this.send(event);
    this.find('.link').onclick = () => (this.client ? this.disconnect() : this.connect());
    document.querySelector('main').append(root);
    this.connect();
  }

  /** The whole of it: where to get a token, and what to do with messages. */
  connect() {
    const { user, cursor } = this;
    const getToken = async () => {
      const { ticket, expires } = await ask(`tickets/${user}`, { method: 'POST' });
      return { token: ticket, expires };
    };
    const client = (this.client = connect({ url: '/', user, getToken, cursor }));
    client.addEventListener('notification', ({ detail }) => this.receive(detail));
    client.addEventListener('withdrawn', ({ detail }) => this.received.delete(detail.id) && this.draw());
    client.addEventListener('acknowledged', ({ detail: { ids, all } }) => {
      for (const one of this.received.values()) {
        if (all || ids.includes(one.message.metadata.id)) one.acknowledged ??= new Date().toISOString();
      }
      this.draw();
    });
    client.addEventListener('gap', () => this.list());
    client.addEventListener('state', ({ detail: { state, transport } }) => this.say(state, transport));
    this.find('relais-bell').client = client;
    this.find('.link').textContent = 'Disconnect';
    this.say(client.state);
    if (!cursor) this.list();
  }

  disconnect() {
    this.cursor = this.client.cursor; // Goes on from here.
    this.client.close();
    this.client = undefined;
    this.find('.link').textContent = 'Connect';
  }

  say(state, transport) {
    const words = { open: `connected (${transport})`, closed: 'disconnected', connecting: 'connecting…', waiting: 'waiting…' };
    this.find('.state').textContent = words[state];
    this.find('.state').classList.toggle('open', state === 'open');
  }

  async list() {
    const { notifications } = await this.client.list({ limit: 20 });
    this.received = new Map(notifications.reverse().map((one) => [one.message.metadata.id, one]));
    this.draw();
  }

  receive(message) {
    const { id } = message.metadata;
    this.received.set(id, { ...this.received.get(id), message });
    this.draw();
    look();
  }

  draw() {
    const items = [...this.received.values()].reverse().map(({ message, acknowledged }) => {
      const { metadata: { id, emitter, timestamp }, payload, routing: { audience, retry } } = message;
      const about = [`from ${emitter}`, audience.type === 'USER' ? '' : `to ${audience.targets}`, time(timestamp),
        retry.attempts ? `sent ${retry.attempts + 1} times` : ''];
      const end = acknowledged ? make('small', { className: 'yes', text: '✓ acknowledged' })
        : make('button', { className: 'plain', text: 'Acknowledge', onclick: () => this.client?.ack(id) });
      return make('li', {}, make('div', {}, make('p', { text: String(payload?.body ?? payload?.title ?? '') }),
        make('small', { text: about.filter(Boolean).join(' · ') })), end);
    });
    show(this.find('.received'), items, 'Nothing yet.');
  }

  async send(event) {
    event.preventDefault();
    const { to, text, acknowledge } = this.find('form').elements;
    const error = this.find('.error');
    try {
      await ask('messages', {
        method: 'POST',
        headers: { 'Content-Type': 'application/json' },
        body: JSON.stringify({ from: this.user, to: to.value, text: text.value, acknowledge: acknowledge.checked }),
      });
      text.value = '';
      error.hidden = true;
      look();
    } catch (reason) {
      error.textContent = `It was not sent. ${reason.message}`;
      error.hidden = false;
    }
  }

  /** What the server's ledger says of the messages of this user. */
  drawSent(views) {
    const mine = views.filter(({ message }) => message.metadata.emitter === this.user);
    show(this.find('.sent'), mine.map(({ message, ledger }) => {
      const to = `to ${message.routing.audience.targets} · ${time(message.metadata.timestamp)}`;
      const lines = ledger.map(({ user, deliveries, acknowledged }) => make('p', {}, make('small', {
        className: acknowledged ? 'yes' : '',
        text: acknowledged ? `✓ ${user} acknowledged at ${time(acknowledged)}`
          : `${user}: ${deliveries ? `delivered ${deliveries === 1 ? 'once' : `${deliveries} times`}` : 'not delivered yet'}`,
      })));
      return make('li', {}, make('div', {}, make('p', { text: String(message.payload?.body ?? '') }),
        make('small', { text: to }), ...lines));
    }), 'Nothing yet.');
  }
}

function show(list, items, none) {
  list.replaceChildren(...(items.length ? items : [make('li', {}, make('small', { text: none }))]));
}

let looking = false;
let later;

/** Reads the ledger: now, and until all is acknowledged. */
async function look() {
  clearTimeout(later);
  if (looking) return void (later = setTimeout(look, 100));
  looking = true;
  try {
    const views = document.hidden ? [] : await ask('sent');
    if (!document.hidden) for (const panel of panels) panel.drawSent(views);
    if (document.hidden || views.some(({ status }) => status === 'OPEN')) later = setTimeout(look, LOOK);
  } catch {
    later = setTimeout(look, LOOK); // The server is away.
  }
  looking = false;
}

const panels = USERS.map((user) => new Panel(user));
look();
