"use strict";
// What happens in the browser alone: the search, keys, the theme, and telling whether the tab is looked at.
// Names come from the stream: they are only ever set as textContent, and addresses are made by the server.
(() => {
  const typing = (target) => target.closest?.("input, textarea, select, [contenteditable], .q-menu");
  const make = (tag, className, text) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };

  document.addEventListener("visibilitychange", () => {
    if (window.did_handshake) emitEvent("penstock-visible", !document.hidden);
  });

  // A page that has lost the server tries to get it back, and is refused without a word if its session is gone
  // meanwhile: then it is loaded again, which leads to the login.
  setInterval(async () => {
    if (!window.socket || window.socket.connected) return;
    try {
      const answer = await fetch("/api/names", { headers: { accept: "application/json" } });
      if (answer.status === 401) location.reload();
    } catch {
      // the server is still away
    }
  }, 2000);

  const themes = { auto: ["light", undefined], light: ["dark", false], dark: ["auto", true] };
  const icons = { auto: "contrast", light: "light_mode", dark: "dark_mode" };
  function switchTheme(button) {
    const next = themes[button.dataset.themeNow][0];
    button.dataset.themeNow = next;
    button.querySelector(".q-icon").textContent = icons[next];
    document.cookie = `penstock-theme=${next}; path=/; max-age=31536000; samesite=strict`;
    setDark(themes[next][1] === undefined ? null : themes[next][1]);
    // What the server has set is applied when that part of the page is there, which may be after the first click.
    if (window.did_handshake) emitEvent("penstock-theme", next);
  }

  let known = null;
  let knownAt = 0;
  async function names() {
    if (!known || Date.now() - knownAt > 10000) {
      const answer = await fetch("/api/names", { headers: { accept: "application/json" } });
      if (!answer.ok) throw new Error(`the console answered ${answer.status}`);
      known = await answer.json();
      knownAt = Date.now();
    }
    return known;
  }

  function ranked(all, words) {
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    const score = (entry) => {
      const name = entry.name.toLowerCase();
      let points = entry.kind === "page" ? 2 : 0;
      for (const word of wanted) {
        const at = name.indexOf(word);
        if (at < 0 && !entry.kind.includes(word)) return -1;
        points += at === 0 ? 5 : at > 0 ? 3 : 1;
      }
      return points - name.length / 1000;
    };
    return all
      .map((entry) => [score(entry), entry])
      .filter(([points]) => points >= 0 || wanted.length === 0)
      .sort((left, right) => right[0] - left[0])
      .slice(0, 50)
      .map(([, entry]) => entry);
  }

  function openDialog(className, label) {
    const dialog = make("dialog", className);
    dialog.setAttribute("aria-label", label);
    dialog.addEventListener("close", () => dialog.remove());
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
    document.body.append(dialog);
    dialog.showModal();
    return dialog;
  }

  function find() {
    if (document.querySelector("dialog.palette")) return;
    const dialog = openDialog("palette", "Search");
    const input = make("input");
    input.type = "search";
    input.placeholder = "Search topics, groups, pages";
    input.setAttribute("aria-label", "Search topics, groups, pages");
    const list = make("ul", "palette-list");
    list.setAttribute("role", "listbox");
    dialog.append(input, list);
    let shown = [];
    let chosen = 0;
    const choose = (index) => {
      chosen = Math.max(0, Math.min(index, shown.length - 1));
      [...list.children].forEach((item, at) => item.classList?.toggle("is-chosen", at === chosen));
      list.children[chosen]?.scrollIntoView({ block: "nearest" });
    };
    const show = async () => {
      try {
        shown = ranked(await names(), input.value);
      } catch (error) {
        list.replaceChildren(make("li", "palette-none", `Search does not work: ${error.message}`));
        return;
      }
      const items = shown.map((entry) => {
        const item = make("li", "palette-item");
        const link = make("a", "", entry.name);
        link.href = entry.path;
        link.tabIndex = -1;
        link.append(make("span", "palette-kind", entry.kind));
        item.append(link);
        return item;
      });
      list.replaceChildren(...(items.length ? items : [make("li", "palette-none", "Nothing has that name.")]));
      choose(0);
    };
    input.addEventListener("input", show);
    dialog.addEventListener("keydown", (event) => {
      if (event.key === "ArrowDown") choose(chosen + 1);
      else if (event.key === "ArrowUp") choose(chosen - 1);
      else if (event.key === "Enter" && shown[chosen]) location.href = shown[chosen].path;
      else return;
      event.preventDefault();
    });
    show();
    input.focus();
  }

  function help() {
    if (document.querySelector("dialog.keys")) return;
    const dialog = openDialog("keys", "Keys");
    dialog.append(make("h2", "", "Keys"));
    const list = make("dl", "facts");
    const add = (keys, what) => list.append(make("dt", "", keys), make("dd", "", what));
    add("/", "search");
    document.querySelectorAll(".side [data-keys]").forEach((link) => {
      add(link.dataset.keys, link.lastElementChild.textContent);
    });
    add("Esc", "close what is open");
    add("?", "this list");
    const close = make("button", "button button-plain", "Close");
    close.type = "button";
    close.addEventListener("click", () => dialog.close());
    dialog.append(list, close);
  }

  let before = "";
  let beforeAt = 0;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || typing(event.target)) return;
    if (document.querySelector("dialog[open], .q-dialog")) return;
    const keys = before && Date.now() - beforeAt < 1500 ? `${before} ${event.key}` : event.key;
    before = "";
    const link = [...document.querySelectorAll(".side [data-keys]")].find((each) => each.dataset.keys === keys);
    if (event.key === "/") find();
    else if (event.key === "?") help();
    else if (link) location.href = link.href;
    else if (event.key === "g") [before, beforeAt] = ["g", Date.now()];
    else return;
    event.preventDefault();
  });

  async function copy(button) {
    const text = button.closest(".copyable").querySelector("pre").textContent;
    if (navigator.clipboard) {
      await navigator.clipboard.writeText(text);
    } else {
      const area = make("textarea");
      area.value = text;
      (document.querySelector("dialog[open]") ?? document.body).append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    button.classList.add("is-done");
    setTimeout(() => button.classList.remove("is-done"), 1500);
  }

  document.addEventListener("click", (event) => {
    const on = (selector) => event.target.closest?.(selector);
    const more = document.querySelector("[data-more-list]");
    if (on("[data-more]")) more?.classList.toggle("is-open");
    else more?.classList.remove("is-open");
    if (on("[data-find]")) find();
    else if (on("[data-help]")) help();
    else if (on("[data-theme-now]")) switchTheme(on("[data-theme-now]"));
    else if (on("[data-copy]")) copy(on("[data-copy]"));
  });
})();
