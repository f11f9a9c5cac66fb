// <trivet-baseline> is what a cluster must have before anything else can run in it, beside what it has.

import { Poll } from "./poll.js";
import { h, render } from "./view.js";
import { nameOf, sentence } from "./words.js";

const period = 5000;

// verbs say what would happen to an object, here and in repair plans.
export const verbs = { VERB_CREATE: "Create", VERB_UPDATE: "Update", VERB_DELETE: "Delete", VERB_REPORT: "Look at" };

class Baseline extends HTMLElement {
  connectedCallback() {
    this.draw();
    new Poll("/v1/baseline", period, {
      answer: ({ baseline }) => {
        this.baseline = baseline;
        this.failure = null;
        this.draw();
      },
      failed: (failure) => {
        this.failure = failure;
        this.draw();
      },
    }).follow();
  }

  draw() {
    const { baseline, failure } = this;
    this.dataset.old = failure && baseline ? "yes" : "no";
    render(
      this,
      h("header", {}, h("h2", {}, "Baseline"), baseline && verdict(baseline)),
      failure && h("p", { key: "failure", class: "notice", role: "status", "data-health": "bad" }, baseline ? "This is old: " : "Nothing is known of it: ", failure.cause),
      !baseline && !failure && h("p", { key: "waiting", class: "quiet" }, "Waiting for the first answer…"),
      baseline && body(baseline),
    );
  }
}

function verdict(baseline) {
  const wrong = baseline.changes.length > 0 || problemsOf(baseline).length > 0;
  return h("span", { class: "pill", "data-health": wrong ? "fair" : "good", role: "status" }, wrong ? "Not as it must be" : "As it must be");
}

function problemsOf({ namespaces, serviceCidr }) {
  return [...namespaces.flatMap(({ name, problems }) => problems.map((problem) => `${name}: ${problem}`)), ...(serviceCidr?.problems ?? [])];
}

function body(baseline) {
  const { namespaces, kubernetesService, serviceCidr, endpointReconciler, changes } = baseline;
  const problems = problemsOf(baseline);
  return [
    h("dl", { key: "facts", class: "node-facts" },
      serviceFacts(kubernetesService),
      fact("Service range", serviceCidr?.exists ? `${serviceCidr.cidrs.join(", ")}${serviceCidr.ready ? "" : ", not ready"}` : "", !serviceCidr?.ready),
      fact("Endpoints chosen by", endpointReconciler)),
    h("ul", { key: "namespaces", class: "namespaces", "aria-label": "System namespaces" }, namespaces.map(namespaceView)),
    problems.length > 0 && h("ul", { key: "problems", class: "problems", "data-health": "fair" }, problems.map((problem) => h("li", { key: problem }, problem))),
    changes.length > 0 && h("ul", { key: "changes", class: "changes", "aria-label": "What would be written" }, changes.map(({ verb, object, detail, reason }, place) =>
      h("li", { key: `${place} ${reason}` }, h("strong", {}, `${verbs[verb] ?? verb} ${object ? nameOf(object) : ""}`), " ", h("span", { class: "quiet" }, sentence(detail || reason))))),
  ];
}

function serviceFacts(service) {
  if (!service?.exists) return [fact("Service default/kubernetes", "does not exist", true)];
  const addresses = service.clusterIps?.length > 0 ? service.clusterIps : [service.clusterIp];
  const differs = service.desiredAddresses.join() !== service.endpointSliceAddresses.join();
  return [
    fact("Service default/kubernetes", addresses.join(", ")),
    service.ports.length > 0 && fact("Ports", service.ports.join(", ")),
    fact("Its endpoints", service.endpointSliceAddresses.join(", ") || "none", differs || service.endpointSliceAddresses.length === 0),
  ];
}

function namespaceView({ name, exists, phase, problems }) {
  const health = !exists ? "bad" : problems.length > 0 || phase === "Terminating" ? "fair" : "good";
  return h("li", { key: name, "data-health": health }, h("span", { class: "dot", "data-health": health }), h("span", { class: "id" }, name),
    health !== "good" && h("span", { class: "quiet" }, exists ? phase.toLowerCase() : "missing"));
}

function fact(name, value, alarming) {
  return value ? h("div", { key: name, "data-health": alarming && "bad" }, h("dt", {}, name), h("dd", {}, value)) : null;
}

customElements.define("trivet-baseline", Baseline);
