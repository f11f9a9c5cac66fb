// A chain of evidence: links that follow from each other, and where to begin to look.

import { ago } from "./clock.js";
import { h } from "./view.js";
import { nameOf, spoken } from "./words.js";

const verdicts = {
  VERDICT_GOOD: { mark: "✓", word: "as it should be" },
  VERDICT_DOUBTFUL: { mark: "!", word: "doubtful" },
  VERDICT_BROKEN: { mark: "✗", word: "broken" },
  VERDICT_UNKNOWN: { mark: "?", word: "could not be looked at" },
  VERDICT_ABSENT: { mark: "–", word: "does not apply" },
};

// chain shows links in their order; ages are by the clock, and firstBroken is the place of the link that is marked, -1 for none.
export function chain(evidence, { clock, firstBroken = -1 }) {
  return h("ol", { key: "chain", class: "chain" }, evidence.map((link, place) => linkView(link, { place, clock, first: place === firstBroken })));
}

function linkView({ code, verdict, finding, next, source, replicaId, version, observeTime, object }, { place, clock, first }) {
  const { mark, word } = verdicts[verdict] ?? { mark: "?", word: verdict };
  const origin = [source, object?.name && nameOf(object), version && `version ${version}`, replicaId && `seen by ${replicaId}`, observeTime && clock && ago(clock.age(observeTime))];
  return h("li", { key: `${place} ${code}`, "data-verdict": verdict, "aria-current": first && "step" },
    h("span", { class: "verdict", title: word }, h("span", { "aria-hidden": "true" }, mark), h("span", { class: "unseen" }, word)),
    h("div", {},
      h("h4", {}, spoken(code), first && h("span", { class: "badge" }, "begin here")),
      finding && h("p", {}, finding),
      next && h("p", { class: "next" }, next),
      h("p", { class: "quiet origin" }, origin.filter(Boolean).join(" · "))));
}
