// <trivet-repairs> lists what was mended lately, by whom, and how it went.

import { ago, Clock, count } from "./clock.js";
import { verbs } from "./baseline.js";
import { Poll } from "./poll.js";
import { h, render } from "./view.js";
import { nameOf } from "./words.js";

const period = 10000;
const longestList = 5;

const states = {
  STATE_PENDING: { word: "to be done", health: "off" },
  STATE_DONE: { word: "done", health: "good" },
  STATE_UNNEEDED: { word: "was not needed", health: "good" },
  STATE_FAILED: { word: "failed", health: "bad" },
};

class Repairs extends HTMLElement {
  connectedCallback() {
    this.hidden = true;
    new Poll("/v1/repairs", period, {
      answer: ({ repairs, freshness }) => this.draw(repairs, new Clock(freshness?.readTime ?? new Date().toISOString())),
      failed: () => {}, // what was mended stays so; that nobody answers is said above
    }).follow();
  }

  draw(repairs, clock) {
    this.hidden = repairs.length === 0;
    render(
      this,
      h("h3", {}, "Mended lately"),
      h("ul", {}, repairs.slice(0, longestList).map((repair) => repairView(repair, clock))),
      repairs.length > longestList && h("p", { class: "quiet" }, `And ${count(repairs.length - longestList)} more.`),
    );
  }
}

function repairView({ name, requester, startTime, endTime, steps, complete }, clock) {
  const failed = steps.filter(({ state }) => state === "STATE_FAILED").length;
  const health = complete ? "good" : failed > 0 ? "bad" : "fair";
  const outcome = complete ? "done" : failed > 0 ? `${count(failed)} failed` : endTime ? "not all of it done" : "under way";
  return h("li", { key: name, "data-health": health },
    h("details", {},
      h("summary", {},
        h("span", { class: "dot", "data-health": health }),
        h("span", {}, ago(clock.age(startTime))),
        h("span", { class: "quiet" }, requester === "auto" ? "by itself" : `asked for by ${requester || "somebody"}`),
        h("span", { class: "quiet" }, `${count(steps.length)} ${steps.length === 1 ? "step" : "steps"}`),
        h("span", { class: "end" }, outcome)),
      h("ul", {}, steps.map(({ finding, change, state, error }, place) => {
        const { word, health } = states[state] ?? { word: state, health: "off" };
        return h("li", { key: `${place} ${finding}`, "data-health": health },
          h("span", { class: "dot", "data-health": health }),
          h("span", {}, change ? `${verbs[change.verb] ?? change.verb} ${change.object ? nameOf(change.object) : ""}: ${change.detail}` : finding),
          h("span", { class: "quiet end" }, word),
          error && h("p", { class: "trouble" }, error));
      }))));
}

customElements.define("trivet-repairs", Repairs);
