// <trivet-plan-panel> is a repair plan, step by step, and the command that applies it. It shows the
// plan of the fragment: #repair for all open findings, #repair/FINDING for one. The page applies
// nothing, because it does not authenticate users.

import { changeText } from "./bootstrap.js";
import { codes } from "./findings.js";
import { Clock, count, duration, sentence } from "./format.js";
import { Panel, panelHeader } from "./panel.js";
import { ask, plain } from "./stream.js";
import { h, muted, notice, render } from "./view.js";

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
    clearInterval(this.ticking);
    this.asked?.abort();
    this.plan = this.failure = null;
  }

  async opened() {
    const asked = (this.asked = new AbortController());
    this.show(null, null);
    try {
      const query = this.subject ? `?names=${encodeURIComponent(`findings/${this.subject}`)}` : "";
      const plan = await ask(`/v1/repairs:plan${query}`, AbortSignal.any([asked.signal, AbortSignal.timeout(planLimit)]));
      if (!asked.signal.aborted) this.show(plan, null);
    } catch (error) {
      if (!asked.signal.aborted) this.show(null, plain(error));
    }
  }

  show(plan, failure) {
    this.plan = plan;
    this.failure = failure;
    this.copied = "";
    this.clock = new Clock(plan?.freshness?.readTime ?? new Date().toISOString());
    clearInterval(this.ticking);
    if (plan?.token) this.ticking = setInterval(() => this.draw(), 1000);
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
      failure && notice("failure", "bad", "No plan: ", failure),
      failure && h("p", { key: "again" }, againButton()),
      !plan && !failure && muted("waiting", "Loading…"),
      plan && this.body(plan),
    );
  }

  body({ steps, left, leftOmitted, token, expireTime }) {
    return [
      steps.length === 0 && h("p", { key: "nothing", class: "notice", "data-health": left.length > 0 ? "fair" : "good" },
        left.length > 0 ? "No write repairs these findings: repair them manually." : "No finding is open. A pending finding can be repaired once its grace period has passed."),
      steps.length > 0 && h("p", { key: "sum" }, summaryOf(steps)),
      token && this.command(token, expireTime),
      steps.length > 0 && h("ol", { key: "steps", class: "steps" }, steps.map(stepView)),
      left.length > 0 && h("h3", { key: "left" }, "Not in the plan"),
      left.length > 0 && h("ul", { key: "rest", class: "left" }, left.map(({ name, subject, code, message, unsafeReason }) =>
        h("li", { key: name }, h("strong", { class: "id" }, subject || name), ` ${codes.get(code)?.words ?? code}. `, h("span", { class: "muted" }, sentence(unsafeReason || message))))),
      leftOmitted > 0 && muted("omitted", `And ${count(leftOmitted)} more findings.`),
    ];
  }

  command(token, expireTime) {
    const rest = this.clock.until(expireTime);
    if (rest <= 0) return notice("expired", "fair", "This plan has expired. ", againButton());
    return h("div", { key: "command", class: "command" },
      h("p", {}, "This command applies these steps only. It stops where anything has changed since:"),
      h("textarea", { readonly: true, rows: 4, spellcheck: "false", "aria-label": "The command" }, `trivet repair apply ${token}`),
      h("p", { class: "actions" },
        h("button", { type: "button", "data-do": "copy", class: "button" }, this.copied || "Copy"),
        h("span", { class: "muted" }, `Valid for ${duration(rest)}.`)));
  }
}

function summaryOf(steps) {
  const unsafe = steps.filter(({ safe }) => !safe).length;
  const order = steps.length === 1 ? "One step." : `${count(steps.length)} steps, in this order.`;
  if (unsafe === 0) return `${order} All of it is safe.`;
  return `${order} ${steps.length === 1 ? "It" : `${count(unsafe)} of them`} may do harm: read the risk first.`;
}

function stepView({ finding, change, safe, risk, version }, place) {
  const { reason, detail } = change ?? {};
  return h("li", { key: `${place} ${finding}`, "data-health": safe ? "good" : "fair" },
    h("span", { class: "number", "aria-hidden": "true" }, count(place + 1)),
    h("div", {},
      h("h4", {}, changeText(change), !safe && h("span", { class: "pill", "data-health": "fair" }, "not safe")),
      detail && h("p", {}, sentence(detail)),
      risk && h("p", { class: "risk" }, h("strong", {}, "Risk: "), sentence(risk)),
      h("p", { class: "muted origin" }, [reason, finding, precondition(change, version)].filter(Boolean).join(" · "))));
}

// precondition is what must hold when a step is applied. A bitmap changes with each port that is
// allocated, so that only its bits are compared.
function precondition({ verb, object } = {}, version) {
  if (verb === "VERB_CREATE") return "only if it does not exist";
  if (object?.kind === "RangeAllocation") return "only if the bit is unchanged";
  return version && `only at version ${version}`;
}

function againButton() {
  return h("button", { type: "button", "data-do": "again", class: "button" }, "Plan again");
}

customElements.define("trivet-plan-panel", PlanPanel);
