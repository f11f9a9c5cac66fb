// One replica of a service: whether it is ready, and its loops. Why it is not ready or silent stands among the service's
// problems already.

import { ago, count } from "./clock.js";
import { h } from "./view.js";

const states = {
  STATE_DISABLED: { word: "off", health: "off" },
  STATE_STANDBY: { word: "standby", health: "off" },
  STATE_RUNNING: { word: "running", health: "good" },
  STATE_FAILING: { word: "failing", health: "fair" },
  STATE_STALLED: { word: "stalled", health: "bad" },
};

// replicaView shows a replica that answered. Its loops are open where they matter: where it has a duty, and at a single
// replica.
export function replicaView({ replica, ready, loops }, { clock, duty, only }) {
  const health = ready ? "good" : "fair";
  const summary = h("summary", {},
    h("span", { class: "dot", "data-health": health }),
    h("span", { class: "id", title: `${replica.id}\n${replica.grpcAddress}\n${replica.version}` }, replica.id),
    duty && h("span", { class: "badge" }, duty),
    h("span", { class: "quiet end" }, `${ready ? "ready" : "not ready"}, up ${clock.age(replica.startTime)}`));
  return h("details", { key: `replica ${replica.id}`, initial: { open: duty !== "" || only }, class: "replica" },
    summary,
    loops.length > 0 && h("ul", { class: "loops" }, loops.map((loop) => loopView(loop, clock))),
    h("p", { class: "quiet address" }, `${replica.grpcAddress} · ${replica.version}`));
}

// silentView shows a replica that is registered and did not answer.
export function silentView({ replica, code }) {
  return h("div", { key: `silent ${replica.id}`, class: "replica silent" },
    h("p", {},
      h("span", { class: "dot", "data-health": "bad" }),
      h("span", { class: "id", title: replica.id }, replica.id),
      h("span", { class: "quiet end" }, "no answer")),
    h("p", { class: "quiet address" }, `${replica.grpcAddress} · `, h("code", {}, code)));
}

function loopView({ name, state, lastRunTime, lastError, runs, failures }, clock) {
  const { word, health } = states[state] ?? { word: state, health: "off" };
  const failed = Number(failures);
  const times = `${count(runs)} passes, ${count(failed)} failed`;
  return h("li", { key: name, "data-health": health, title: times },
    h("span", { class: "dot", "data-health": health }),
    h("span", { class: "id" }, name),
    h("span", { class: "quiet" }, word),
    h("span", { class: "quiet end" }, health === "off" ? "" : ago(lastRunTime ? clock.age(lastRunTime) : "")),
    lastError && h("p", { class: "trouble" }, lastError));
}
