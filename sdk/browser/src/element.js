/**
 * `<relais-bell>`: a bell with the number of unread messages, and the list of them.
 *
 * All that comes from a message is set as text, never as HTML, and leads only to http and https addresses.
 */

import { connect } from './index.js';
import { sheet } from './style.js';
import { words } from './words.js';

/** How many messages a page of the list has. */
const PAGE = 20;

/** @typedef {import('../types/index.js').Listed} Listed */

/**
 * An element with properties, attributes (those with a dash) and children.
 *
 * @param {string} name
 * @param {Record<string, any>} [properties]
 * @param {...(Node | string)} children
 * @returns {any}
 */
function make(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (/-|role|part/.test(key)) element.setAttribute(key, value);
    else /** @type {any} */ (element)[key] = value;
  }
  element.append(...children);
  return element;
}

/** @param {unknown} value */
const asText = (value) => (typeof value === 'string' ? value : '');

/** The address, if it is one that a message may lead to. @param {unknown} url */
function safe(url) {
  try {
    const { protocol, href } = new URL(asText(url) || 'none:', document.baseURI);
    return /^https?:$/.test(protocol) ? href : '';
  } catch {
    return '';
  }
}

export class RelaisBell extends HTMLElement {
  static observedAttributes = ['src', 'token', 'lang'];

  /** @type {import('../types/index.js').Options['getToken']} */
  #getToken;
  /** @type {import('../types/index.js').Notifications | undefined} */
  #client;
  /** Whether the client was made here. */
  #own = false;
  /** Ends what listens to the client. */
  #listening = new AbortController();
  #open = false;
  /** What the list shows, newest first. @type {Map<string, { listed: Listed, item: any }>} */
  #shown = new Map();
  /** @type {string | undefined} */
  #next;
  /** Which loading is the newest: an answer to an earlier one is too late. */
  #loading = 0;
  /** @type {ReturnType<typeof setInterval> | undefined} */
  #minute;

  #badge = make('span', { part: 'badge', 'aria-hidden': 'true', hidden: true });
  #bell = make('button', {
    type: 'button', part: 'button', className: 'bell', 'aria-expanded': 'false', 'aria-controls': 'panel',
    onclick: () => (this.#open ? this.close() : this.open()),
  });
  /** Says the count, whenever it changes. */
  #live = make('span', { className: 'live', 'aria-live': 'polite' });
  #title = make('h2', { id: 'title' });
  #all = make('button', {
    type: 'button', className: 'plain', onclick: () => {
      this.#client?.ackAll();
      if (this.#all.hidden) this.#move(1) || this.#bell.focus(); // Or the focus would be nowhere.
    },
  });
  #list = make('ul', { role: 'list' });
  #note = make('p', { role: 'status' });
  #more = make('button', { type: 'button', className: 'plain', hidden: true, onclick: () => this.#load(this.#next) });
  #panel = make('div', { id: 'panel', part: 'panel', role: 'region', 'aria-labelledby': 'title', hidden: true },
    make('header', {}, this.#title, this.#all), this.#list, this.#note, this.#more);

  constructor() {
    super();
    const root = this.attachShadow({ mode: 'open' });
    root.adoptedStyleSheets = [sheet()];
    const icon = make('span', { className: 'icon', 'aria-hidden': 'true' });
    this.#bell.append(icon, this.#badge);
    root.append(this.#bell, this.#live, this.#panel);
    root.addEventListener('keydown', (event) => this.#key(/** @type {KeyboardEvent} */ (event)));
    // The focus went elsewhere by the keyboard: what is open would only be in the way.
    this.addEventListener('focusout', ({ relatedTarget }) => {
      if (relatedTarget && relatedTarget !== this && !this.contains(/** @type {Node} */ (relatedTarget))) this.close(false);
    });
  }

  get client() {
    return this.#client;
  }

  set client(client) {
    this.#use(client, false);
  }

  get getToken() {
    return this.#getToken;
  }

  set getToken(getToken) {
    this.#getToken = getToken;
    this.#connect();
  }

  connectedCallback() {
    this.#connect();
    this.#label();
    document.addEventListener('pointerdown', this.#outside);
  }

  disconnectedCallback() {
    document.removeEventListener('pointerdown', this.#outside);
    this.close(false);
    if (this.#own) this.#use(undefined, false);
  }

  /** @param {string} name */
  attributeChangedCallback(name) {
    if (name === 'lang') this.#label();
    else if (!this.#client || this.#own) this.#connect();
  }

  /** Shows the list. */
  open() {
    if (this.#open) return;
    this.#open = true;
    this.#panel.hidden = false;
    // It opens to the side where there is room.
    const { left, right } = this.getBoundingClientRect();
    this.#panel.classList.toggle('right', left + right < document.documentElement.clientWidth);
    this.#bell.setAttribute('aria-expanded', 'true');
    this.#label();
    this.#load();
    this.#minute = setInterval(() => this.#label(), 60_000);
  }

  /** Hides it. @param {boolean} [focus] whether the bell gets the focus */
  close(focus = true) {
    if (!this.#open) return;
    this.#open = false;
    clearInterval(this.#minute);
    this.#panel.hidden = true;
    this.#bell.setAttribute('aria-expanded', 'false');
    if (focus) this.#bell.focus();
  }

  /** @param {PointerEvent} event */
  #outside = (event) => {
    if (!event.composedPath().includes(this)) this.close(false);
  };

  /** Connects, if the page has given no client, but what it takes to make one. */
  #connect() {
    const [url, token] = [this.getAttribute('src'), this.getAttribute('token')];
    const getToken = this.#getToken;
    if (!this.isConnected || (this.#client && !this.#own)) return;
    if (url === null || !(token || getToken)) return this.#own ? this.#use(undefined, false) : undefined;
    this.#use(connect({ url, ...(getToken ? { getToken } : { token: token ?? '' }) }), true);
  }

  /**
   * @param {import('../types/index.js').Notifications | undefined} client
   * @param {boolean} own
   */
  #use(client, own) {
    this.#listening.abort();
    if (this.#own) this.#client?.close();
    [this.#client, this.#own, this.#listening] = [client, own, new AbortController()];
    /** @param {string} type @param {(detail: any) => void} run */
    const on = (type, run) => client?.addEventListener(type, (event) => run(/** @type {CustomEvent} */ (event).detail), {
      signal: this.#listening.signal,
    });
    on('counts', () => this.#label());
    on('gap', () => this.#load());
    on('audiences', () => this.#load());
    on('notification', (message) => this.#open && this.#add({ message }, true));
    on('withdrawn', ({ id }) => this.#remove(id));
    on('acknowledged', ({ ids, all }) => {
      for (const [id, { listed, item }] of this.#shown) if (all || ids.includes(id)) this.#read(listed, item);
    });
    this.#label();
    this.#load();
  }

  get #words() {
    /** @type {any} */
    let node = this;
    while (node && !node.closest('[lang]')) node = node.getRootNode().host;
    return words(node?.closest('[lang]').lang || navigator.language);
  }

  /** Everything that depends on the language, the counts or the time. */
  #label() {
    const { unread = 0 } = this.#client?.counts ?? {};
    const say = this.#words;
    this.#badge.hidden = !unread;
    this.#badge.textContent = unread > 99 ? '99+' : unread;
    this.#bell.setAttribute('aria-label', say.bell(unread));
    this.#bell.title = say.title;
    const live = say.unread(unread);
    // The first count is on the bell already, and not news.
    if (this.#client?.state === 'open' && this.#live.textContent !== live) this.#live.textContent = live;
    this.#title.textContent = say.title;
    this.#all.textContent = say.all;
    this.#all.hidden = !unread;
    this.#more.textContent = say.more;
    for (const { listed, item } of this.#shown.values()) this.#write(listed, item);
    if (!this.#note.hidden && !this.#shown.size && this.#note.dataset.say) this.#say(this.#note.dataset.say);
  }

  /** A line instead of the list: nothing there, loading, or failed. @param {string} [what] */
  #say(what) {
    this.#note.hidden = !what;
    this.#note.dataset.say = what ?? '';
    this.#note.textContent = what ? /** @type {any} */ (this.#words)[what] : '';
  }

  /** Reads the list, or its next page. @param {string} [before] */
  async #load(before) {
    const client = this.#client;
    if (!client || !this.#open) return;
    const mine = (this.#loading += 1);
    if (!this.#shown.size) this.#say('loading');
    try {
      const { notifications, next } = await client.list({ limit: PAGE, ...(before && { before }) });
      if (mine !== this.#loading || client !== this.#client) return;
      const focused = this.#focused();
      if (!before) {
        this.#shown.clear();
        this.#list.replaceChildren();
      }
      for (const listed of notifications) this.#add(listed);
      this.#next = next;
      this.#more.hidden = !next;
      this.#say(this.#shown.size ? undefined : 'empty');
      if (before) this.#shown.get(notifications[0]?.message.metadata.id ?? '')?.item.focus();
      else if (focused) (this.#shown.get(focused)?.item ?? this.#bell).focus();
    } catch {
      if (mine === this.#loading) this.#say('failed');
    }
  }

  /** The id of the message that has the focus. */
  #focused() {
    const active = this.shadowRoot?.activeElement;
    return [...this.#shown].find(([, { item }]) => item === active)?.[0];
  }

  /** @param {Listed} listed @param {boolean} [first] */
  #add(listed, first) {
    const { metadata: { id }, payload } = listed.message;
    if (this.#shown.has(id)) return; // A replay.
    const href = safe(payload?.url);
    const item = make(href ? 'a' : 'button', {
      ...(href ? { href } : { type: 'button' }), part: 'item', className: 'item',
      onclick: (/** @type {Event} */ event) => {
        this.#client?.ack(id);
        // A page that shows the message itself prevents the browser from going there.
        const detail = listed.message;
        const select = new CustomEvent('relais-select', { detail, cancelable: true, bubbles: true, composed: true });
        if (!this.dispatchEvent(select)) event.preventDefault();
        if (href) this.close();
      },
    }, make('span', { className: 'dot' }), make('strong'), make('span', { className: 'body' }), make('time'));
    this.#shown.set(id, { listed, item });
    this.#list[first ? 'prepend' : 'append'](make('li', {}, item));
    this.#write(listed, item);
    this.#say();
  }

  /** @param {Listed} listed @param {any} item */
  #write({ message: { metadata, payload }, acknowledged }, item) {
    const say = this.#words;
    const [dot, title, body, time] = item.children;
    dot.textContent = acknowledged ? '' : say.new;
    item.classList.toggle('read', !!acknowledged);
    title.textContent = asText(payload?.title) || asText(metadata.topic) || say.untitled;
    body.textContent = asText(payload?.body);
    const date = new Date(metadata.timestamp);
    const valid = date.getTime() > 0;
    time.dateTime = valid ? date.toISOString() : '';
    time.title = valid ? say.date(date) : '';
    time.textContent = valid ? say.ago((date.getTime() - Date.now()) / 1000) : '';
  }

  /** @param {Listed} listed @param {any} item */
  #read(listed, item) {
    listed.acknowledged ??= new Date().toISOString();
    this.#write(listed, item);
  }

  /** @param {string} id */
  #remove(id) {
    const { item } = this.#shown.get(id) ?? {};
    if (!item) return;
    if (this.#focused() === id) this.#move(1, item) || this.#move(-1, item) || this.#bell.focus();
    this.#shown.delete(id);
    item.parentNode.remove();
    if (!this.#shown.size) this.#say('empty');
  }

  /** The focus goes to another message. @param {number} by @param {Element | null} [from] */
  #move(by, from) {
    const items = /** @type {HTMLElement[]} */ ([...this.#list.querySelectorAll('.item')]);
    const place = from ? items.indexOf(/** @type {HTMLElement} */ (from)) : -1;
    const to = items[Math.max(by > 0 ? 0 : -1, place + by)];
    to?.focus();
    return !!to;
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const { key } = event;
    const active = this.shadowRoot?.activeElement ?? null;
    if (key === 'Escape' && this.#open) this.close();
    else if (key === 'ArrowDown' && !this.#open) this.open();
    else if (key === 'ArrowDown') this.#move(1, active);
    else if (key === 'ArrowUp' && this.#open) this.#move(-1, active) || this.#bell.focus();
    else if (key === 'Home' && active !== this.#bell && this.#open) this.#move(1);
    else if (key === 'End' && active !== this.#bell && this.#open) this.#move(this.#shown.size);
    else return;
    event.preventDefault();
  }
}

if (!customElements.get('relais-bell')) customElements.define('relais-bell', RelaisBell);
