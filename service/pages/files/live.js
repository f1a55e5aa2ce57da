// What the live pages share: following server-sent events, and fetching parts of the page anew.
"use strict";

const live = {
  // How long a request may take, in milliseconds: what has got no answer by then is asked again, as after any failure.
  patience: 10000,

  // Follow the events of `address` from behind the event `last`. `on(kind, data)` is called with each, `link(state)` with
  // "lost" (and the seconds until the next try, where they are known), "back" and "signed out". A browser comes back by
  // itself where the connection broke; where the server refused, or was silent for longer than it ever is, here, ever
  // later. It ends with an event of one of `ends`, and where the session has ended.
  follow(address, last, kinds, ends, on, link) {
    const [shortest, longest] = [1, 60];
    const here = () => `${address}?after=${last}&alive=true`;
    let source = null;
    let lost = false;
    let seconds = shortest;
    let watch = null;
    const lose = () => {
      if (!lost) link("lost");
      lost = true;
    };
    const later = () => {
      setTimeout(open, 1000 * seconds);
      link("lost", seconds);
      seconds = Math.min(2 * seconds, longest);
    };
    const listen = () => {
      clearTimeout(watch);
      watch = setTimeout(() => {
        source.close();
        lose();
        later();
      }, live.patience);
    };
    const alive = () => {
      listen();
      if (lost) link("back");
      lost = false;
      seconds = shortest;
    };
    const open = () => {
      source = new EventSource(here());
      listen();
      source.onerror = async () => {
        lose();
        if (source.readyState !== EventSource.CLOSED) {
          listen();
          return;
        }
        clearTimeout(watch);
        if (await live.signedOut(here())) link("signed out");
        else later();
      };
      source.addEventListener("alive", alive);
      for (const kind of [...kinds, ...ends]) {
        source.addEventListener(kind, (event) => {
          alive();
          last = event.lastEventId || last;
          if (ends.includes(kind)) {
            source.close();
            clearTimeout(watch);
          }
          on(kind, JSON.parse(event.data));
        });
      }
    };
    open();
  },

  // Whether the events of `address` are refused for want of a key: an EventSource does not tell why it was refused.
  async signedOut(address) {
    const enough = new AbortController();
    const late = setTimeout(() => enough.abort(), live.patience);
    try {
      const answer = await fetch(address, { headers: { Accept: "text/event-stream" }, signal: enough.signal });
      return answer.status === 401 || answer.status === 403;
    } catch {
      return false;
    } finally {
      clearTimeout(late);
      enough.abort();
    }
  },

  // Tell in the element of the id `link` whether the page is up to date; `status` is that of an answer which was no page.
  tellLink(state, seconds, status) {
    const element = document.getElementById("link");
    element.hidden = state === "back";
    element.textContent = "";
    if (state === "lost") {
      // Another status may be a proxy's.
      const refused = status >= 400 && status < 500;
      const next = seconds ? `tries again in ${seconds} s` : refused ? "asks again" : "goes on when it is back";
      element.textContent = `The service ${refused ? `answers ${status}` : "does not answer"}; this page ${next}.`;
    }
    if (state === "signed out") {
      const way = document.createElement("a");
      way.href = `/login?next=${encodeURIComponent(location.pathname + location.search)}`;
      way.textContent = "Sign in";
      element.append("Your session has ended, and what you see is no longer up to date. ", way, " to follow it again.");
    }
  },

  // Fetch the page and put its elements with the attribute data-live, and those of the given ids, in the place of these.
  async refresh(ids = []) {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" }, signal: AbortSignal.timeout(live.patience) });
    if (answer.status === 429 || answer.status >= 500) throw new Error(`the server answers ${answer.status}`);
    if (!answer.ok || answer.redirected) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    const focused = document.activeElement?.id;
    const parts = [...document.querySelectorAll("[data-live]")].map((part) => [part, `[data-live="${part.dataset.live}"]`]);
    for (const id of ids) parts.push([document.getElementById(id), `#${id}`]);
    for (const [part, selector] of parts) {
      const newer = fresh.querySelector(selector);
      if (part && newer && newer.innerHTML !== part.innerHTML) part.innerHTML = newer.innerHTML;
    }
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  },

  // The JSON document of the page, asked for until there is one; null where the server has none for this browser.
  async document() {
    for (let seconds = 1; ; seconds = Math.min(2 * seconds, 60)) {
      let status = 0;
      try {
        const answer = await fetch(location.href, { headers: { Accept: "application/json" }, signal: AbortSignal.timeout(live.patience) });
        status = answer.status;
        if (answer.ok) {
          const read = await answer.json();
          live.tellLink("back");
          return read;
        }
      } catch {
        // No answer, or half of one.
      }
      if (status >= 400 && status < 500 && status !== 429) {
        if (status === 401 || status === 403) live.tellLink("signed out");
        return null;
      }
      live.tellLink("lost", seconds, status);
      await new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
    }
  },

  // A function that has the page refreshed soon, but not so often that the server has much to do, and one at a time: what
  // asks for it meanwhile has it refreshed once more.
  refresher() {
    let busy = false;
    let again = false;
    let pause = 1000;
    const soon = () => {
      again = busy;
      if (busy) return;
      busy = true;
      setTimeout(async () => {
        const begun = performance.now();
        again = false;
        try {
          await live.refresh();
          pause = Math.max(1000, 10 * (performance.now() - begun));
        } catch {
          // The server does not answer: the next event has it tried again.
          pause = live.patience;
        }
        busy = false;
        if (again) soon();
      }, pause);
    };
    return soon;
  },

  // The job or the batch has ended: the whole page is as it will stay.
  async end(ids = []) {
    for (const form of document.querySelectorAll("[data-while=live]")) form.remove();
    for (let seconds = 1; ; seconds = Math.min(2 * seconds, 60)) {
      try {
        await live.refresh(ids);
        return;
      } catch {
        await new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
      }
    }
  },
};
