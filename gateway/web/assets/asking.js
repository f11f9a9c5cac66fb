// A panel that shows one thing and asks for it anew while it is open.

import { Clock } from "./clock.js";
import { Panel } from "./panel.js";
import { plain } from "./stream.js";
import { h, render } from "./view.js";

const pause = 2000;
const limit = 8000;

// A subclass has, beside subjectIn(hash), ask(subject, signal), which asks for what it shows; gone, the reason that says that there
// is none; and body(answer), which describes it.
export class AskingPanel extends Panel {
  // heard says that the stream had news of a thing.
  heard(subject) {
    if (subject === this.subject && this.wake) this.wake();
  }

  changed(subject) {
    this.answer = this.failure = null;
    this.wake?.(true);
    this.dispatchEvent(new CustomEvent("chosen", { detail: subject }));
  }

  opened() {
    this.draw();
    this.keepAsking(this.subject);
  }

  async keepAsking(subject) {
    while (this.subject === subject) {
      if (!document.hidden) await this.refresh(subject);
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

  async refresh(subject) {
    try {
      const answer = await this.ask(subject, AbortSignal.timeout(limit));
      if (this.subject !== subject) return;
      this.answer = answer;
      this.clock = new Clock(answer.freshness?.readTime ?? new Date().toISOString());
      this.failure = null;
    } catch (error) {
      if (this.subject !== subject) return;
      this.failure = { cause: plain(error), reason: error.reason };
      if (error.reason === this.gone) this.answer = null;
    }
    this.draw();
  }

  draw() {
    const { answer, failure, subject } = this;
    render(
      this,
      h("header", {},
        h("h2", { tabindex: "-1", class: "id", title: subject }, subject),
        h("button", { type: "button", "data-do": "close", "aria-label": "Close" }, "✕")),
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
