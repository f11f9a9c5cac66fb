// <trivet-summary> is the whole cluster in one line.

import { count } from "./clock.js";
import { h, render } from "./view.js";

class Summary extends HTMLElement {
  show(status, { clock, partial }) {
    const problems = status.services.reduce((sum, { problems }) => sum + problems.length, 0);
    const answered = status.sources.filter(({ ok }) => ok).length;
    render(
      this,
      h("span", { class: "pill", "data-health": status.healthy ? "good" : partial ? "bad" : "fair", role: "status" }, status.healthy ? "All legs stand" : plural(problems, "problem")),
      h("span", { class: "quiet" }, `${count(answered)} of ${plural(status.sources.length, "replica")} answered`),
      h("time", { class: "quiet", datetime: status.mergeTime }, clock.timeOfDay()),
    );
  }
}

function plural(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

customElements.define("trivet-summary", Summary);
