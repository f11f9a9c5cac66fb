// <trivet-node> is one Node with its chain of evidence: from its heartbeat to the eviction of its pods, and the first link that
// is broken. It shows the Node that the address names, #node/NAME, and asks anew while it is open.

import { ago, Clock } from "./clock.js";
import { chain } from "./evidence.js";
import { healths, rankOf } from "./health.js";
import { Panel } from "./panel.js";
import { ask, plain } from "./stream.js";
import { h, render } from "./view.js";

const pause = 2000;
const limit = 8000;

const sources = {
  SIGN_SOURCE_SESSION: "its session",
  SIGN_SOURCE_LEASE: "its Lease",
  SIGN_SOURCE_STATUS: "its Ready condition",
};

class NodePanel extends Panel {
  // heard says that the stream had news of a Node.
  heard(resource) {
    if (resource === `nodes/${this.subject}` && this.wake) this.wake();
  }

  // subjectIn is the Node that an address names. Only what can be the name of one counts.
  subjectIn(hash) {
    return /^#node\/([a-z0-9]([-a-z0-9.]*[a-z0-9])?)$/.exec(hash)?.[1] ?? null;
  }

  changed(name) {
    this.answer = this.failure = null;
    this.wake?.(true);
    this.dispatchEvent(new CustomEvent("chosen", { detail: name }));
  }

  opened() {
    this.draw();
    this.keepAsking(this.subject);
  }

  async keepAsking(name) {
    while (this.subject === name) {
      if (!document.hidden) await this.refresh(name);
      await new Promise((resolve) => {
        const timer = setTimeout(resolve, pause);
        const asked = performance.now();
        this.wake = (now) => {
          clearTimeout(timer);
          setTimeout(resolve, now ? 0 : Math.max(0, 500 - (performance.now() - asked))); // not with every flicker
        };
      });
    }
  }

  async refresh(name) {
    try {
      const answer = await ask(`/v1/nodes/${encodeURIComponent(name)}:explain`, AbortSignal.timeout(limit));
      if (this.subject !== name) return;
      this.answer = answer;
      this.clock = new Clock(answer.freshness?.readTime ?? new Date().toISOString());
      this.failure = null;
    } catch (error) {
      if (this.subject !== name) return;
      this.failure = { cause: plain(error), reason: error.reason };
      if (error.reason === "NODE_NOT_FOUND") this.answer = null;
    }
    this.draw();
  }

  draw() {
    const { answer, failure, subject: name } = this;
    render(
      this,
      h("header", {},
        h("h2", { tabindex: "-1", class: "id", title: name }, name),
        h("button", { type: "button", "data-do": "close", "aria-label": "Close" }, "✕")),
      failure && h("p", { class: "notice", role: "status", "data-health": answer ? "fair" : "bad" }, answer ? "This is old: " : "", failure.cause),
      !answer && !failure && h("p", { class: "quiet" }, "Asking…"),
      answer && this.body(answer),
    );
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

function fact(name, value) {
  return value ? h("div", { key: name }, h("dt", {}, name), h("dd", {}, value)) : null;
}

customElements.define("trivet-node", NodePanel);
