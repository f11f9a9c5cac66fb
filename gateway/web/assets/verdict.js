// Shows a verdict: its state as a word and a color, and its problems, the worst first.

import { sentence } from "./format.js";
import { h } from "./view.js";

const states = {
  STATE_OK: { word: "OK", health: "good" },
  STATE_WARNING: { word: "Warning", health: "fair" },
  STATE_UNKNOWN: { word: "Unknown", health: "off" },
  STATE_FAILED: { word: "Failed", health: "bad" },
};

const severities = { SEVERITY_WARNING: "fair", SEVERITY_UNKNOWN: "off", SEVERITY_ERROR: "bad" };

const longestList = 10;

// healthOf is the color of a verdict. A state of a later version is not known to be harmless.
export function healthOf(verdict) {
  return states[verdict?.state]?.health ?? "bad";
}

// verdictPill is a verdict in one word.
export function verdictPill(verdict) {
  return h("span", { class: "pill", "data-health": healthOf(verdict), role: "status" }, states[verdict?.state]?.word ?? "…");
}

// problemList lists the problems of a verdict with what to do next.
export function problemList({ problems }) {
  if (problems.length === 0) return null;
  return h("ul", { key: "problems", class: "problems" },
    problems.slice(0, longestList).map(({ code, severity, resource, message, next, helpUrl }, place) =>
      h("li", { key: `${place} ${code} ${resource}`, "data-health": severities[severity] ?? "bad", title: [code, resource].filter(Boolean).join(" ") },
        h("span", { class: "dot", "data-health": severities[severity] ?? "bad" }), " ", sentence(message),
        next && h("span", { class: "muted" }, ` ${sentence(next)}`),
        helpUrl && h("a", { href: helpUrl, rel: "noreferrer" }, " More"))),
    problems.length > longestList && h("li", { key: "more", class: "muted" }, `And ${problems.length - longestList} more.`));
}
