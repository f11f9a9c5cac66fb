// <trivet-banner> says that what the page shows is old, why, and when it tries again.

import { ago, duration } from "./clock.js";
import { h, render } from "./view.js";
import { sentence } from "./words.js";

class Banner extends HTMLElement {
  connectedCallback() {
    this.hidden = true;
    this.addEventListener("click", ({ target }) => target.closest("button") && this.dispatchEvent(new Event("retry")));
  }

  show(news) {
    this.news = news;
    this.hidden = false;
    clearInterval(this.ticking);
    this.ticking = setInterval(() => this.draw(), 1000);
    this.draw();
  }

  hide() {
    clearInterval(this.ticking);
    this.hidden = true;
  }

  draw() {
    const { cause, retryAt, clock } = this.news;
    const wait = Math.max(0, (retryAt - performance.now()) / 1000);
    render(
      this,
      h("p", { role: "alert" }, h("strong", {}, clock ? "This is not live. " : "No answer yet. "), sentence(cause)),
      h("p", { class: "quiet" }, clock && `What you see is from ${clock.timeOfDay()}, ${ago(duration(clock.sinceMerge()))}. `, wait < 1 ? "Trying again…" : `Trying again in ${duration(wait)}.`),
      h("button", { type: "button" }, "Try now"),
    );
  }
}

customElements.define("trivet-banner", Banner);
