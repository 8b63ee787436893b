/** Pages in a real Chromium, with the modules as they are, under a strict Content-Security-Policy. */

import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { chromium } from 'playwright-core';
import { Server } from '../support/server.js';

const FLAGS = ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--disable-background-networking',
  '--disable-component-update', '--no-first-run', '--disable-quic'];

/** @type {Promise<import('playwright-core').Browser> | undefined} */
let started;

export function browser() {
  const executablePath = process.env.RELAIS_TEST_CHROMIUM ?? '/usr/bin/chromium';
  return (started ??= chromium.launch({ executablePath, headless: true, args: FLAGS }));
}

export const stop = async () => (await started)?.close();

/** Makes the element as a page does, from a module file, as inline scripts are forbidden. */
const SCRIPT = `
import { connect } from '/src/index.js';
import '/src/element.js';
const query = new URLSearchParams(location.search);
const seen = [];
const client = connect({ url: query.get('url'), token: query.get('token'), patience: Number(query.get('patience')) });
client.addEventListener('state', ({ detail }) => (window.transport = detail.transport));
client.addEventListener('notification', ({ detail }) => seen.push(detail.metadata.id));
Object.assign(window, { client, seen });
const bell = document.querySelector('relais-bell');
if (bell && !query.has('alone')) bell.client = client;
`;

/** @param {import('node:test').TestContext} t */
export async function site(t) {
  const server = await Server.start(t);
  const files = createServer(async (request, response) => {
    const { pathname, searchParams } = new URL(request.url ?? '', 'http://localhost');
    // Playwright needs unsafe-eval; nothing else does.
    response.setHeader('Content-Security-Policy', "default-src 'none'; script-src 'self' 'unsafe-eval'; connect-src *");
    const script = pathname === '/page.js' ? SCRIPT : /^\/src\/[a-z]+\.js$/.test(pathname)
      ? await readFile(new URL(`../..${pathname}`, import.meta.url), 'utf8') : undefined;
    if (script) return void response.setHeader('Content-Type', 'text/javascript').end(script);
    const inside = searchParams.get('html') ?? '<relais-bell></relais-bell>';
    response.setHeader('Content-Type', 'text/html').end(`<!doctype html><html lang="${searchParams.get('lang') ?? 'en'}">
<meta charset="utf-8"><meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark"><title>A page</title>
<header align="right"><button id="before">Before</button> ${inside} <button id="after">After</button></header><p>A page with a bell.
<script type="module" src="/page.js"></script>`);
  });
  files.listen(0, '127.0.0.1');
  await once(files, 'listening');
  t.after(() => void files.close().closeAllConnections());
  const origin = `http://127.0.0.1:${/** @type {import('node:net').AddressInfo} */ (files.address()).port}`;

  /** One browser profile. @param {import('playwright-core').BrowserContextOptions} [options] */
  const profile = async (options) => {
    const context = await (await browser()).newContext({ viewport: { width: 900, height: 700 }, ...options });
    t.after(() => context.close());
    /** @param {Record<string, string>} [query] */
    const open = async (query = {}) => {
      const page = await context.newPage();
      /** @type {string[]} */
      const errors = [];
      page.on('pageerror', (error) => errors.push(String(error)));
      page.on('console', (entry) => entry.type() === 'error' && !/Failed to load resource/.test(entry.text()) && errors.push(entry.text()));
      await page.goto(`${origin}/?${new URLSearchParams({ url: server.url, token: TOKEN, patience: '5000', ...query })}`);
      await page.waitForFunction('window.client?.state === "open"');
      return Object.assign(page, { errors });
    };
    return { open, context };
  };
  return { server, profile, origin };
}

const TOKEN = `h.${Buffer.from('{"sub":"ann"}').toString('base64url')}.s`;

/** Keeps a picture, if somebody wants to look. @param {import('playwright-core').Page} page @param {string} name */
export async function picture(page, name) {
  const folder = process.env.RELAIS_TEST_SCREENSHOTS;
  if (folder) await page.screenshot({ path: `${folder}/${name}.png` });
}
