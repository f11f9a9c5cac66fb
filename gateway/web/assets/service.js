// <trivet-service name="leasesvc" carries="…"> is one service: who leads, what it counts, how its replicas and loops fare.

import { count } from "./clock.js";
import { replicaView, silentView } from "./replica.js";
import { h, render } from "./view.js";

class Service extends HTMLElement {
  connectedCallback() {
    this.draw({ problems: [], body: [h("p", { class: "quiet" }, "Waiting for the first answer…")] });
  }

  show(status, { clock }) {
    const name = this.getAttribute("name");
    const service = status.services.find(({ service }) => service === name);
    if (!service) return;
    const silent = status.sources.filter(({ ok, replica }) => !ok && replica.service === name);
    this.dataset.health = healthOf(service);
    this.draw({ problems: service.problems, body: [leadership(service, clock), counts(service), replicaList(service, silent, clock)] });
  }

  draw({ problems, body }) {
    const words = { good: "Standing", fair: "Unsteady", bad: "Down" };
    render(
      this,
      h("header", {},
        h("h2", {}, this.getAttribute("name")),
        h("span", { class: "pill", "data-health": this.dataset.health }, words[this.dataset.health] ?? "…"),
        h("p", { class: "quiet" }, this.getAttribute("carries"))),
      problems.length > 0 && h("ul", { class: "problems" }, problems.map((problem) => h("li", {}, problem))),
      body,
    );
  }
}

// healthOf is good when nothing is wrong, and bad when nobody answers.
export function healthOf({ healthy, replicas }) {
  if (healthy) return "good";
  return replicas.length > 0 ? "fair" : "bad";
}

// leadership names the holder of the only shard, or how many shards each replica holds.
function leadership({ service, leader, terms, replicas }, clock) {
  if (service === "gateway" || replicas.length === 0) return null; // nobody to ask is not nobody leading
  if (terms.length <= 1) {
    const [term] = terms;
    return h("dl", { class: "facts" },
      fact("Leader", leader || "nobody", !leader),
      term && leader && fact("Epoch", term.epoch),
      term && leader && fact("For", clock.age(term.acquireTime)));
  }
  const shares = sharesOf(terms);
  return h("div", { class: "shards" },
    h("p", {}, `${count(terms.length)} shards`, h("span", { class: "quiet" }, ` · newest epoch ${Math.max(...terms.map(({ epoch }) => Number(epoch)))}`)),
    h("ul", {}, shares.map(([holder, held]) =>
      h("li", { key: holder, "data-health": holder ? "good" : "bad" },
        h("span", { class: "id" }, holder || "nobody"),
        h("meter", { min: 0, max: terms.length, value: held, "aria-label": `shards of ${holder || "nobody"}` }),
        h("span", { class: "number" }, count(held))))));
}

function sharesOf(terms) {
  const shares = new Map();
  for (const { replicaId } of terms) shares.set(replicaId, (shares.get(replicaId) ?? 0) + 1);
  return [...shares].sort(([a], [b]) => (a < b ? -1 : 1));
}

function fact(name, value, alarming) {
  return h("div", { "data-health": alarming && "bad" }, h("dt", {}, name), h("dd", { title: value }, value));
}

// counts adds up what the holders of terms report, for each counts its own shards; a service without terms has no holders,
// and there the first replica speaks.
function counts({ replicas }) {
  const holders = replicas.filter(({ terms }) => terms.some(({ heldHere }) => heldHere));
  const totals = new Map();
  for (const { counts } of holders.length > 0 ? holders : replicas.slice(0, 1)) {
    for (const [name, value] of Object.entries(counts)) totals.set(name, (totals.get(name) ?? 0) + Number(value));
  }
  if (totals.size === 0) return null;
  return h("dl", { class: "counts" }, [...totals].sort(([a], [b]) => (a < b ? -1 : 1)).map(([name, value]) =>
    h("div", { key: name }, h("dd", {}, count(value)), h("dt", {}, name.replaceAll("_", " ")))));
}

function replicaList(service, silent, clock) {
  const shares = new Map(sharesOf(service.terms));
  const only = service.replicas.length === 1;
  return h("div", { class: "replicas" },
    service.replicas.map((replica) => replicaView(replica, { clock, duty: dutyOf(shares.get(replica.replica.id) ?? 0, service.terms.length), only })),
    silent.map((source) => silentView(source)));
}

// dutyOf says what a replica does in its service; nothing of one that stands by. Where there are shards, nobody leads.
function dutyOf(held, shards) {
  if (held === 0) return "";
  return shards === 1 ? "leads" : `holds ${count(held)} of ${count(shards)} shards`;
}

customElements.define("trivet-service", Service);
