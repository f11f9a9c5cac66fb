// <trivet-plan-panel> is a repair plan, step by step, and the command that repairs. It shows the
// plan of the fragment: #repair for all open findings, #repair/FINDING for one. The page stores and
// applies nothing, because it does not authenticate users.

import { changeText } from "./bootstrap.js";
import { codes } from "./findings.js";
import { count, sentence } from "./format.js";
import { Panel, panelHeader } from "./panel.js";
import { ask, plain } from "./stream.js";
import { cause, h, muted, notice, render } from "./view.js";

const planLimit = 20000;

class PlanPanel extends Panel {
  connectedCallback() {
    this.addEventListener("click", ({ target }) => {
      const { do: action } = target.closest("button")?.dataset ?? {};
      if (action === "again") this.opened();
      if (action === "copy") this.copy();
    });
    super.connectedCallback();
  }

  // subjectIn returns a finding, or "" for all. It accepts only what can be the name of a finding.
  subjectIn(hash) {
    const match = /^#repair(?:\/([-a-z0-9._:]+))?$/.exec(hash);
    return match ? (match[1] ?? "") : null;
  }

  changed() {
    this.asked?.abort();
    this.plan = this.failure = null;
  }

  async opened() {
    const asked = (this.asked = new AbortController());
    this.show(null, null);
    try {
      const findings = this.subject ? [`findings/${this.subject}`] : [];
      const limit = AbortSignal.any([asked.signal, AbortSignal.timeout(planLimit)]);
      const { repairPlan } = await ask("/v1/repairplans", limit, { findings, validateOnly: true });
      if (!asked.signal.aborted) this.show(repairPlan, null);
    } catch (error) {
      if (!asked.signal.aborted) this.show(null, plain(error));
    }
  }

  show(plan, failure) {
    this.plan = plan;
    this.failure = failure;
    this.copied = "";
    this.draw();
  }

  // copy falls back to the selection: browsers give the clipboard only to pages with TLS.
  async copy() {
    const field = this.querySelector("textarea");
    field.select();
    try {
      await navigator.clipboard.writeText(field.value);
      this.copied = "Copied";
    } catch {
      this.copied = document.execCommand("copy") ? "Copied" : "Selected: copy it";
    }
    this.draw();
  }

  draw() {
    const { plan, failure, subject } = this;
    render(
      this,
      panelHeader("Repair plan"),
      muted("subject", subject ? h("code", {}, `findings/${subject}`) : "All open findings."),
      failure && notice("failure", "bad", "No plan: ", cause(failure)),
      failure && h("p", { key: "again" }, againButton()),
      !plan && !failure && muted("waiting", "Loading…"),
      plan && this.body(plan),
    );
  }

  body({ steps, skippedFindings, skippedFindingCount }) {
    const more = skippedFindingCount - skippedFindings.length;
    return [
      steps.length === 0 && h("p", { key: "nothing", class: "notice", "data-health": skippedFindingCount > 0 ? "fair" : "good" },
        skippedFindingCount > 0 ? "No write repairs these findings: repair them manually." : "No finding is open. A pending finding can be repaired once its grace period has passed."),
      steps.length > 0 && h("p", { key: "sum" }, summaryOf(steps)),
      steps.length > 0 && this.command(),
      steps.length > 0 && h("ol", { key: "steps", class: "steps" }, steps.map(stepView)),
      skippedFindings.length > 0 && h("h3", { key: "skipped" }, "Not in the plan"),
      skippedFindings.length > 0 && h("ul", { key: "rest", class: "left" }, skippedFindings.map(({ name, subject, code, message, repairModeMessage }) =>
        h("li", { key: name }, h("strong", { class: "id" }, subject || name), ` ${codes.get(code)?.words ?? code}. `,
          h("span", { class: "muted" }, sentence(repairModeMessage || message))))),
      more > 0 && muted("more", `And ${count(more)} more findings.`),
    ];
  }

  command() {
    return h("div", { key: "command", class: "command" },
      h("p", {}, "This command plans again, shows the steps, asks, and applies exactly what it showed:"),
      h("textarea", { readonly: true, rows: 1, spellcheck: "false", "aria-label": "The command" },
        this.subject ? `trivet repair findings/${this.subject}` : "trivet repair --all"),
      h("p", { class: "actions" },
        h("button", { type: "button", "data-do": "copy", class: "button" }, this.copied || "Copy"), " ", againButton()));
  }
}

function summaryOf(steps) {
  const unsafe = steps.filter(({ repairMode }) => repairMode !== "REPAIR_MODE_AUTO").length;
  const order = steps.length === 1 ? "One step." : `${count(steps.length)} steps, in this order.`;
  if (unsafe === 0) return `${order} All of it is safe.`;
  return `${order} ${steps.length === 1 ? "It" : `${count(unsafe)} of them`} may do harm: read the risk first.`;
}

function stepView({ finding, change, repairMode, risk }, place) {
  const { reason, message } = change ?? {};
  const safe = repairMode === "REPAIR_MODE_AUTO";
  return h("li", { key: `${place} ${finding}`, "data-health": safe ? "good" : "fair" },
    h("span", { class: "number", "aria-hidden": "true" }, count(place + 1)),
    h("div", {},
      h("h4", {}, changeText(change), !safe && h("span", { class: "pill", "data-health": "fair" }, "not safe")),
      message && h("p", {}, sentence(message)),
      risk && h("p", { class: "risk" }, h("strong", {}, "Risk: "), sentence(risk)),
      h("p", { class: "muted origin" }, [reason, finding, precondition(change)].filter(Boolean).join(" · "))));
}

// precondition is what must hold when a step is applied. A bitmap changes with each port that is
// allocated, so that only its bits are compared.
function precondition({ verb, object, baseVersion } = {}) {
  if (verb === "VERB_CREATE") return "only if it does not exist";
  if (object?.kind === "RangeAllocation") return "only if the bit is unchanged";
  return baseVersion && `only at version ${baseVersion}`;
}

function againButton() {
  return h("button", { type: "button", "data-do": "again", class: "button" }, "Plan again");
}

customElements.define("trivet-plan-panel", PlanPanel);
