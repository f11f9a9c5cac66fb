// The elements that show the status of the whole cluster: banner, summary, pot and sources.

import { ago, count, duration, milliseconds, plural, sentence } from "./format.js";
import { h, render } from "./view.js";

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
    const { cause, retryAt, clock } = this.failure;
    const wait = Math.max(0, (retryAt - performance.now()) / 1000);
    render(
      this,
      h("p", { role: "alert" }, h("strong", {}, clock ? "Not connected. " : "No answer yet. "), sentence(cause)),
      h("p", { class: "muted" },
        clock && `The page shows the state of ${clock.timeOfDay()}, ${ago(duration(clock.sinceMerge()))}. `,
        wait < 1 ? "Trying again…" : `Trying again in ${duration(wait)}.`),
      h("button", { type: "button" }, "Try now"),
    );
  }
}

// <trivet-summary> is the health of the cluster in one line.
class Summary extends HTMLElement {
  show(status, { clock, partial }) {
    const problems = status.services.reduce((sum, { problems }) => sum + problems.length, 0);
    const healthy = status.services.filter(({ healthy }) => healthy).length;
    const answered = status.sources.filter(({ ok }) => ok).length;
    render(
      this,
      h("span", { class: "pill", "data-health": status.healthy ? "good" : partial ? "bad" : "fair", role: "status" },
        status.healthy ? "Healthy" : plural(problems, "problem")),
      h("span", { class: "muted" }, `${count(healthy)} of ${plural(status.services.length, "service")} healthy`),
      h("span", { class: "muted" }, `${count(answered)} of ${plural(status.sources.length, "replica")} answered`),
      h("time", { class: "muted", datetime: status.mergeTime }, clock.timeOfDay()),
    );
  }
}

// <trivet-pot> is the control plane that stands on the trivet, as the replicas see it.
class Pot extends HTMLElement {
  show(status) {
    document.documentElement.dataset.health = status.healthy ? "good" : "fair";
    render(
      this,
      h("strong", { title: status.cluster }, status.cluster || "Kubernetes"),
      h("ul", {}, dependencies(status).map(({ name, failing }) =>
        h("li", { key: name, "data-health": failing.length ? "bad" : "good", title: failing.join("\n") },
          h("span", { class: "dot" }), name, h("span", { class: "hidden-text" }, failing.length ? " is unhealthy" : " is healthy")))),
    );
  }
}

// dependencies returns what the replicas depend on, and which of them report a failure of it.
function dependencies(status) {
  const found = new Map();
  for (const { replica, dependencies } of status.services.flatMap(({ replicas }) => replicas)) {
    for (const { name, healthy, reason } of dependencies) {
      if (!found.has(name)) found.set(name, []);
      if (!healthy) found.get(name).push(`${replica.id}: ${reason}`);
    }
  }
  return [...found].map(([name, failing]) => ({ name, failing })).sort((a, b) => (a.name < b.name ? -1 : 1));
}

// <trivet-sources> lists the replicas that were asked, and the latency or the error of each.
class Sources extends HTMLElement {
  show({ sources }) {
    render(
      this,
      h("h2", {}, "Replicas"),
      h("ul", {}, sources.map(({ replica, ok, code, message, latency }) =>
        h("li", { key: `${replica.service}/${replica.id}`, "data-health": ok ? "good" : "bad", title: message || replica.grpcAddress },
          h("span", { class: "dot", "data-health": ok ? "good" : "bad" }),
          h("span", { class: "service" }, replica.service),
          h("span", { class: "id muted" }, replica.id),
          h("span", { class: "end" }, ok ? milliseconds(latency) : code),
        ))),
    );
  }
}

customElements.define("trivet-banner", Banner);
customElements.define("trivet-summary", Summary);
customElements.define("trivet-pot", Pot);
customElements.define("trivet-sources", Sources);
