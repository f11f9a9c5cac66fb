// <trivet-service name="leasesvc" description="…"> is one service: its leader, its counts, its
// replicas and their loops.

import { ago, count, plural } from "./format.js";
import { h, muted, render } from "./view.js";

const healthWords = { good: "Healthy", fair: "Degraded", bad: "Down" };

const loopStates = {
  STATE_DISABLED: { word: "off", health: "off" },
  STATE_STANDBY: { word: "standby", health: "off" },
  STATE_RUNNING: { word: "running", health: "good" },
  STATE_FAILING: { word: "failing", health: "fair" },
  STATE_STALLED: { word: "stalled", health: "bad" },
};

// countWords are the labels of counts whose names say too little.
const countWords = { repairs: "baseline writes", queue: "queued services", streams: "heartbeat streams" };

class Service extends HTMLElement {
  connectedCallback() {
    this.draw({ problems: [], body: [muted("waiting", "Waiting for the first answer…")] });
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
    render(
      this,
      h("header", {},
        h("h2", {}, this.getAttribute("name")),
        h("span", { class: "pill", "data-health": this.dataset.health }, healthWords[this.dataset.health] ?? "…"),
        h("p", { class: "muted" }, this.getAttribute("description"))),
      problems.length > 0 && h("ul", { class: "problems" }, problems.map((problem) => h("li", {}, problem))),
      body,
    );
  }
}

// healthOf is bad if no replica answers.
export function healthOf({ healthy, replicas }) {
  if (healthy) return "good";
  return replicas.length > 0 ? "fair" : "bad";
}

// leadership shows the holder of the only shard, or how many shards each replica holds. Without a
// replica that answers, the holders are unknown.
function leadership({ service, leader, terms, replicas }, clock) {
  if (service === "gateway" || replicas.length === 0) return null;
  if (terms.length <= 1) {
    const [term] = terms;
    return h("dl", { class: "facts" },
      titledFact("Leader", leader || "none", !leader && "bad"),
      term && leader && titledFact("Epoch", term.epoch),
      term && leader && titledFact("Age", clock.age(term.acquireTime)));
  }
  return h("div", { class: "shards" },
    h("p", {}, `${count(terms.length)} shards`, h("span", { class: "muted" }, ` · newest epoch ${Math.max(...terms.map(({ epoch }) => Number(epoch)))}`)),
    h("ul", {}, sharesOf(terms).map(([holder, held]) =>
      h("li", { key: holder, "data-health": holder ? "good" : "bad" },
        h("span", { class: "id" }, holder || "no leader"),
        h("meter", { min: 0, max: terms.length, value: held, "aria-label": holder ? `shards of ${holder}` : "shards without a leader" }),
        h("span", { class: "number" }, count(held))))));
}

function titledFact(name, value, health) {
  return h("div", { "data-health": health }, h("dt", {}, name), h("dd", { title: value }, value));
}

// sharesOf counts the shards of each holder.
function sharesOf(terms) {
  const shares = new Map();
  for (const { replicaId } of terms) shares.set(replicaId, (shares.get(replicaId) ?? 0) + 1);
  return [...shares].sort(([a], [b]) => (a < b ? -1 : 1));
}

// counts adds up the counts of the holders, because each counts its own shards. A service without
// terms has no holders: there the first replica counts.
function counts({ replicas }) {
  const holders = replicas.filter(({ terms }) => terms.some(({ heldHere }) => heldHere));
  const totals = new Map();
  for (const { counts } of holders.length > 0 ? holders : replicas.slice(0, 1)) {
    for (const [name, value] of Object.entries(counts)) totals.set(name, (totals.get(name) ?? 0) + Number(value));
  }
  if (totals.size === 0) return null;
  return h("dl", { class: "counts" }, [...totals].sort(([a], [b]) => (a < b ? -1 : 1)).map(([name, value]) =>
    h("div", { key: name }, h("dd", {}, count(value)), h("dt", {}, countWords[name] ?? name.replaceAll("_", " ")))));
}

function replicaList(service, silent, clock) {
  const shares = new Map(sharesOf(service.terms));
  const only = service.replicas.length === 1;
  return h("div", { class: "replicas" },
    service.replicas.map((replica) => replicaView(replica, { clock, role: roleOf(shares.get(replica.replica.id) ?? 0, service.terms.length), only })),
    silent.map(silentView));
}

// roleOf is "" for a standby.
function roleOf(held, shards) {
  if (held === 0) return "";
  return shards === 1 ? "leader" : `${count(held)} of ${count(shards)} shards`;
}

// replicaView shows a replica that answered. Its details are open if it has a role or is the only
// one. The problems of the service say why it is not ready.
function replicaView({ replica, ready, loops }, { clock, role, only }) {
  return h("details", { key: `replica ${replica.id}`, initial: { open: role !== "" || only }, class: "replica" },
    h("summary", {},
      h("span", { class: "dot", "data-health": ready ? "good" : "fair" }),
      h("span", { class: "id", title: `${replica.id}\n${replica.grpcAddress}\n${replica.version}` }, replica.id),
      role && h("span", { class: "badge" }, role),
      h("span", { class: "muted end" }, `${ready ? "ready" : "not ready"}, up ${clock.age(replica.startTime)}`)),
    loops.length > 0 && h("ul", { class: "loops" }, loops.map((loop) => loopView(loop, clock))),
    h("p", { class: "muted address" }, `${replica.grpcAddress} · ${replica.version}`));
}

// silentView shows a replica that is registered and did not answer.
function silentView({ replica, code }) {
  return h("div", { key: `silent ${replica.id}`, class: "replica silent" },
    h("p", {},
      h("span", { class: "dot", "data-health": "bad" }),
      h("span", { class: "id", title: replica.id }, replica.id),
      h("span", { class: "muted end" }, "no answer")),
    h("p", { class: "muted address" }, `${replica.grpcAddress} · `, h("code", {}, code)));
}

function loopView({ name, state, lastRunTime, lastError, runs, failures }, clock) {
  const { word, health } = loopStates[state] ?? { word: state, health: "off" };
  const lastPass = ago(lastRunTime ? clock.age(lastRunTime) : "");
  const passes = `last pass: ${lastPass}\n${plural(Number(runs), "pass", "passes")}, ${count(failures)} failed`;
  return h("li", { key: name, "data-health": health, title: passes },
    h("span", { class: "dot", "data-health": health }),
    h("span", { class: "id" }, name),
    h("span", { class: "muted" }, word),
    h("span", { class: "muted end" }, health === "off" ? "" : lastPass),
    lastError && h("p", { class: "error" }, lastError));
}

customElements.define("trivet-service", Service);
