// <trivet-pot> is what stands on the trivet: the control plane, as the replicas see it.

import { h, render } from "./view.js";

class Pot extends HTMLElement {
  show(status) {
    document.documentElement.dataset.health = status.healthy ? "good" : "fair";
    render(
      this,
      h("strong", { title: status.cluster }, status.cluster || "Kubernetes"),
      h("ul", {}, dependencies(status).map(({ name, failing }) =>
        h("li", { key: name, "data-health": failing.length ? "bad" : "good", title: failing.join("\n") },
          h("span", { class: "dot" }), name, h("span", { class: "unseen" }, failing.length ? " is not well" : " is well")))),
    );
  }
}

// dependencies says who cannot do without what, and which replicas find it failing.
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

customElements.define("trivet-pot", Pot);
