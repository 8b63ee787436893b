/**
 * How the bell looks. Colours and measures are custom properties, which pages set on the element; what they do not set
 * follows the system's light or dark scheme.
 *
 * A constructed style sheet: a Content-Security-Policy that forbids inline styles does not forbid it.
 */

const CSS = `
:host{--_ink:var(--relais-bell-color,#1b1f24);--_back:var(--relais-bell-background,#fff);--_soft:var(--relais-bell-muted,#59636e);
--_line:var(--relais-bell-border,#d1d9e0);--_mark:var(--relais-bell-accent,#0a58ca);--_on:var(--relais-bell-on-accent,#fff);
display:inline-block;position:relative;font:var(--relais-bell-font,15px/1.4 system-ui,sans-serif);color:var(--_ink)}
@media(prefers-color-scheme:dark){:host{--_ink:var(--relais-bell-color,#f0f3f6);--_back:var(--relais-bell-background,#1c2128);
--_soft:var(--relais-bell-muted,#a3adb8);--_line:var(--relais-bell-border,#444c56);--_mark:var(--relais-bell-accent,#7ab7ff);
--_on:var(--relais-bell-on-accent,#0d1117)}}
[hidden]{display:none!important}
button,a{font:inherit;color:inherit;background:none;border:0;cursor:pointer;text-decoration:none;text-align:start}
:focus-visible{outline:2px solid var(--_mark);outline-offset:-2px}
.bell{position:relative;width:44px;height:44px;padding:10px;border-radius:50%}
.bell:hover,.item:hover{background:color-mix(in srgb,var(--_ink) 8%,transparent)}
.icon{display:block;width:24px;height:24px;background:currentColor;clip-path:path("M12 2a2 2 0 0 0-2 2v.3A7 7 0 0 0 5 11v5l-2 2v1h18v-1l-2-2v-5a7 7 0 0 0-5-6.700V4a2 2 0 0 0-2-2zM9.500 20a2.500 2.500 0 0 0 5 0z");forced-color-adjust:none}
[part=badge]{position:absolute;top:2px;inset-inline-start:24px;min-width:18px;box-sizing:border-box;padding:0 5px;border-radius:9px;
background:var(--_mark);color:var(--_on);font-size:12px;line-height:18px;text-align:center}
.live{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}
[part=panel]{position:absolute;z-index:1000;top:100%;right:0;width:min(380px,100vw - 16px);max-height:min(560px,80vh);overflow:auto;
overscroll-behavior:contain;box-sizing:border-box;background:var(--_back);border:1px solid var(--_line);
border-radius:var(--relais-bell-radius,10px);box-shadow:0 8px 24px #0003}
.right{left:0;right:auto}
header{position:sticky;top:0;display:flex;align-items:center;justify-content:space-between;gap:8px;padding:0 6px 0 14px;min-height:48px;
background:var(--_back);border-bottom:1px solid var(--_line)}
h2{margin:0;font-size:1em}
.plain{color:var(--_mark);padding:10px 8px;min-height:44px}
ul{list-style:none;margin:0;padding:0}
li+li{border-top:1px solid var(--_line)}
.item{display:block;position:relative;width:100%;box-sizing:border-box;padding:10px 14px 10px 30px;overflow-wrap:anywhere}
.dot{position:absolute;left:13px;top:17px;width:8px;height:8px;border-radius:50%;background:var(--_mark);overflow:hidden;text-indent:9px;white-space:nowrap;forced-color-adjust:none}
.read .dot{background:none}
.read strong{font-weight:400}
.body{display:block}
.body,time,p{color:var(--_soft)}
time{display:block;font-size:.85em}
p{margin:0;padding:28px 14px;text-align:center}
@media(max-width:480px){[part=panel]{position:fixed;inset:60px 8px auto;width:auto}}
`;

/** @type {CSSStyleSheet | undefined} */
let shared;

/** The same for all bells of a page; made when the first one is. */
export function sheet() {
  if (!shared) {
    shared = new CSSStyleSheet();
    shared.replaceSync(CSS);
  }
  return shared;
}
