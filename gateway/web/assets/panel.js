// The base classes of panels. A panel shows what the URL's fragment names, so that it has a link
// and the browser's back button closes it.

import { Clock } from "./format.js";
import { plain } from "./stream.js";
import { cause, h, muted, notice, render } from "./view.js";

const refreshPause = 2000;
const shortestPause = 500; // between two refreshes that events cause
const refreshLimit = 8000;

// Panel opens and closes with the fragment.
//
// A subclass has subjectIn(hash), which returns what a fragment names, or null; and opened(), which
// draws the panel. It may have changed(subject), which is called before the panel opens or closes.
export class Panel extends HTMLElement {
  connectedCallback() {
    this.hidden = true;
    addEventListener("hashchange", () => this.follow());
    addEventListener("keydown", ({ key }) => key === "Escape" && !this.hidden && this.close());
    this.addEventListener("click", ({ target }) => target.closest("[data-do=close]") && this.close());
    this.follow();
  }

  follow() {
    const subject = this.subjectIn(location.hash);
    if (subject === this.subject) return;
    this.subject = subject;
    this.changed?.(subject);
    if (subject === null) {
      this.hidden = true;
      this.opener?.focus({ preventScroll: true });
      return;
    }
    if (this.hidden) this.opener = document.activeElement;
    this.hidden = false;
    this.opened();
    this.querySelector("h2").focus({ preventScroll: true });
  }

  close() {
    history.replaceState(null, "", location.pathname + location.search);
    this.follow();
  }
}

// panelHeader is the title of a panel and its close button.
export function panelHeader(title, attributes) {
  return h("div", { class: "heading" },
    h("h2", { tabindex: "-1", ...attributes }, title),
    h("button", { type: "button", "data-do": "close", "aria-label": "Close" }, "✕"));
}

// PollPanel asks for its subject again while it is open.
//
// A subclass also has ask(subject, signal); gone, the reason of the error that there is no such
// subject; and body(answer), which describes the answer.
export class PollPanel extends Panel {
  // refreshSoon follows an event of a watch.
  refreshSoon(subject) {
    if (subject === this.subject && this.wake) this.wake();
  }

  changed(subject) {
    this.answer = this.failure = null;
    this.wake?.(true);
    this.dispatchEvent(new CustomEvent("chosen", { detail: subject }));
  }

  opened() {
    this.draw();
    this.poll(this.subject);
  }

  async poll(subject) {
    while (this.subject === subject) {
      if (!document.hidden) await this.refresh(subject);
      await new Promise((resolve) => {
        const timer = setTimeout(resolve, refreshPause);
        const asked = performance.now();
        this.wake = (now) => {
          clearTimeout(timer);
          setTimeout(resolve, now ? 0 : Math.max(0, shortestPause - (performance.now() - asked)));
        };
      });
    }
  }

  async refresh(subject) {
    try {
      const answer = await this.ask(subject, AbortSignal.timeout(refreshLimit));
      if (this.subject !== subject) return;
      this.answer = answer;
      this.clock = new Clock(answer.sources?.[0]?.readTime ?? new Date().toISOString());
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
      panelHeader(subject, { class: "id", title: subject }),
      failure && notice("failure", answer ? "fair" : "bad", answer ? "Old data: " : "", cause(failure.cause)),
      !answer && !failure && muted("waiting", "Loading…"),
      answer && this.body(answer),
    );
  }
}
