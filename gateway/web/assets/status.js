// The elements that show the status of the whole cluster: banner, summary, control plane, replicas.

import { ago, count, duration, milliseconds, plural } from "./format.js";
import { healthOf, verdictPill } from "./verdict.js";
import { cause, h, isRefusal, render } from "./view.js";

// <trivet-banner> says that the page shows old data, why, and when it tries again.
class Banner extends HTMLElement {
  connectedCallback() {
    this.hidden = true;
    this.addEventListener("click", ({ target }) => target.closest("button") && this.dispatchEvent(new Event("retry")));
  }

  show(failure) {
    this.failure = failure;
    this.hidden = false;
    clearInterval(this.ticking);
    this.ticking = setInterval(() => this.draw(), 1000);
    this.draw();
  }

  hide() {
    clearInterval(this.ticking);
    this.hidden = true;
  }

  draw() {
    const { cause: text, reason, retryAt, clock } = this.failure;
    const wait = Math.max(0, (retryAt - performance.now()) / 1000);
    render(
      this,
      h("p", { role: "alert" }, h("strong", {}, titleOf(reason, clock)), cause(text)),
      h("p", { class: "muted" },
        clock && `The page shows the state of ${clock.timeOfDay()}, ${ago(duration(clock.sinceMerge()))}. `,
        wait < 1 ? "Trying again…" : `Trying again in ${duration(wait)}.`),
      h("button", { type: "button" }, "Try now"),
    );
  }
}

function titleOf(reason, clock) {
  if (isRefusal(reason)) return "No access to the status. ";
  return clock ? "Not connected. " : "No answer yet. ";
}

// <trivet-summary> is the verdict on the cluster in one line.
class Summary extends HTMLElement {
  show({ verdict, services, mergeTime }, { clock }) {
    const replicas = services.flatMap(({ replicas }) => replicas);
    const answered = replicas.filter(({ status }) => status).length;
    render(
      this,
      verdictPill(verdict),
      verdict.problems.length > 0 && h("span", { class: "muted" }, plural(verdict.problems.length, "problem")),
      h("span", { class: "muted" }, `${count(answered)} of ${plural(replicas.length, "replica")} answered`),
      h("time", { class: "muted", datetime: mergeTime }, clock.timeOfDay()),
    );
  }
}

// <trivet-pot> is the control plane that stands on the trivet, as the replicas see it.
class Pot extends HTMLElement {
  show(status) {
    document.documentElement.dataset.health = healthOf(status.verdict);
    render(
      this,
      h("strong", { title: status.cluster }, status.cluster || "Kubernetes"),
      h("ul", {}, dependencies(status).map(({ name, failing }) =>
        h("li", { key: name, "data-health": failing.length ? "bad" : "good", title: failing.join("\n") },
          h("span", { class: "dot" }), name, h("span", { class: "hidden-text" }, failing.length ? " is not reachable" : " is reachable")))),
    );
  }
}

// dependencies returns what the replicas depend on, and which of them report a failure of it.
function dependencies(status) {
  const found = new Map();
  for (const { replica, status: answer } of status.services.flatMap(({ replicas }) => replicas)) {
    for (const { name, healthy, message } of answer?.dependencies ?? []) {
      if (!found.has(name)) found.set(name, []);
      if (!healthy) found.get(name).push(`${replica.id}: ${message}`);
    }
  }
  return [...found].map(([name, failing]) => ({ name, failing })).sort((a, b) => (a.name < b.name ? -1 : 1));
}

// <trivet-sources> lists the replicas that were asked, and the latency or the error of each.
class Sources extends HTMLElement {
  show({ services }, { missing }) {
    render(
      this,
      h("h2", {}, "Replicas"),
      h("ul", {}, services.flatMap(({ replicas }) => replicas).map(({ replica, status, latency }) => {
        const failure = status ? null : missing.find(({ replicaId }) => replicaId === replica.id);
        const health = status ? "good" : "bad";
        return h("li", { key: `${replica.service}/${replica.id}`, "data-health": health, title: failure?.message || replica.grpcAddress },
          h("span", { class: "dot", "data-health": health }),
          h("span", { class: "service" }, replica.service),
          h("span", { class: "id muted" }, replica.id),
          h("span", { class: "end" }, status ? milliseconds(latency) : failure?.code ?? "UNKNOWN"));
      })),
    );
  }
}

customElements.define("trivet-banner", Banner);
customElements.define("trivet-summary", Summary);
customElements.define("trivet-pot", Pot);
customElements.define("trivet-sources", Sources);
