// The panel with which a person breaks the demo of `trivet-lab up --demo`, whose page loads this file.
//
// The token comes from the page's own origin. A page of another origin cannot read it, so that its
// requests are refused.

import { headers } from "/assets/key.js";
import { h, notice, render } from "/assets/view.js";

const path = "/demo/";
const interval = 2000;
const shownSteps = 3;

const panel = document.createElement("section");
panel.className = "card demo";
panel.setAttribute("aria-labelledby", "demo-title");
document.querySelector("main").append(panel);

let report = null; // the last answer
let answer = null; // the last answer to a button: { health, text, steps }
let busy = false; // a button was pressed, and its answer is open

function show() {
  if (!report) return;
  render(
    panel,
    h("header", {}, h("h2", { id: "demo-title" }, "Break this demo"), h("p", { class: "muted" }, usage())),
    h("ul", { class: "demo-kinds" }, report.kinds.map(kindOf)),
    h("div", { role: "status", class: "demo-answer" }, answer ? answered() : null),
    report.faults.length ? h("div", {}, h("h3", {}, "Broken now"), h("ul", { class: "demo-faults" }, report.faults.map(faultOf))) : null,
  );
}

function usage() {
  const cores = report.cores ? ` It uses ${report.cores.toFixed(2)} cores.` : "";
  return `The parts are simulated or run on this machine. Everything is restored at the end of trivet-lab up.${cores}`;
}

function kindOf({ kind, text, hows, targets }) {
  return h(
    "li",
    { key: kind },
    h("span", {}, h("b", {}, kind), `: ${text}`),
    h(
      "span",
      { class: "actions" },
      h("label", {}, h("span", { class: "demo-hidden" }, `Which ${kind}`), h("select", { "data-target": kind }, h("option", { value: "" }, "any"), targets.map((name) => h("option", { key: name, value: name }, name)))),
      hows.map((how) => h("button", { type: "button", class: "button", "data-kind": kind, "data-how": how, "aria-disabled": busy ? "true" : null, "aria-label": `Break ${kind}: ${how}` }, how)),
    ),
  );
}

function faultOf(fault) {
  const end = fault.until ? `, until ${new Date(fault.until).toLocaleTimeString()}` : "";
  return h(
    "li",
    { key: `${fault.kind} ${fault.target}` },
    h("span", {}, h("b", {}, `${fault.kind} ${fault.target}`), ` (${fault.how}, ${fault.phase}${end}): ${fault.problem || fault.effect.text}`),
    h("button", { type: "button", class: "button", "data-restore": fault.kind, "data-name": fault.target, "aria-disabled": busy ? "true" : null, "aria-label": `Restore ${fault.kind} ${fault.target}` }, "Restore"),
  );
}

function answered() {
  const steps = (answer.steps ?? []).slice(0, shownSteps);
  return [
    notice("answer", answer.health, answer.text),
    steps.length
      ? h("ul", { key: "steps", class: "demo-steps" }, steps.map(({ command, expect, seconds }) => h("li", {}, h("code", {}, `trivet ${command}`), ` within ${seconds} s: ${expect}`)))
      : null,
  ];
}

panel.addEventListener("click", ({ target }) => {
  const button = target.closest("button");
  if (!button || busy) return;
  const { kind, how, restore, name } = button.dataset;
  if (kind) {
    const chosen = panel.querySelector(`select[data-target="${CSS.escape(kind)}"]`).value;
    send("break", { kind, how, target: chosen }, (fault) => ({ health: "fair", text: `${fault.kind} ${fault.target} is broken: ${fault.effect.text}.`, steps: fault.steps }));
  } else if (restore) {
    send("restore", { kind: restore, target: name }, () => ({ health: "good", text: `${restore} ${name} is restored.` }));
  }
});

async function send(action, request, textOf) {
  busy = true;
  answer = { health: "fair", text: "…" };
  show();
  try {
    const response = await fetch(path + action, {
      method: "POST",
      headers: { ...headers, "Content-Type": "application/json", "Trivet-Demo-Token": report.token },
      body: JSON.stringify(request),
    });
    const reply = await response.json();
    answer = response.ok ? textOf(reply) : { health: "bad", text: reply.error };
  } catch (error) {
    answer = { health: "bad", text: `trivet-lab up does not answer: ${error.message}` };
  }
  busy = false;
  await refresh();
}

async function refresh() {
  try {
    const response = await fetch(path, { headers, cache: "no-store" });
    if (response.ok) report = await response.json();
  } catch {
    // The banner of the page says that nothing answers.
  }
  show();
}

await refresh();
setInterval(() => document.hidden || busy || refresh(), interval);
