// <trivet-node-panel> is one Node with its evidence: from its heartbeat to the eviction of its
// pods. It shows the Node of the fragment #node/NAME.

import { chain } from "./evidence.js";
import { ago, sentence, zoneText } from "./format.js";
import { healths, rankOf } from "./nodehealth.js";
import { PollPanel } from "./panel.js";
import { ask } from "./stream.js";
import { fact, h, notice } from "./view.js";

const signalSources = {
  SIGNAL_SOURCE_AGENT: "its agent",
  SIGNAL_SOURCE_KUBELET: "its kubelet",
  SIGNAL_SOURCE_LEASE_OBJECT: "its Lease object",
  SIGNAL_SOURCE_NODE_STATUS: "its Ready condition",
};

// heldWords say what is held, by the type of a condition.
const heldWords = { MarkingSuspended: "Not set to Unknown", EvictionSuspended: "No pod is evicted" };

const agentText = ({ name, version, mode }) => [name, version, mode && `in mode ${mode}`].filter(Boolean).join(" ");

class NodePanel extends PollPanel {
  gone = "NODE_NOT_FOUND";

  // subjectIn accepts only what can be the name of a Node.
  subjectIn(hash) {
    return /^#node\/([a-z0-9]([-a-z0-9.]*[a-z0-9])?)$/.exec(hash)?.[1] ?? null;
  }

  ask(name, signal) {
    return ask(`/v1/nodes/${encodeURIComponent(name)}:explain`, signal);
  }

  body({ node, evidence, brokenIndex }) {
    const rank = rankOf(node.health);
    return [
      h("p", { key: "summary", class: "panel-summary" }, h("strong", { class: `health health-${rank}` }, healths[rank].word), " ", sentence(node.message)),
      node.conditions.filter(({ status }) => status === "STATUS_TRUE").map(({ type, message }) =>
        notice(type, "fair", `${heldWords[type] ?? type}: `, sentence(message))),
      h("dl", { key: "facts", class: "panel-facts" },
        fact("Zone", zoneText(node.zone)),
        fact("Ready", node.ready || "no condition"),
        node.signals.map((signal) => fact(signal.source in signalSources ? `Signal of ${signalSources[signal.source]}` : "No signal", this.signalText(signal))),
        fact("Agent", node.agent && agentText(node.agent)),
        fact("Changed", node.changeTime && ago(this.clock.age(node.changeTime))),
        fact("Taints", node.taints.map((taint) => taint.replace("node.kubernetes.io/", "")).join(", ") || "none"),
        fact("Judged by", node.owner && `${node.owner.replicaId}, shard ${node.owner.shard}, epoch ${node.owner.epoch}`)),
      h("h3", { key: "title" }, "Evidence"),
      chain(evidence, { clock: this.clock, brokenIndex }),
    ];
  }

  signalText({ source, seenTime }) {
    const age = seenTime ? this.clock.age(seenTime) : "";
    return source in signalSources ? ago(age) : age && `for ${age}`;
  }
}

customElements.define("trivet-node-panel", NodePanel);
