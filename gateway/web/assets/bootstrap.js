// The sections of bootstrapsvc that poll: the baseline, the kube-apiservers and recent repairs.

import { ago, Clock, conditionOf, count, nameOf, plural, sentence } from "./format.js";
import { PollSection, tell } from "./section.js";
import { cell, fact, failed, h, isRefusal, muted, render, row, table } from "./view.js";

const longestList = 5;

// verbs name the changes of the baseline and of repair plans.
export const verbs = { VERB_CREATE: "Create", VERB_UPDATE: "Update", VERB_DELETE: "Delete" };

// changeText names a change and its object.
export function changeText({ verb, object } = {}) {
  return `${verbs[verb] ?? verb} ${object ? nameOf(object) : ""}`;
}

// <trivet-baseline> is the objects that a cluster needs first, as they are and as they should be.
class Baseline extends PollSection {
  path = "/v1/baseline";
  period = 5000;

  heading(answer) {
    if (!answer) {
      tell(this, "not known", "off");
      return h("h2", {}, "Baseline");
    }
    const fits = asPlanned(answer);
    tell(this, fits ? "as it should be" : "differs", fits ? "good" : "fair");
    return [h("h2", {}, "Baseline"), h("span", { class: "pill", "data-health": fits ? "good" : "fair" }, fits ? "As it should be" : "Differs")];
  }

  // body folds a baseline that is as it should be.
  body(answer) {
    const fits = asPlanned(answer);
    return h("details", { key: `fold ${fits}`, initial: { open: !fits }, class: "fold" }, h("summary", {}, "Objects of the baseline"), this.objects(answer));
  }

  objects({ baseline }) {
    const { namespaces, kubernetesService, serviceCidr, endpointReconciler, conditions, plan: { changes } } = baseline;
    return [
      h("dl", { key: "facts", class: "panel-facts" },
        serviceFacts(kubernetesService),
        fact("Service range", serviceCidr?.exists ? `${serviceCidr.cidrs.join(", ")}${serviceCidr.ready ? "" : ", not ready"}` : "", !serviceCidr?.ready && "bad"),
        fact("Endpoint reconciler", endpointReconciler)),
      h("ul", { key: "namespaces", class: "namespaces", "aria-label": "System namespaces" }, namespaces.map(namespaceView)),
      conditions.length > 0 && h("ul", { key: "problems", class: "problems", "data-health": "fair" },
        conditions.map(({ type, reason, message }) => h("li", { key: type, title: reason }, sentence(message || reason)))),
      changes.length > 0 && h("ul", { key: "changes", class: "changes", "aria-label": "Planned changes" }, changes.map((change, place) =>
        h("li", { key: `${place} ${change.reason}` }, h("strong", {}, changeText(change)), " ", h("span", { class: "muted" }, sentence(change.message || change.reason))))),
    ];
  }
}

function asPlanned({ baseline: { plan, conditions } }) {
  return plan.changes.length === 0 && conditions.length === 0;
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

function namespaceView({ name, exists, phase }) {
  const health = !exists ? "bad" : phase === "Terminating" ? "fair" : "good";
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
    tell(this, answer ? `${count(ready)} of ${count(all.length)} ready` : "not known", !answer ? "off" : ready < all.length ? "fair" : "good");
    return [h("h2", {}, "API servers"), all.length > 0 && h("strong", {}, `${count(ready)} of ${count(all.length)} ready`)];
  }

  body({ apiservers }) {
    if (apiservers.length === 0) return muted("none", "None: no sidecar reports a kube-apiserver.");
    const worstFirst = apiservers.toSorted((a, b) => a.ready - b.ready || (a.name < b.name ? -1 : 1));
    return table("kube-apiservers", ["API server", "State", "Endpoint", ["Known from", "wide"], "Why"], worstFirst.map(apiserverView));
  }
}

const apiserverSources = {
  REGISTRATION_SOURCE_SIDECAR: "its sidecar", REGISTRATION_SOURCE_MASTER_LEASE: "its own key", REGISTRATION_SOURCE_STATIC: "a flag",
};

function apiserverView({ name, address, port, ready, conditions, probeDetail, registrationSource }) {
  const published = conditionOf(conditions, "Published");
  const isEndpoint = published?.is === "TRUE";
  const wrong = conditions.filter(({ type, status }) => type !== "Published" && status !== "STATUS_TRUE");
  const health = ready ? (wrong.length > 0 ? "fair" : "good") : "bad";
  const why = ready && isEndpoint ? "" : published?.message || (ready ? "" : probeDetail);
  return row(name, { "data-health": health }, [
    h("span", { class: "named" }, h("span", { class: "dot", "data-health": health }), h("span", { class: "id" }, address.includes(":") ? `[${address}]:${port}` : `${address}:${port}`)),
    ready ? "ready" : h("strong", { class: "tone" }, "not ready"),
    isEndpoint ? "yes" : "no",
    cell("wide muted", apiserverSources[registrationSource] ?? ""),
    [why && h("p", { key: "why" }, sentence(why)), wrong.map(({ type, message, reason }) => h("p", { key: type, class: "error" }, sentence(message || reason)))],
  ]);
}

// <trivet-repairs> lists the recent repairs. It is hidden while there is none; a failed poll
// changes nothing, because repairs are history, unless the caller lacks the right.
class Repairs extends PollSection {
  path = "/v1/repairs";
  period = 10000;

  draw() {
    const { answer } = this;
    if (!answer && isRefusal(this.failure?.reason)) {
      this.hidden = false;
      return render(this, h("h3", {}, "Recent repairs"), failed(false, this.failure));
    }
    this.hidden = !answer || answer.repairs.length === 0;
    if (this.hidden || this.failure) return;
    const { repairs, sources } = answer;
    const clock = new Clock(sources[0]?.readTime ?? new Date().toISOString());
    render(
      this,
      h("h3", {}, "Recent repairs"),
      h("ul", {}, repairs.slice(0, longestList).map((repair) => repairView(repair, clock))),
      repairs.length > longestList && h("p", { class: "muted" }, `And ${count(repairs.length - longestList)} more.`),
    );
  }
}

const repairStates = {
  STATE_RUNNING: { word: "in progress", health: "fair" },
  STATE_SUCCEEDED: { word: "done", health: "good" },
  STATE_FAILED: { word: "failed", health: "bad" },
  STATE_CANCELLED: { word: "cancelled", health: "off" },
};

const outcomes = {
  OUTCOME_PLANNED: { word: "planned", health: "off" },
  OUTCOME_APPLIED: { word: "done", health: "good" },
  OUTCOME_NOT_NEEDED: { word: "not needed", health: "good" },
  OUTCOME_FAILED: { word: "failed", health: "bad" },
  OUTCOME_SKIPPED: { word: "skipped", health: "off" },
};

function repairView({ name, requester, state, startTime, steps, attemptCount }, clock) {
  const { word, health } = repairStates[state] ?? { word: state, health: "off" };
  const user = requester?.user;
  return h("li", { key: name, "data-health": health },
    h("details", {},
      h("summary", {},
        h("span", { class: "dot", "data-health": health }),
        h("span", {}, ago(clock.age(startTime))),
        h("span", { class: "muted" }, user === "trivet:auto" ? "auto" : `by ${user || "an unknown user"}`),
        h("span", { class: "muted" }, plural(steps.length, "step")),
        attemptCount > 1 && h("span", { class: "muted" }, plural(attemptCount, "attempt")),
        h("span", { class: "end" }, word)),
      h("ul", {}, steps.map(stepView))));
}

function stepView({ finding, change }, place) {
  const { word, health } = outcomes[change?.outcome] ?? { word: change?.outcome ?? "", health: "off" };
  return h("li", { key: `${place} ${finding}`, "data-health": health },
    h("span", { class: "dot", "data-health": health }),
    h("span", {}, change ? `${changeText(change)}: ${change.message}` : finding),
    h("span", { class: "muted end" }, word),
    change?.error && h("p", { class: "error" }, change.error));
}

customElements.define("trivet-baseline", Baseline);
customElements.define("trivet-apiservers", APIServers);
customElements.define("trivet-repairs", Repairs);
