// The base classes of sections: one follows a watch, the other polls.

import { ask, plain, Stream } from "./stream.js";
import { failed, h, muted, render } from "./view.js";

const redrawPause = 250;
const linesStep = 100; // lines that "show more" adds
const pollLimit = 16000; // the gateway may ask several replicas in turn

// WatchSection follows a watch by name.
//
// A subclass sets path, and has subjectOf(event), summaryOf(subject), newsOf(subject) and draw().
// It may override removed(subject), and apply(event) with begin() to keep its own model. The lines of
// its list are limited to this.lines, which the button of more() raises.
export class WatchSection extends HTMLElement {
  firstLines = 40;

  connectedCallback() {
    this.byName = new Map();
    this.missing = [];
    this.round = 0;
    this.complete = false; // the stream has sent all that existed at its start
    this.search = "";
    this.lines = this.firstLines;
    this.prepare?.();
    this.stream = new Stream(this.path, {
      opened: () => this.begin(),
      message: (event) => this.take(event),
      broken: (failure) => {
        this.failure = failure;
        this.redrawSoon();
      },
    });
    this.addEventListener("input", ({ target }) => {
      this.search = target.value.trim().toLowerCase();
      this.lines = this.firstLines;
      this.draw();
    });
    this.addEventListener("click", ({ target }) => {
      if (!target.closest("[data-do=more]")) return;
      this.lines += linesStep;
      this.draw();
    });
    this.draw();
    this.follow();
  }

  follow() {
    this.stream.follow();
  }

  part(name) {
    return this.querySelector(`[data-part="${name}"]`);
  }

  // begin starts a report of everything.
  begin() {
    this.round++;
    this.complete = false;
  }

  take(event) {
    this.failure = null;
    this.apply(event);
    this.redrawSoon();
    const subject = this.subjectOf(event);
    if (subject) this.onNews?.(this.newsOf(subject)); // no event: there are a thousand in a second
  }

  apply(event) {
    const subject = this.subjectOf(event);
    if (event.type === "EVENT_TYPE_BOOKMARK") this.bookmark(event.bookmark);
    else if (event.type === "EVENT_TYPE_DELETED") this.removed(subject);
    else this.keep(subject);
  }

  keep(subject) {
    this.byName.set(subject.name, { ...this.summaryOf(subject), round: this.round });
  }

  removed(subject) {
    this.byName.delete(subject.name);
  }

  // bookmark removes what a stream did not report that sent all that exists.
  bookmark({ initialEventsEnd, missing }) {
    this.missing = missing;
    if (!initialEventsEnd) return;
    this.complete = true;
    for (const [name, { round }] of this.byName) {
      if (round !== this.round) this.byName.delete(name);
    }
  }

  // redrawSoon draws four times a second at most.
  redrawSoon() {
    if (this.timer) return;
    this.timer = setTimeout(() => {
      this.timer = 0;
      this.draw();
    }, redrawPause);
  }

  // failureNotice says that the section has old data, or none.
  failureNotice(hasData) {
    return failed(hasData, this.failure);
  }
}

// PollSection asks again and again while the page is shown.
//
// A subclass sets path and period, and has heading(answer) and body(answer), which describe it.
export class PollSection extends HTMLElement {
  connectedCallback() {
    this.draw();
    this.poll();
  }

  async poll() {
    for (;;) {
      if (document.hidden) await shown();
      await this.askOnce();
      await new Promise((resolve) => setTimeout(resolve, this.period * (0.9 + 0.2 * Math.random())));
    }
  }

  async askOnce() {
    try {
      this.answer = await ask(this.path, AbortSignal.timeout(pollLimit));
      this.failure = null;
    } catch (error) {
      const text = error.name === "TimeoutError" ? "the gateway did not answer in time" : plain(error);
      this.failure = { cause: text, reason: error.reason };
    }
    this.draw();
  }

  draw() {
    const { answer, failure } = this;
    this.dataset.old = failure && answer ? "yes" : "no";
    render(
      this,
      h("div", { class: "heading" }, this.heading(answer)),
      failure && failed(Boolean(answer), failure),
      !answer && !failure && muted("waiting", "Waiting for the first answer…"),
      answer && this.body(answer),
    );
  }
}

// overview has what each section says of itself in a few words, by its id. changed is called when
// that changes.
export const overview = { words: new Map(), changed: () => {} };

// tell says what a section has in a few words, and how healthy it is.
export function tell({ id }, words, health) {
  const known = overview.words.get(id);
  if (known?.words === words && known.health === health) return;
  overview.words.set(id, { words, health });
  overview.changed();
}

// shown waits until the page is visible.
function shown() {
  return new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
}
