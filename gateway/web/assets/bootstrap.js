// The sections of bootstrapsvc that poll: the baseline, the kube-apiservers and recent repairs.

import { ago, Clock, count, nameOf, plural, sentence } from "./format.js";
import { PollSection } from "./section.js";
import { fact, h, muted, render } from "./view.js";

const longestList = 5;

// verbs name the changes of the baseline and of repair plans.
export const verbs = { VERB_CREATE: "Create", VERB_UPDATE: "Update", VERB_DELETE: "Delete", VERB_REPORT: "Check" };

// changeText names a change and its object.
export function changeText({ verb, object } = {}) {
  return `${verbs[verb] ?? verb} ${object ? nameOf(object) : ""}`;
}

// <trivet-baseline> is the objects that a cluster needs first, as they are and as they should be.
class Baseline extends PollSection {
  path = "/v1/baseline";
  period = 5000;

  heading(answer) {
    if (!answer) return h("h2", {}, "Baseline");
    const { baseline } = answer;
    const healthy = baseline.changes.length === 0 && problemsOf(baseline).length === 0;
    return [
      h("h2", {}, "Baseline"),
      h("span", { class: "pill", "data-health": healthy ? "good" : "fair", role: "status" }, healthy ? "Healthy" : "Degraded"),
    ];
  }

  body({ baseline }) {
    const { namespaces, kubernetesService, serviceCidr, endpointReconciler, changes } = baseline;
    const problems = problemsOf(baseline);
    return [
      h("dl", { key: "facts", class: "panel-facts" },
        serviceFacts(kubernetesService),
        fact("Service range", serviceCidr?.exists ? `${serviceCidr.cidrs.join(", ")}${serviceCidr.ready ? "" : ", not ready"}` : "", !serviceCidr?.ready && "bad"),
        fact("Endpoint reconciler", endpointReconciler)),
      h("ul", { key: "namespaces", class: "namespaces", "aria-label": "System namespaces" }, namespaces.map(namespaceView)),
      problems.length > 0 && h("ul", { key: "problems", class: "problems", "data-health": "fair" }, problems.map((problem) => h("li", { key: problem }, problem))),
      changes.length > 0 && h("ul", { key: "changes", class: "changes", "aria-label": "Planned changes" }, changes.map((change, place) =>
        h("li", { key: `${place} ${change.reason}` }, h("strong", {}, changeText(change)), " ", h("span", { class: "muted" }, sentence(change.detail || change.reason))))),
    ];
  }
}

function problemsOf({ namespaces, serviceCidr }) {
  return [...namespaces.flatMap(({ name, problems }) => problems.map((problem) => `${name}: ${problem}`)), ...(serviceCidr?.problems ?? [])];
}

function serviceFacts(service) {
  if (!service?.exists) return [fact("Service default/kubernetes", "does not exist", "bad")];
  const addresses = service.clusterIps?.length > 0 ? service.clusterIps : [service.clusterIp];
  const differs = service.desiredAddresses.join() !== service.endpointSliceAddresses.join();
  return [
    fact("Service default/kubernetes", addresses.join(", ")),
    service.ports.length > 0 && fact("Ports", service.ports.join(", ")),
    fact("Endpoints", service.endpointSliceAddresses.join(", ") || "none", (differs || service.endpointSliceAddresses.length === 0) && "bad"),
  ];
}

function namespaceView({ name, exists, phase, problems }) {
  const health = !exists ? "bad" : problems.length > 0 || phase === "Terminating" ? "fair" : "good";
  return h("li", { key: name, "data-health": health }, h("span", { class: "dot", "data-health": health }), h("span", { class: "id" }, name),
    health !== "good" && h("span", { class: "muted" }, exists ? phase.toLowerCase() : "missing"));
}

// <trivet-apiservers> lists the kube-apiservers: whether each is ready and published, and why.
class APIServers extends PollSection {
  path = "/v1/apiservers";
  period = 2000;

  heading(answer) {
    const all = answer?.apiservers ?? [];
    const ready = all.filter(({ ready }) => ready).length;
    return [h("h2", {}, "API servers"), all.length > 0 && h("strong", {}, `${count(ready)} of ${count(all.length)} ready`)];
  }

  body({ apiservers }) {
    if (apiservers.length === 0) return muted("none", "None: no sidecar reports a kube-apiserver.");
    return h("ul", { key: "list", class: "apiservers" }, apiservers.map(apiserverView));
  }
}

const apiserverSources = { SOURCE_SIDECAR: "its sidecar", SOURCE_MASTER_LEASE: "its own key", SOURCE_STATIC: "a flag" };

function apiserverView({ name, address, port, ready, published, reason, probeDetail, problems, source, replicaId }) {
  const health = ready ? (problems.length > 0 ? "fair" : "good") : "bad";
  const why = ready && published ? "" : reason || (ready ? "" : probeDetail);
  const origin = apiserverSources[source] && `known from ${apiserverSources[source]}`;
  return h("li", { key: name, "data-health": health },
    h("span", { class: "dot", "data-health": health }),
    h("span", { class: "id" }, address.includes(":") ? `[${address}]:${port}` : `${address}:${port}`),
    published ? h("span", { class: "badge" }, "endpoint") : h("span", { class: "muted" }, "no endpoint"),
    h("span", { class: "muted end" }, [ready ? "ready" : "not ready", origin].filter(Boolean).join(", ")),
    why && h("p", { key: "why", class: "muted" }, sentence(why)),
    problems.map((problem) => h("p", { key: problem, class: "error" }, problem)),
    replicaId && h("span", { class: "hidden-text" }, ` on the machine of ${replicaId}`));
}

// <trivet-repairs> lists the recent repairs. It is hidden while there is none; a failed poll
// changes nothing, because repairs are history.
class Repairs extends PollSection {
  path = "/v1/repairs";
  period = 10000;

  draw() {
    const { answer } = this;
    this.hidden = !answer || answer.repairs.length === 0;
    if (this.hidden || this.failure) return;
    const { repairs, freshness } = answer;
    const clock = new Clock(freshness?.readTime ?? new Date().toISOString());
    render(
      this,
      h("h3", {}, "Recent repairs"),
      h("ul", {}, repairs.slice(0, longestList).map((repair) => repairView(repair, clock))),
      repairs.length > longestList && h("p", { class: "muted" }, `And ${count(repairs.length - longestList)} more.`),
    );
  }
}

const stepStates = {
  STATE_PENDING: { word: "pending", health: "off" },
  STATE_DONE: { word: "done", health: "good" },
  STATE_UNNEEDED: { word: "not needed", health: "good" },
  STATE_FAILED: { word: "failed", health: "bad" },
};

function repairView({ name, requester, startTime, endTime, steps, complete }, clock) {
  const failed = steps.filter(({ state }) => state === "STATE_FAILED").length;
  const health = complete ? "good" : failed > 0 ? "bad" : "fair";
  const outcome = complete ? "done" : failed > 0 ? `${count(failed)} failed` : endTime ? "incomplete" : "in progress";
  return h("li", { key: name, "data-health": health },
    h("details", {},
      h("summary", {},
        h("span", { class: "dot", "data-health": health }),
        h("span", {}, ago(clock.age(startTime))),
        h("span", { class: "muted" }, requester === "auto" ? "auto" : `by ${requester || "an unknown user"}`),
        h("span", { class: "muted" }, plural(steps.length, "step")),
        h("span", { class: "end" }, outcome)),
      h("ul", {}, steps.map(stepView))));
}

function stepView({ finding, change, state, error }, place) {
  const { word, health } = stepStates[state] ?? { word: state, health: "off" };
  return h("li", { key: `${place} ${finding}`, "data-health": health },
    h("span", { class: "dot", "data-health": health }),
    h("span", {}, change ? `${changeText(change)}: ${change.detail}` : finding),
    h("span", { class: "muted end" }, word),
    error && h("p", { class: "error" }, error));
}

customElements.define("trivet-baseline", Baseline);
customElements.define("trivet-apiservers", APIServers);
customElements.define("trivet-repairs", Repairs);
