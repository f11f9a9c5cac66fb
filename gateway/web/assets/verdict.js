// Shows a verdict: its state as a word and a color, and its problems, the worst first.

import { ago, plural, sentence } from "./format.js";
import { h } from "./view.js";

const states = {
  STATE_OK: { word: "OK", health: "good" },
  STATE_WARNING: { word: "Warning", health: "fair" },
  STATE_UNKNOWN: { word: "Unknown", health: "off" },
  STATE_FAILED: { word: "Failed", health: "bad" },
};

const severities = {
  SEVERITY_WARNING: { word: "Warning", health: "fair" },
  SEVERITY_UNKNOWN: { word: "Unknown", health: "off" },
  SEVERITY_ERROR: { word: "Error", health: "bad" },
};

const longestList = 3;

// healthOf is the color of a verdict. A state of a later version is not known to be harmless.
export function healthOf(verdict) {
  return states[verdict?.state]?.health ?? "bad";
}

export function verdictWord(verdict) {
  return states[verdict?.state]?.word ?? "…";
}

export function severityOf(severity) {
  return severities[severity] ?? { word: "Error", health: "bad" };
}

// verdictPill is a verdict in one word.
export function verdictPill(verdict) {
  return h("span", { class: "pill", "data-health": healthOf(verdict) }, verdictWord(verdict));
}

// sinceOf says how long ago the last success was.
export function sinceOf(time, clock) {
  return time ? `; last success ${ago(clock.age(time))}` : "";
}

// problemList lists the worst problems of a service. <trivet-problems> explains all.
export function problemList({ problems }) {
  if (problems.length === 0) return null;
  const rest = problems.length - longestList;
  return h("ul", { key: "problems", class: "problems" },
    problems.slice(0, longestList).map(({ code, severity, resource, message }, place) =>
      h("li", { key: `${place} ${code} ${resource}`, "data-health": severityOf(severity).health, title: [code, resource].filter(Boolean).join(" ") },
        h("span", { class: "dot", "data-health": severityOf(severity).health }), " ", sentence(message))),
    h("li", { key: "more" }, h("a", { href: "#verdict" }, rest > 0 ? `And ${plural(rest, "more", "more")}, explained above` : "Explained above")));
}
