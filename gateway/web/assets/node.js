// <trivet-node> is one Node with its chain of evidence: from its heartbeat to the eviction of its pods, and the first link that
// is broken. It shows the Node that the address names, #node/NAME, and asks anew while it is open.

import { AskingPanel, fact } from "./asking.js";
import { ago } from "./clock.js";
import { chain } from "./evidence.js";
import { healths, rankOf } from "./health.js";
import { ask } from "./stream.js";
import { h } from "./view.js";

const sources = {
  SIGN_SOURCE_SESSION: "its session",
  SIGN_SOURCE_LEASE: "its Lease",
  SIGN_SOURCE_STATUS: "its Ready condition",
};

class NodePanel extends AskingPanel {
  gone = "NODE_NOT_FOUND";

  // subjectIn is the Node that an address names. Only what can be the name of one counts.
  subjectIn(hash) {
    return /^#node\/([a-z0-9]([-a-z0-9.]*[a-z0-9])?)$/.exec(hash)?.[1] ?? null;
  }

  ask(name, signal) {
    return ask(`/v1/nodes/${encodeURIComponent(name)}:explain`, signal);
  }

  body({ node, evidence, firstBroken, freshness }) {
    const rank = rankOf(node.health);
    return [
      h("p", { key: "belief", class: "belief" }, h("strong", { class: `health health-${rank}` }, healths[rank].word), " ", node.reason),
      node.heldBy && h("p", { key: "held", class: "notice", "data-health": "fair" }, "Nothing is declared: ", node.heldBy),
      h("dl", { key: "facts", class: "node-facts" },
        fact("Zone", node.zone || "none"),
        fact("Ready", node.ready || "no condition"),
        fact("Last sign of life", node.signTime && this.sign(node)),
        fact("Changed", node.changeTime && ago(this.clock.age(node.changeTime))),
        fact("Taints", node.taints.map((taint) => taint.replace("node.kubernetes.io/", "")).join(", ") || "none"),
        fact("Judged by", freshness?.replicaId && `${freshness.replicaId}, shard ${node.shard}, epoch ${node.epoch}`)),
      h("h3", { key: "title" }, "Evidence"),
      chain(evidence, { clock: this.clock, firstBroken }),
    ];
  }

  sign({ signTime, signSource }) {
    const age = this.clock.age(signTime);
    return sources[signSource] ? `${ago(age)}, from ${sources[signSource]}` : `none seen for ${age}`;
  }
}

customElements.define("trivet-node", NodePanel);
