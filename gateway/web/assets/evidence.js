// Draws a chain of evidence: facts that follow from each other, and the first one that is wrong.

import { ago, label, nameOf } from "./format.js";
import { h } from "./view.js";

const results = {
  RESULT_OK: { mark: "✓", word: "as expected" },
  RESULT_WARNING: { mark: "!", word: "warning" },
  RESULT_FAILED: { mark: "✗", word: "failed" },
  RESULT_UNKNOWN: { mark: "?", word: "unknown" },
  RESULT_NOT_APPLICABLE: { mark: "–", word: "not applicable" },
};

// chain draws the links in order. clock gives their ages; brokenIndex is the index of the link to
// mark, or null.
export function chain(evidence, { clock, brokenIndex }) {
  return h("ol", { key: "chain", class: "chain" }, evidence.map((link, place) => linkView(link, { place, clock, first: place === brokenIndex })));
}

function linkView({ code, result, message, next, source, replicaId, version, observeTime, object }, { place, clock, first }) {
  const { mark, word } = results[result] ?? { mark: "?", word: result };
  const origin = [
    source, object?.name && nameOf(object), version && `version ${version}`, replicaId && `observed by ${replicaId}`,
    observeTime && clock && ago(clock.age(observeTime)),
  ];
  return h("li", { key: `${place} ${code}`, "data-result": result, "aria-current": first && "step" },
    h("span", { class: "result", title: word }, h("span", { "aria-hidden": "true" }, mark), h("span", { class: "hidden-text" }, word)),
    h("div", {},
      h("h4", {}, label(code), first && h("span", { class: "badge" }, "start here")),
      message && h("p", {}, message),
      next && h("p", { class: "next" }, next),
      h("p", { class: "muted origin" }, origin.filter(Boolean).join(" · "))));
}
