// <trivet-apiservers> lists the kube-apiservers: whether each is ready, whether pods are sent to it, and why.

import { count } from "./clock.js";
import { Poll } from "./poll.js";
import { h, render } from "./view.js";
import { sentence } from "./words.js";

const period = 2000;

const sources = { SOURCE_SIDECAR: "its sidecar", SOURCE_MASTER_LEASE: "its own key", SOURCE_STATIC: "a flag" };

class APIServers extends HTMLElement {
  connectedCallback() {
    this.draw();
    new Poll("/v1/apiservers", period, {
      answer: ({ apiservers }) => {
        this.apiservers = apiservers;
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
    const { apiservers, failure } = this;
    this.dataset.old = failure && apiservers ? "yes" : "no";
    const ready = apiservers?.filter(({ ready }) => ready).length;
    render(
      this,
      h("header", {}, h("h2", {}, "API servers"), apiservers?.length > 0 && h("strong", {}, `${count(ready)} of ${count(apiservers.length)} ready`)),
      failure && h("p", { key: "failure", class: "notice", role: "status", "data-health": "bad" }, apiservers ? "This is old: " : "Nothing is known of them: ", failure.cause),
      !apiservers && !failure && h("p", { key: "waiting", class: "quiet" }, "Waiting for the first answer…"),
      apiservers?.length === 0 && h("p", { key: "none", class: "quiet" }, "None is known: no sidecar reports one."),
      apiservers?.length > 0 && h("ul", { key: "list", class: "apiservers" }, apiservers.map(line)),
    );
  }
}

function line({ name, address, port, ready, published, reason, probeDetail, problems, source, replicaId }) {
  const health = ready ? (problems.length > 0 ? "fair" : "good") : "bad";
  const why = reason || (ready ? "" : probeDetail);
  return h("li", { key: name, "data-health": health },
    h("span", { class: "dot", "data-health": health }),
    h("span", { class: "id" }, address.includes(":") ? `[${address}]:${port}` : `${address}:${port}`),
    published ? h("span", { class: "badge" }, "endpoint") : h("span", { class: "quiet" }, "no endpoint"),
    h("span", { class: "quiet end" }, [ready ? "ready" : "not ready", sources[source] && `known from ${sources[source]}`].filter(Boolean).join(", ")),
    why && h("p", { key: "why", class: "quiet" }, sentence(why)),
    problems.map((problem) => h("p", { key: problem, class: "trouble" }, problem)),
    replicaId && h("span", { class: "unseen" }, ` beside ${replicaId}`));
}

customElements.define("trivet-apiservers", APIServers);
