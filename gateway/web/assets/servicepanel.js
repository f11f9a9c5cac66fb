// <trivet-service-panel> is one Service with its slices: the fill of each, what the last sync
// wrote, what the next one would write, and which other writer interferes. It shows the Service of
// the fragment #service/NAMESPACE/NAME.

import { ago, conditionOf, count, label, milliseconds, plural, sentence, sourceText } from "./format.js";
import { PollPanel } from "./panel.js";
import { lastSync, planText } from "./slices.js";
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
    const path = `/v1/namespaces/${namespace}/serviceslices/${service}`;
    const [found, { plan }] = await Promise.all([ask(path, signal), ask(`${path}:plan`, signal, {})]);
    return { ...found, plan };
  }

  body({ serviceSlices: service, sources, plan }) {
    const managed = conditionOf(service.conditions, "Managed");
    if (managed?.is === "FALSE") {
      return h("p", { key: "unmanaged", class: "panel-summary" }, h("strong", {}, "Not managed. "), sentence(managed.message));
    }
    const contended = conditionOf(service.conditions, "Contended");
    const hints = conditionOf(service.conditions, "TopologyHints");
    const dropped = conditionOf(service.conditions, "AddressesDropped");
    const overlap = conditionOf(service.conditions, "SourcesOverlap");
    const failing = service.syncs.find(({ lastError }) => lastError);
    return [
      h("p", { key: "summary", class: "panel-summary" }, h("strong", {}, `${count(service.readyEndpointCount)} of ${plural(service.endpointCount, "endpoint")} ready. `),
        `${plural(service.slices.length, "slice")}, ideally ${count(service.idealSliceCount)}.`),
      contended?.is === "TRUE" && alert("contended", "bad", "Contended. ", sentence(contended.message)),
      failing && alert("error", "bad", `The last ${failing.failureCount > 1 ? `${count(failing.failureCount)} syncs` : "sync"} failed. `, failing.lastError),
      dropped?.is === "TRUE" && alert("dropped", "fair", "Addresses in no slice. ", sentence(dropped.message)),
      overlap?.is === "TRUE" && alert("overlap", "fair", "Slices of both sources. ", sentence(overlap.message)),
      hints?.is === "FALSE" && alert("topology", "fair", "No hints. ", sentence(hints.message)),
      managed?.reason === "MIRRORED" && muted("mirrored", sentence(managed.message)),
      h("dl", { key: "facts", class: "panel-facts" }, this.facts(service, sources)),
      h("h3", { key: "slices" }, "Slices"),
      h("ol", { key: "list", class: "slice-list" },
        service.slices.slice(0, longestList).map((slice) => this.slice(slice)),
        service.slices.length > longestList && h("li", { key: "more", class: "muted" }, `And ${count(service.slices.length - longestList)} more.`)),
      h("h3", { key: "next" }, "Next sync"),
      nextSync(plan),
    ];
  }

  facts({ slices, syncs, topology, owner }, sources) {
    const { lastPlan, lastSuccessTime } = lastSync(syncs) ?? {};
    const dropped = syncs.reduce((sum, { droppedAddressCount }) => sum + droppedAddressCount, 0);
    const latency = lastPlan?.latency && milliseconds(lastPlan.latency);
    return [
      fact("Endpoints from", { both: "the selector and the Endpoints object", Endpoints: "the Endpoints object", selector: "the selector" }[sourceText(slices)]),
      fact("Last plan", lastPlan && `${planText(lastPlan)}, ${ago(this.clock.age(lastPlan.startTime))}`),
      fact("From change to write", latency),
      fact("Last sync", lastSuccessTime && ago(this.clock.age(lastSuccessTime))),
      fact("Topology hints", topology || "none"),
      fact("Dropped addresses", dropped > 0 && count(dropped), "bad"),
      fact("Written by", Number(owner?.epoch) > 0 ? `${owner.replicaId}, shard ${owner.shard}, epoch ${owner.epoch}` : `no replica at present; reported by ${sources[0]?.replicaId}`),
    ];
  }

  slice({ name, addressType, ports, endpointCount, readyEndpointCount, hintedEndpointCount, capacity, createTime, writeTime, source, lastError }) {
    const details = [
      source === "SLICE_SOURCE_ENDPOINTS" && "mirrored",
      addressType, ports.map(portText).join(", ") || "no ports",
      `${count(readyEndpointCount)} ready`, hintedEndpointCount > 0 && `${count(hintedEndpointCount)} with hints`,
      createTime && `${this.clock.age(createTime)} old`, writeTime && `written ${ago(this.clock.age(writeTime))}`,
    ];
    return h("li", { key: name },
      h("span", { class: "id" }, name),
      h("meter", { min: 0, max: capacity, value: endpointCount, "aria-label": "fill" }, `${endpointCount} of ${capacity}`),
      h("span", { class: "figure" }, `${count(endpointCount)}/${count(capacity)}`),
      h("span", { class: "muted" }, details.filter(Boolean).join(" · ")),
      lastError && h("p", { class: "error" }, lastError));
  }
}

function portText({ name, protocol, port }) {
  return `${name ? `${name} ` : ""}${port ?? "any"}/${protocol}`;
}

function fieldView({ path, before, after }) {
  return h("li", { key: path, class: "muted" }, h("code", {}, path), `: ${before || "nothing"} → ${after || "nothing"}`);
}

function alert(key, health, summary, detail) {
  return notice(key, health, h("strong", {}, summary), detail);
}

// nextSync is what the next sync would write, and what delays endpoints.
function nextSync({ changes, incompleteReasons }) {
  return [
    incompleteReasons.length > 0 && alert("waiting", "fair", "Endpoints wait. ", incompleteReasons.map(({ message }) => sentence(message)).join(" ")),
    changes.length === 0 && muted("nothing", "Nothing to write."),
    h("ol", { key: "plan", class: "slice-list" }, changes.slice(0, longestList).map(({ verb, object, reason, message, fieldChanges }) =>
      h("li", { key: object?.name },
        h("span", { class: "id" }, `${verbs[verb] ?? verb} ${object?.name ?? ""}`),
        h("span", { class: "muted" }, `${label(reason)}: ${message}`),
        fieldChanges.length > 0 && h("ul", {}, fieldChanges.map(fieldView))))),
  ];
}

customElements.define("trivet-service-panel", ServicePanel);
