// <trivet-service name="leasesvc" description="…"> is one service: its verdict, its leaders, its
// counts, its replicas and their loops.

import { ago, count, plural } from "./format.js";
import { healthOf, problemList, verdictPill } from "./verdict.js";
import { h, muted, render } from "./view.js";

const loopStates = {
  STATE_DISABLED: { word: "off", health: "off" },
  STATE_STANDBY: { word: "standby", health: "off" },
  STATE_RUNNING: { word: "running", health: "good" },
  STATE_FAILING: { word: "failing", health: "fair" },
  STATE_STALLED: { word: "stalled", health: "bad" },
};

// countWords are the labels of counts whose names say too little.
const countWords = {
  mirrored_endpoints_objects: "mirrored Endpoints",
  mirroring_queue: "queued Endpoints",
  queue: "queued services",
  streams: "heartbeat streams",
};

class Service extends HTMLElement {
  connectedCallback() {
    this.draw({ verdict: null, body: [muted("waiting", "Waiting for the first answer…")] });
  }

  // refuse says that the caller may not see the status.
  refuse() {
    this.draw({ verdict: null, body: [muted("refused", "Not shown: the status needs a right that you do not have.")] });
  }

  show(status, { clock, missing }) {
    const name = this.getAttribute("name");
    const service = status.services.find(({ service }) => service === name);
    if (!service) return;
    this.dataset.health = healthOf(service.verdict);
    this.draw({ verdict: service.verdict, body: [leadership(service), counts(service), replicaFold(service, { clock, missing })] });
  }

  draw({ verdict, body }) {
    render(
      this,
      h("div", { class: "heading" },
        h("h2", {}, this.getAttribute("name")),
        verdict && verdictPill(verdict),
        h("p", { class: "muted" }, this.getAttribute("description"))),
      verdict && problemList(verdict),
      body,
    );
  }
}

// leadership shows the leader of the only shard, or how many shards each replica leads. Without a
// replica that answers, the leaders are unknown.
function leadership({ service, shardCount, ledShardCount, replicas }) {
  if (service === "gateway" || !replicas.some(({ status }) => status)) return null;
  const shares = replicas.map(({ replica, status }) => [replica.id, status?.ledShards.length ?? 0]).filter(([, led]) => led > 0);
  if (shardCount <= 1) {
    const leader = shares[0]?.[0];
    return h("dl", { class: "facts" }, titledFact("Leader", leader || (ledShardCount > 0 ? "a replica that does not answer" : "none"), !leader && "bad"));
  }
  const elsewhere = ledShardCount - shares.reduce((sum, [, led]) => sum + led, 0);
  if (elsewhere > 0) shares.push(["replicas that do not answer", elsewhere]);
  if (ledShardCount < shardCount) shares.push(["no leader", shardCount - ledShardCount]);
  return h("div", { class: "shards" },
    h("p", {}, `${count(shardCount)} shards`),
    h("ul", {}, shares.map(([leader, led]) =>
      h("li", { key: leader, "data-health": replicas.some(({ replica }) => replica.id === leader) ? "good" : "bad" },
        h("span", { class: "id" }, leader),
        h("meter", { min: 0, max: shardCount, value: led, "aria-label": `shards of ${leader}` }),
        h("span", { class: "number" }, count(led))))));
}

function titledFact(name, value, health) {
  return h("div", { "data-health": health }, h("dt", {}, name), h("dd", { title: value }, value));
}

// counts adds up the counts of the leaders, because each counts its own shards. A service without
// shards has no leaders: there the first replica that answers counts.
function counts({ replicas }) {
  const answers = replicas.map(({ status }) => status).filter(Boolean);
  const leaders = answers.filter(({ ledShards }) => ledShards.length > 0);
  const totals = new Map();
  for (const { counts } of leaders.length > 0 ? leaders : answers.slice(0, 1)) {
    for (const [name, value] of Object.entries(counts)) totals.set(name, (totals.get(name) ?? 0) + Number(value));
  }
  if (totals.size === 0) return null;
  return h("dl", { class: "counts" }, [...totals].sort(([a], [b]) => (a < b ? -1 : 1)).map(([name, value]) =>
    h("div", { key: name }, h("dd", {}, count(value)), h("dt", {}, countWords[name] ?? name.replaceAll("_", " ")))));
}

// replicaFold folds the replicas while the service has no problem.
function replicaFold(service, context) {
  const { verdict, replicas } = service;
  if (replicas.length === 0) return null;
  const answered = replicas.filter(({ status }) => status).length;
  const well = healthOf(verdict) === "good";
  return h("details", { key: `replicas ${well}`, initial: { open: !well }, class: "fold" },
    h("summary", {}, answered === replicas.length ? plural(replicas.length, "replica") : `${count(answered)} of ${plural(replicas.length, "replica")} answered`),
    replicaList(service, context));
}

function replicaList({ shardCount, replicas }, { clock, missing }) {
  const only = replicas.length === 1;
  return h("div", { class: "replicas" }, replicas.map(({ replica, status }) =>
    status
      ? replicaView(status, { clock, role: roleOf(status.ledShards.length, shardCount), only })
      : silentView(replica, missing.find(({ replicaId }) => replicaId === replica.id))));
}

// roleOf is "" for a standby.
function roleOf(led, shards) {
  if (led === 0) return "";
  return shards === 1 ? "leader" : `${count(led)} of ${count(shards)} shards`;
}

// replicaView shows a replica that answered. Its details are open if it has a role or is the only
// one. The problems of the service say why it is not ready.
function replicaView({ replica, ready, loops }, { clock, role, only }) {
  return h("details", { key: `replica ${replica.id}`, initial: { open: loops.some(({ lastError }) => lastError) || only }, class: "replica" },
    h("summary", {},
      h("span", { class: "dot", "data-health": ready ? "good" : "fair" }),
      h("span", { class: "id", title: `${replica.id}\n${replica.grpcAddress}\n${replica.version}` }, replica.id),
      role && h("span", { class: "badge" }, role),
      h("span", { class: "muted end" }, `${ready ? "ready" : "not ready"}, up ${clock.age(replica.startTime)}`)),
    loops.length > 0 && h("ul", { class: "loops" }, loops.map((loop) => loopView(loop, clock))),
    h("p", { class: "muted address" }, `${replica.grpcAddress} · ${replica.version}`));
}

// silentView shows a replica that is registered and did not answer.
function silentView(replica, failure) {
  return h("div", { key: `silent ${replica.id}`, class: "replica silent" },
    h("p", {},
      h("span", { class: "dot", "data-health": "bad" }),
      h("span", { class: "id", title: replica.id }, replica.id),
      h("span", { class: "muted end" }, "no answer")),
    h("p", { class: "muted address" }, `${replica.grpcAddress} · `, h("code", {}, failure?.code ?? "UNKNOWN")));
}

function loopView({ name, state, lastRunTime, lastError, runCount, failureCount }, clock) {
  const { word, health } = loopStates[state] ?? { word: state, health: "off" };
  const lastPass = ago(lastRunTime ? clock.age(lastRunTime) : "");
  const passes = `last pass: ${lastPass}\n${plural(Number(runCount), "pass", "passes")}, ${count(failureCount)} failed`;
  return h("li", { key: name, "data-health": health, title: passes },
    h("span", { class: "dot", "data-health": health }),
    h("span", { class: "id" }, name),
    h("span", { class: "muted" }, word),
    h("span", { class: "muted end" }, health === "off" ? "" : lastPass),
    lastError && h("p", { class: "error" }, lastError));
}

customElements.define("trivet-service", Service);
