// Draws a chain of evidence: facts that follow from each other, and the first one that is wrong.

import { ago, label, nameOf } from "./format.js";
import { h } from "./view.js";

const verdicts = {
  VERDICT_GOOD: { mark: "✓", word: "as expected" },
  VERDICT_DOUBTFUL: { mark: "!", word: "doubtful" },
  VERDICT_BROKEN: { mark: "✗", word: "broken" },
  VERDICT_UNKNOWN: { mark: "?", word: "unknown" },
  VERDICT_ABSENT: { mark: "–", word: "not applicable" },
};

// chain draws the links in order. clock gives their ages; firstBroken is the index of the link to
// mark, or -1.
export function chain(evidence, { clock, firstBroken = -1 }) {
  return h("ol", { key: "chain", class: "chain" }, evidence.map((link, place) => linkView(link, { place, clock, first: place === firstBroken })));
}

function linkView({ code, verdict, finding, next, source, replicaId, version, observeTime, object }, { place, clock, first }) {
  const { mark, word } = verdicts[verdict] ?? { mark: "?", word: verdict };
  const origin = [
    source, object?.name && nameOf(object), version && `version ${version}`, replicaId && `observed by ${replicaId}`,
    observeTime && clock && ago(clock.age(observeTime)),
  ];
  return h("li", { key: `${place} ${code}`, "data-verdict": verdict, "aria-current": first && "step" },
    h("span", { class: "verdict", title: word }, h("span", { "aria-hidden": "true" }, mark), h("span", { class: "hidden-text" }, word)),
    h("div", {},
      h("h4", {}, label(code), first && h("span", { class: "badge" }, "start here")),
      finding && h("p", {}, finding),
      next && h("p", { class: "next" }, next),
      h("p", { class: "muted origin" }, origin.filter(Boolean).join(" · "))));
}
