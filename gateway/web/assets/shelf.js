// <trivet-shelf> is one Service with its slices: what lies in each, what the last pass wrote, what the next one would, and who is
// in the way. It shows the Service that the address names, #service/NAMESPACE/NAME, and asks anew while it is open.

import { AskingPanel, fact } from "./asking.js";
import { ago, count, milliseconds } from "./clock.js";
import { plan } from "./slices.js";
import { ask } from "./stream.js";
import { h } from "./view.js";
import { spoken } from "./words.js";

const longestList = 100;

const verbs = { VERB_CREATE: "create", VERB_UPDATE: "update", VERB_DELETE: "delete" };

class Shelf extends AskingPanel {
  gone = "SERVICE_NOT_FOUND";

  // subjectIn is the Service that an address names. Only what can be the name of one counts.
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
      return h("p", { key: "unmanaged", class: "belief" }, h("strong", {}, "Left alone. "),
        service.unmanagedReason === "EXTERNAL_NAME" ? "An ExternalName has no slices of slicesvc." : "Without a selector its slices are somebody else's.");
    }
    return [
      h("p", { key: "belief", class: "belief" }, h("strong", {}, `${count(service.readyEndpoints)} of ${count(service.endpoints)} endpoints are ready. `),
        `${count(service.slices.length)} ${service.slices.length === 1 ? "slice" : "slices"}, ${count(service.idealSlices)} would do.`),
      service.contendedBy && notice("contended", "bad", `${service.contendedBy} keeps changing these slices back. `, "They are left alone for a while, but for endpoints that are missing."),
      service.lastError && notice("error", "bad", `The last ${service.failures > 1 ? `${count(service.failures)} passes` : "pass"} failed. `, service.lastError),
      service.topologyProblem && notice("topology", "fair", "No hints. ", service.topologyProblem),
      h("dl", { key: "facts", class: "node-facts" }, this.facts(service, freshness)),
      h("h3", { key: "slices" }, "Slices"),
      h("ol", { key: "shelf", class: "shelf" },
        service.slices.slice(0, longestList).map((slice) => this.slice(slice)),
        service.slices.length > longestList && h("li", { key: "more", class: "quiet" }, `And ${count(service.slices.length - longestList)} more.`)),
      h("h3", { key: "next" }, "The next pass"),
      nextPass(next),
    ];
  }

  facts({ lastPlan, lastSyncTime, topology, shard, epoch }, freshness) {
    const latency = lastPlan?.latency && milliseconds(lastPlan.latency);
    return [
      fact("Last pass", lastPlan && `${plan(lastPlan)}, ${ago(this.clock.age(lastPlan.time))}`),
      fact("From change to slice", latency),
      fact("In line", lastSyncTime && ago(this.clock.age(lastSyncTime))),
      fact("Traffic kept near", topology || "no"),
      fact("Kept by", Number(epoch) > 0 ? `${freshness.replicaId}, shard ${shard}, epoch ${epoch}` : `nobody now; told by ${freshness.replicaId}`),
    ];
  }

  slice({ name, addressType, ports, endpoints, readyEndpoints, hintedEndpoints, capacity, createTime, writeTime }) {
    const told = [
      addressType, ports.map(portText).join(", ") || "no ports",
      `${count(readyEndpoints)} ready`, hintedEndpoints > 0 && `${count(hintedEndpoints)} with hints`,
      createTime && `${this.clock.age(createTime)} old`, writeTime && `written ${ago(this.clock.age(writeTime))}`,
    ];
    return h("li", { key: name },
      h("span", { class: "id" }, name),
      h("meter", { min: 0, max: capacity, value: endpoints, "aria-label": "how full" }, `${endpoints} of ${capacity}`),
      h("span", { class: "figure" }, `${count(endpoints)}/${count(capacity)}`),
      h("span", { class: "quiet" }, told.filter(Boolean).join(" · ")));
  }
}

function portText({ name, protocol, port }) {
  return `${name ? `${name} ` : ""}${port || "any"}/${protocol}`;
}

function notice(key, health, loud, words) {
  return h("p", { key, class: "notice", role: "status", "data-health": health }, h("strong", {}, loud), words);
}

// nextPass is what would be written now, and what holds endpoints up.
function nextPass({ changes, waitingFor }) {
  return [
    waitingFor.length > 0 && notice("waiting", "fair", "Endpoints wait. ", waitingFor.join(", ")),
    changes.length === 0 && h("p", { key: "nothing", class: "quiet" }, "Nothing to write."),
    h("ol", { key: "plan", class: "shelf" }, changes.slice(0, longestList).map(({ verb, object, reason, detail }) =>
      h("li", { key: object?.name },
        h("span", { class: "id" }, `${verbs[verb] ?? verb} ${object?.name ?? ""}`),
        h("span", { class: "quiet" }, `${spoken(reason)}: ${detail}`)))),
  ];
}

customElements.define("trivet-shelf", Shelf);
