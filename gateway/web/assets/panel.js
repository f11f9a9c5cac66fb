// A panel over the page that shows one thing, which the address names, and asks for it anew while it is open.

import { Clock } from "./clock.js";
import { plain } from "./stream.js";
import { h, render } from "./view.js";

const pause = 2000;
const limit = 8000;

// Panel is what all of them have in common. One of them has nameIn(hash), the name of what an address names, or null;
// ask(name, signal), which asks for it; gone, the reason that says that there is none; and body(answer), which describes it.
export class Panel extends HTMLElement {
  connectedCallback() {
    this.hidden = true;
    addEventListener("hashchange", () => this.follow());
    addEventListener("keydown", ({ key }) => key === "Escape" && !this.hidden && this.close());
    this.addEventListener("click", ({ target }) => target.closest("button") && this.close());
    this.follow();
  }

  // heard says that the stream had news of something of that name.
  heard(name) {
    if (name === this.name && this.wake) this.wake();
  }

  follow() {
    const name = this.nameIn(location.hash);
    if (name === this.name) return;
    this.name = name;
    this.answer = this.failure = null;
    this.wake?.(true);
    this.dispatchEvent(new CustomEvent("chosen", { detail: name }));
    if (name === null) {
      this.hidden = true;
      this.opener?.focus({ preventScroll: true });
      return;
    }
    if (this.hidden) this.opener = document.activeElement;
    this.hidden = false;
    this.draw();
    this.querySelector("h2").focus({ preventScroll: true });
    this.keepAsking(name);
  }

  close() {
    history.replaceState(null, "", location.pathname + location.search);
    this.follow();
  }

  async keepAsking(name) {
    while (this.name === name) {
      if (!document.hidden) await this.refresh(name);
      await new Promise((resolve) => {
        const timer = setTimeout(resolve, pause);
        const asked = performance.now();
        this.wake = (now) => {
          clearTimeout(timer);
          setTimeout(resolve, now ? 0 : Math.max(0, 500 - (performance.now() - asked))); // not with every flicker
        };
      });
    }
  }

  async refresh(name) {
    try {
      const answer = await this.ask(name, AbortSignal.timeout(limit));
      if (this.name !== name) return;
      this.answer = answer;
      this.clock = new Clock(answer.freshness?.readTime ?? new Date().toISOString());
      this.failure = null;
    } catch (error) {
      if (this.name !== name) return;
      this.failure = { cause: plain(error), reason: error.reason };
      if (error.reason === this.gone) this.answer = null;
    }
    this.draw();
  }

  draw() {
    const { answer, failure, name } = this;
    render(
      this,
      h("header", {},
        h("h2", { tabindex: "-1", class: "id", title: name }, name),
        h("button", { type: "button", "aria-label": "Close" }, "✕")),
      failure && h("p", { class: "notice", role: "status", "data-health": answer ? "fair" : "bad" }, answer ? "This is old: " : "", failure.cause),
      !answer && !failure && h("p", { class: "quiet" }, "Asking…"),
      answer && this.body(answer),
    );
  }
}

// fact is one line of a dl; nothing without a value.
export function fact(name, value) {
  return value ? h("div", { key: name }, h("dt", {}, name), h("dd", {}, value)) : null;
}

// spoken turns LAST_BEAT into "Last beat".
export function spoken(code) {
  const words = code.toLowerCase().replaceAll("_", " ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}
