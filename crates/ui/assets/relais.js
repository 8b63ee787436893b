// The dashboard of Relais: what changes by itself, and the keyboard. Every page works without it.
"use strict";
(() => {
  const $ = (query, root = document) => root.querySelector(query);
  const $$ = (query, root = document) => [...root.querySelectorAll(query)];
  const main = () => $("#main");

  // Ages and durations go on, without asking the server. The server's clock counts, not this machine's.
  let ahead = 0;
  const readClock = () => {
    const now = Number(main()?.dataset.now);
    if (now) ahead = now - Date.now();
  };
  const french = document.documentElement.lang === "fr";
  const span = (seconds) => {
    if (seconds < 60) return `${seconds} s`;
    if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
    if (seconds < 86400) return `${Math.floor(seconds / 3600)} h`;
    return `${Math.floor(seconds / 86400)} ${french ? "j" : "d"}`;
  };
  const tick = () => {
    if (document.hidden || !main()) return;
    const now = Date.now() + ahead;
    for (const time of $$("time[data-ago], time[data-since]", main())) {
      const seconds = Math.round((now - Date.parse(time.dateTime)) / 1000);
      const text = "since" in time.dataset
        ? span(Math.max(0, seconds))
        : (seconds < 0 ? main().dataset.in : main().dataset.ago).replace("{t}", span(Math.abs(seconds)));
      if (time.textContent !== text) time.textContent = text;
    }
  };

  // One stream a page says that something changed; the page then asks for itself again. Only while it is looked at.
  let stream = null;
  let asking = false;
  let again = false;
  const busy = () => {
    const at = document.activeElement;
    const typing = at && main().contains(at) && at.matches("input:not([type=checkbox]):not([type=radio]), textarea, select");
    const open = $("details.careful[open]", main());
    return typing || open || $$("input[name=task]:checked", main()).length > 0;
  };
  const replace = (text) => {
    const fresh = new DOMParser().parseFromString(text, "text/html").querySelector("#main");
    if (!fresh) return;
    const old = main();
    const opened = $$("details[open]", old).map((one) => $$("details", old).indexOf(one));
    const focus = document.activeElement;
    const path = old.contains(focus) && focus !== old ? focus.getAttribute("href") : null;
    const at = $$("tbody tr", old).findIndex((row) => row.classList.contains("at"));
    old.replaceChildren(...fresh.childNodes);
    for (const name of ["data-now", "data-live"]) {
      if (fresh.hasAttribute(name)) old.setAttribute(name, fresh.getAttribute(name));
      else old.removeAttribute(name);
    }
    for (const index of opened) $$("details", old)[index]?.setAttribute("open", "");
    if (path) $(`a[href="${CSS.escape(path)}"]`, old)?.focus({ preventScroll: true });
    if (at >= 0) $$("tbody tr", old)[at]?.classList.add("at");
    $("#more")?.remove();
    arrange();
  };
  const refresh = async (forced) => {
    if (document.hidden || !main()) return;
    if (!forced && busy()) {
      if (!$("#more")) {
        const more = document.createElement("button");
        more.id = "more";
        more.type = "button";
        more.className = "more primary";
        more.textContent = `↻ ${$("#announce").dataset.text}`;
        more.addEventListener("click", () => refresh(true));
        document.body.append(more);
      }
      return;
    }
    if (asking) {
      again = true;
      return;
    }
    asking = true;
    try {
      const answer = await fetch(location.href, { credentials: "same-origin", redirect: "manual" });
      // The session is over: the page that asks for another one takes its place.
      if (answer.type === "opaqueredirect") location.reload();
      else if (answer.ok) replace(await answer.text());
    } catch {
      // The stream tells when the server is back.
    }
    asking = false;
    if (again) {
      again = false;
      refresh(false);
    }
  };
  const follow = () => {
    const topic = main()?.dataset.live;
    if (!topic || document.hidden || stream) return;
    const light = $("#live");
    stream = new EventSource(`/ui/live?topic=${encodeURIComponent(topic)}`);
    let lost = false;
    stream.addEventListener("open", () => {
      if (light) {
        light.hidden = false;
        light.classList.remove("off");
      }
      document.documentElement.dataset.following = "yes";
      if (lost) refresh(false);
      lost = false;
    });
    stream.addEventListener("changed", () => refresh(false));
    stream.addEventListener("error", () => {
      lost = true;
      light?.classList.add("off");
    });
  };
  const leave = () => {
    stream?.close();
    stream = null;
  };
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return leave();
    // What happened meanwhile was not told.
    if (main()?.dataset.live) refresh(false);
    follow();
  });
  window.addEventListener("pagehide", leave);

  // Lists: select all, count what is selected.
  const arrange = () => {
    readClock();
    tick();
    for (const one of $$(".needs-script")) one.hidden = false;
    const all = $("#all-rows");
    const rows = $$("input[name=task]");
    const count = () => {
      const chosen = rows.filter((row) => row.checked).length;
      const place = $(".chosen-count");
      if (place) place.textContent = chosen ? ` (${chosen})` : "";
      if (all) {
        all.checked = chosen > 0 && chosen === rows.length;
        all.indeterminate = chosen > 0 && chosen < rows.length;
      }
    };
    all?.addEventListener("change", () => {
      for (const row of rows) row.checked = all.checked;
      count();
    });
    for (const row of rows) row.addEventListener("change", count);
    count();
  };

  // The search field completes its words.
  const complete = (field) => {
    let known = null;
    let list = null;
    let at = -1;
    const close = () => {
      list?.remove();
      list = null;
      at = -1;
      field.setAttribute("aria-expanded", "false");
      field.removeAttribute("aria-activedescendant");
    };
    const part = () => {
      const before = field.value.slice(0, field.selectionStart);
      return before.slice(before.lastIndexOf(" ") + 1);
    };
    const options = () => {
      const word = part();
      const colon = word.indexOf(":");
      if (colon < 0) return known.words.filter((one) => one.startsWith(word));
      const name = word.slice(0, colon);
      const begun = word.slice(colon + 1).toLowerCase();
      const values = known.values[name] ?? [];
      return values.filter((one) => one.toLowerCase().includes(begun) && one !== begun)
        .map((one) => `${name}:${/\s/.test(one) ? `"${one}"` : one}`);
    };
    const take = (text) => {
      const end = field.selectionStart;
      const begin = end - part().length;
      const tail = text.endsWith(":") ? "" : " ";
      field.value = field.value.slice(0, begin) + text + tail + field.value.slice(end).trimStart();
      field.selectionStart = field.selectionEnd = begin + text.length + tail.length;
      show();
    };
    const mark = () => {
      $$("li", list).forEach((one, i) => one.setAttribute("aria-selected", String(i === at)));
      const one = $$("li", list)[at];
      if (one) {
        field.setAttribute("aria-activedescendant", one.id);
        one.scrollIntoView({ block: "nearest" });
      }
    };
    const show = () => {
      close();
      if (!known || document.activeElement !== field) return;
      const found = options().slice(0, 30);
      if (found.length === 0) return;
      list = document.createElement("ul");
      list.className = "completions";
      list.id = "completions";
      list.setAttribute("role", "listbox");
      list.setAttribute("aria-label", field.labels?.[0]?.textContent ?? "");
      found.forEach((text, i) => {
        const one = document.createElement("li");
        one.id = `completion-${i}`;
        one.setAttribute("role", "option");
        one.textContent = text;
        one.addEventListener("mousedown", (event) => {
          event.preventDefault();
          take(text);
        });
        list.append(one);
      });
      field.parentElement.append(list);
      field.setAttribute("aria-expanded", "true");
    };
    field.setAttribute("role", "combobox");
    field.setAttribute("aria-autocomplete", "list");
    field.setAttribute("aria-expanded", "false");
    field.setAttribute("aria-controls", "completions");
    field.addEventListener("focus", async () => {
      if (!known) {
        try {
          known = await (await fetch(field.dataset.complete, { credentials: "same-origin" })).json();
        } catch {
          return;
        }
      }
      show();
    });
    field.addEventListener("input", show);
    field.addEventListener("blur", close);
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        if (list) close();
        else field.blur();
        event.preventDefault();
      } else if (list && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
        const many = $$("li", list).length;
        at = (at + (event.key === "ArrowDown" ? 1 : many) + (at < 0 && event.key === "ArrowUp" ? 1 : 0)) % many;
        mark();
        event.preventDefault();
      } else if (list && at >= 0 && (event.key === "Enter" || event.key === "Tab")) {
        take($$("li", list)[at].textContent);
        event.preventDefault();
      } else if (list && event.key === "Tab" && part() !== "") {
        take($$("li", list)[0].textContent);
        event.preventDefault();
      }
    });
  };

  // The keyboard.
  let gone = 0;
  const move = (step) => {
    const rows = $$("main tbody tr");
    if (rows.length === 0) return;
    const now = rows.findIndex((row) => row.classList.contains("at"));
    rows[now]?.classList.remove("at");
    const next = rows[Math.min(rows.length - 1, Math.max(0, now + step))];
    next.classList.add("at");
    next.scrollIntoView({ block: "nearest" });
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    // A dialog that was just closed keeps the focus until the next frame.
    if (event.target.closest("input:not([type=checkbox]):not([type=radio]), textarea, select, dialog[open]")) return;
    const row = $("main tbody tr.at");
    if (gone && Date.now() - gone < 5000) {
      gone = 0;
      const link = $(`.side a[data-key="${CSS.escape(event.key)}"]`);
      if (link) {
        event.preventDefault();
        location.href = link.href;
      }
      return;
    }
    switch (event.key) {
      case "g": gone = Date.now(); break;
      case "/": event.preventDefault(); $("#search")?.focus(); break;
      case "?": event.preventDefault(); $("#help")?.showModal(); break;
      case "j": move(1); break;
      case "k": move(-1); break;
      case "x": $("input[type=checkbox]", row ?? document.createElement("i"))?.click(); break;
      case "Enter": if (row && document.activeElement === document.body) $("a.id, th a", row)?.click(); break;
      case "Escape": for (const one of $$("details.careful[open]")) one.removeAttribute("open"); break;
      default:
    }
  });
  document.addEventListener("click", (event) => {
    for (const one of $$("details.careful[open]")) if (!one.contains(event.target)) one.removeAttribute("open");
  });

  $("#help-button")?.addEventListener("click", () => $("#help").showModal());
  const field = $("#search");
  if (field) complete(field);
  arrange();
  setInterval(tick, 1000);
  follow();
})();
