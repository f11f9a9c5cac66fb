// <trivet-service-panel> is one Service with its slices: the fill of each, what the last sync
// wrote, what the next one would write, and which other writer interferes. It shows the Service of
// the fragment #service/NAMESPACE/NAME.

import { ago, count, label, milliseconds, plural } from "./format.js";
import { PollPanel } from "./panel.js";
import { planText } from "./slices.js";
import { ask } from "./stream.js";
import { fact, h, muted, notice } from "./view.js";

const longestList = 100;

const verbs = { VERB_CREATE: "create", VERB_UPDATE: "update", VERB_DELETE: "delete" };

class ServicePanel extends PollPanel {
  gone = "SERVICE_NOT_FOUND";

  // subjectIn accepts only what can be the name of a Service.
  subjectIn(hash) {
    return /^#service\/([a-z0-9][-a-z0-9]*\/[a-z0-9][-a-z0-9]*)$/.exec(hash)?.[1] ?? null;
  }

  async ask(name, signal) {
    const [namespace, service] = name.split("/");
    const path = `/v1/namespaces/${namespace}/services/${service}/slices`;
    const [found, next] = await Promise.all([ask(path, signal), ask(`${path}:plan`, signal)]);
    return { ...found, next };
  }

  body({ serviceSlices: service, freshness, next }) {
    if (!service.managed) {
      return h("p", { key: "unmanaged", class: "panel-summary" }, h("strong", {}, "Not managed. "),
        service.unmanagedReason === "EXTERNAL_NAME" ? "An ExternalName has no slices." : "A Service without a selector gets its slices from another writer.");
    }
    return [
      h("p", { key: "summary", class: "panel-summary" }, h("strong", {}, `${count(service.readyEndpoints)} of ${plural(service.endpoints, "endpoint")} ready. `),
        `${plural(service.slices.length, "slice")}, ideally ${count(service.idealSlices)}.`),
      service.contendedBy && alert("contended", "bad", `${service.contendedBy} keeps reverting these slices. `, "slicesvc backs off, and only adds missing endpoints."),
      service.lastError && alert("error", "bad", `The last ${service.failures > 1 ? `${count(service.failures)} syncs` : "sync"} failed. `, service.lastError),
      service.topologyProblem && alert("topology", "fair", "No hints. ", service.topologyProblem),
      h("dl", { key: "facts", class: "panel-facts" }, this.facts(service, freshness)),
      h("h3", { key: "slices" }, "Slices"),
      h("ol", { key: "list", class: "slice-list" },
        service.slices.slice(0, longestList).map((slice) => this.slice(slice)),
        service.slices.length > longestList && h("li", { key: "more", class: "muted" }, `And ${count(service.slices.length - longestList)} more.`)),
      h("h3", { key: "next" }, "Next sync"),
      nextSync(next),
    ];
  }

  facts({ lastPlan, lastSyncTime, topology, shard, epoch }, freshness) {
    const latency = lastPlan?.latency && milliseconds(lastPlan.latency);
    return [
      fact("Last plan", lastPlan && `${planText(lastPlan)}, ${ago(this.clock.age(lastPlan.time))}`),
      fact("From change to write", latency),
      fact("Last sync", lastSyncTime && ago(this.clock.age(lastSyncTime))),
      fact("Topology hints", topology || "none"),
      fact("Written by", Number(epoch) > 0 ? `${freshness.replicaId}, shard ${shard}, epoch ${epoch}` : `no replica at present; reported by ${freshness.replicaId}`),
    ];
  }

  slice({ name, addressType, ports, endpoints, readyEndpoints, hintedEndpoints, capacity, createTime, writeTime }) {
    const details = [
      addressType, ports.map(portText).join(", ") || "no ports",
      `${count(readyEndpoints)} ready`, hintedEndpoints > 0 && `${count(hintedEndpoints)} with hints`,
      createTime && `${this.clock.age(createTime)} old`, writeTime && `written ${ago(this.clock.age(writeTime))}`,
    ];
    return h("li", { key: name },
      h("span", { class: "id" }, name),
      h("meter", { min: 0, max: capacity, value: endpoints, "aria-label": "fill" }, `${endpoints} of ${capacity}`),
      h("span", { class: "figure" }, `${count(endpoints)}/${count(capacity)}`),
      h("span", { class: "muted" }, details.filter(Boolean).join(" · ")));
  }
}

function portText({ name, protocol, port }) {
  return `${name ? `${name} ` : ""}${port || "any"}/${protocol}`;
}

function alert(key, health, summary, detail) {
  return notice(key, health, h("strong", {}, summary), detail);
}

// nextSync is what the next sync would write, and what delays endpoints.
function nextSync({ changes, waitingFor }) {
  return [
    waitingFor.length > 0 && alert("waiting", "fair", "Endpoints wait. ", waitingFor.join(", ")),
    changes.length === 0 && muted("nothing", "Nothing to write."),
    h("ol", { key: "plan", class: "slice-list" }, changes.slice(0, longestList).map(({ verb, object, reason, detail }) =>
      h("li", { key: object?.name },
        h("span", { class: "id" }, `${verbs[verb] ?? verb} ${object?.name ?? ""}`),
        h("span", { class: "muted" }, `${label(reason)}: ${detail}`)))),
  ];
}

customElements.define("trivet-service-panel", ServicePanel);
