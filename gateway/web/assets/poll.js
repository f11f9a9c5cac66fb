// Asking again and again for something that is not streamed, while anybody looks at the page.

import { ask, plain } from "./stream.js";

const limit = 16000; // the gateway asks one replica after the other

export class Poll {
  // on.answer(answer) comes with every answer, and on.failed({cause, reason}) after every failure.
  constructor(path, period, on) {
    this.path = path;
    this.period = period;
    this.on = on;
  }

  // follow never returns.
  async follow() {
    for (;;) {
      if (document.hidden) await shown();
      await this.askOnce();
      await new Promise((resolve) => setTimeout(resolve, this.period * (0.9 + 0.2 * Math.random())));
    }
  }

  async askOnce() {
    try {
      this.on.answer(await ask(this.path, AbortSignal.timeout(limit)));
    } catch (error) {
      this.on.failed({ cause: error.name === "TimeoutError" ? "the gateway did not answer in time" : plain(error), reason: error.reason });
    }
  }
}

// shown waits until the page is looked at.
function shown() {
  return new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
}
