// <trivet-plan> is what would be written to mend findings, step by step, and the command that does it. It shows the plan that the
// address asks for: #repair for all that are open, #repair/FINDING for one. Nothing is written from here: the page knows no users.

import { Clock, count, duration } from "./clock.js";
import { verbs } from "./baseline.js";
import { codes } from "./findings.js";
import { Panel } from "./panel.js";
import { ask, plain } from "./stream.js";
import { h, render } from "./view.js";
import { nameOf, sentence } from "./words.js";

const limit = 20000;

class Plan extends Panel {
  connectedCallback() {
    this.addEventListener("click", ({ target }) => {
      const { do: action } = target.closest("button")?.dataset ?? {};
      if (action === "again") this.opened();
      if (action === "copy") this.copy();
    });
    super.connectedCallback();
  }

  // subjectIn is the finding that an address asks to mend, "" for all. Only what can be the name of one counts.
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
    this.changedPlan(null, null);
    try {
      const query = this.subject ? `?names=${encodeURIComponent(`findings/${this.subject}`)}` : "";
      const plan = await ask(`/v1/repairs:plan${query}`, AbortSignal.any([asked.signal, AbortSignal.timeout(limit)]));
      if (!asked.signal.aborted) this.changedPlan(plan, null);
    } catch (error) {
      if (!asked.signal.aborted) this.changedPlan(null, plain(error));
    }
  }

  changedPlan(plan, failure) {
    this.plan = plan;
    this.failure = failure;
    this.copied = "";
    this.clock = new Clock(plan?.freshness?.readTime ?? new Date().toISOString());
    clearInterval(this.ticking);
    if (plan?.token) this.ticking = setInterval(() => this.draw(), 1000);
    this.draw();
  }

  // copy works without the clipboard's own interface, too, which browsers keep from pages that do not come over TLS.
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
      h("header", {},
        h("h2", { tabindex: "-1" }, "Repair plan"),
        h("button", { type: "button", "data-do": "close", "aria-label": "Close" }, "✕")),
      h("p", { key: "for", class: "quiet" }, subject ? h("code", {}, `findings/${subject}`) : "For everything that is open."),
      failure && h("p", { key: "failure", class: "notice", role: "status", "data-health": "bad" }, "There is no plan: ", failure),
      failure && h("p", { key: "again" }, again()),
      !plan && !failure && h("p", { key: "waiting", class: "quiet" }, "Asking…"),
      plan && this.body(plan),
    );
  }

  body({ steps, left, leftOmitted, token, expireTime }) {
    const safe = steps.filter(({ safe }) => safe).length;
    return [
      steps.length === 0 && h("p", { key: "nothing", class: "notice", "data-health": left.length > 0 ? "fair" : "good" },
        left.length > 0 ? "Nothing of this can be mended by a write: a person must decide." : "There is nothing to mend."),
      steps.length > 0 && h("p", { key: "sum" }, steps.length === 1 ? "One step. " : `${count(steps.length)} steps, in this order. `,
        safe === steps.length ? "Nothing can go wrong by it." : `${steps.length === 1 ? "It" : `${count(steps.length - safe)} of them`} may do harm: read the risk first.`),
      token && this.command(token, expireTime),
      steps.length > 0 && h("ol", { key: "steps", class: "steps" }, steps.map(stepView)),
      left.length > 0 && h("h3", { key: "left" }, "What the plan leaves"),
      left.length > 0 && h("ul", { key: "rest", class: "left" }, left.map(({ name, subject, code, message, unsafeReason }) =>
        h("li", { key: name }, h("strong", { class: "id" }, subject || name), ` ${codes.get(code)?.words ?? code}. `, h("span", { class: "quiet" }, sentence(unsafeReason || message))))),
      leftOmitted > 0 && h("p", { key: "omitted", class: "quiet" }, `And ${count(leftOmitted)} more, among the findings.`),
    ];
  }

  command(token, expireTime) {
    const rest = this.clock.until(expireTime);
    if (rest <= 0) {
      return h("p", { key: "expired", class: "notice", role: "status", "data-health": "fair" }, "This plan has expired. ", again());
    }
    return h("div", { key: "command", class: "command" },
      h("p", {}, "Nothing is written from here. This applies these steps and no others; where anything has changed since, it stops:"),
      h("textarea", { readonly: true, rows: 4, spellcheck: "false", "aria-label": "The command" }, `trivet repair apply ${token}`),
      h("p", { class: "actions" },
        h("button", { type: "button", "data-do": "copy", class: "button" }, this.copied || "Copy"),
        h("span", { class: "quiet" }, `Good for ${duration(rest)}.`)));
  }
}

function stepView({ finding, change, safe, risk, version }, place) {
  const { verb, object, reason, detail } = change ?? {};
  return h("li", { key: `${place} ${finding}`, "data-health": safe ? "good" : "fair" },
    h("span", { class: "number", "aria-hidden": "true" }, count(place + 1)),
    h("div", {},
      h("h4", {}, `${verbs[verb] ?? verb} ${object ? nameOf(object) : ""}`, !safe && h("span", { class: "pill", "data-health": "fair" }, "ask first")),
      detail && h("p", {}, sentence(detail)),
      risk && h("p", { class: "risk" }, h("strong", {}, "Risk: "), sentence(risk)),
      h("p", { class: "quiet origin" }, [reason, finding, guard(change, version)].filter(Boolean).join(" · "))));
}

// guard says what must hold for a step to be made. A bitmap moves with every port that is allocated; its bits are looked at anew.
function guard({ verb, object } = {}, version) {
  if (verb === "VERB_CREATE") return "only while it does not exist";
  if (object?.kind === "RangeAllocation") return "only while the bit is still like this";
  return version && `only at version ${version}`;
}

function again() {
  return h("button", { type: "button", "data-do": "again", class: "button" }, "Plan anew");
}

customElements.define("trivet-plan", Plan);
