// <trivet-node-panel> is one Node with its evidence: from its heartbeat to the eviction of its
// pods. It shows the Node of the fragment #node/NAME.

import { chain } from "./evidence.js";
import { ago, sentence } from "./format.js";
import { healths, rankOf } from "./nodehealth.js";
import { PollPanel } from "./panel.js";
import { ask } from "./stream.js";
import { fact, h, notice } from "./view.js";

const signSources = {
  SIGN_SOURCE_SESSION: "its session",
  SIGN_SOURCE_LEASE: "its Lease",
  SIGN_SOURCE_STATUS: "its Ready condition",
};

class NodePanel extends PollPanel {
  gone = "NODE_NOT_FOUND";

  // subjectIn accepts only what can be the name of a Node.
  subjectIn(hash) {
    return /^#node\/([a-z0-9]([-a-z0-9.]*[a-z0-9])?)$/.exec(hash)?.[1] ?? null;
  }

  ask(name, signal) {
    return ask(`/v1/nodes/${encodeURIComponent(name)}:explain`, signal);
  }

  body({ node, evidence, firstBroken, freshness }) {
    const rank = rankOf(node.health);
    return [
      h("p", { key: "summary", class: "panel-summary" }, h("strong", { class: `health health-${rank}` }, healths[rank].word), " ", sentence(node.reason)),
      node.heldBy && notice("held", "fair", "Not set to Unknown: ", node.heldBy),
      h("dl", { key: "facts", class: "panel-facts" },
        fact("Zone", node.zone || "none"),
        fact("Ready", node.ready || "no condition"),
        fact("Last heartbeat", node.signTime && this.signText(node)),
        fact("Changed", node.changeTime && ago(this.clock.age(node.changeTime))),
        fact("Taints", node.taints.map((taint) => taint.replace("node.kubernetes.io/", "")).join(", ") || "none"),
        fact("Reported by", freshness?.replicaId && `${freshness.replicaId}, shard ${node.shard}, epoch ${node.epoch}`)),
      h("h3", { key: "title" }, "Evidence"),
      chain(evidence, { clock: this.clock, firstBroken }),
    ];
  }

  signText({ signTime, signSource }) {
    const age = this.clock.age(signTime);
    return signSources[signSource] ? `${ago(age)}, from ${signSources[signSource]}` : `none for ${age}`;
  }
}

customElements.define("trivet-node-panel", NodePanel);
