// <trivet-node> is one Node with its chain of evidence: from its heartbeat to the eviction of its pods, and the first link that
// is broken. It shows the Node that the address names, #node/NAME, and asks anew while it is open.

import { ago, Clock } from "./clock.js";
import { healths, rankOf } from "./health.js";
import { ask, plain } from "./stream.js";
import { h, render } from "./view.js";

const pause = 2000;
const limit = 8000;

const verdicts = {
  VERDICT_GOOD: { mark: "✓", word: "as it should be" },
  VERDICT_DOUBTFUL: { mark: "!", word: "doubtful" },
  VERDICT_BROKEN: { mark: "✗", word: "broken" },
  VERDICT_UNKNOWN: { mark: "?", word: "could not be looked at" },
  VERDICT_ABSENT: { mark: "–", word: "does not apply" },
};

const sources = {
  SIGN_SOURCE_SESSION: "its session",
  SIGN_SOURCE_LEASE: "its Lease",
  SIGN_SOURCE_STATUS: "its Ready condition",
};

class NodePanel extends HTMLElement {
  connectedCallback() {
    this.hidden = true;
    addEventListener("hashchange", () => this.follow());
    addEventListener("keydown", ({ key }) => key === "Escape" && !this.hidden && this.close());
    this.addEventListener("click", ({ target }) => target.closest("button") && this.close());
    this.follow();
  }

  // heard says that the stream had news of a Node.
  heard(resource) {
    if (resource === `nodes/${this.name}` && this.wake) this.wake();
  }

  follow() {
    const name = nameIn(location.hash);
    if (name === this.name) return;
    this.name = name;
    this.answer = this.failure = null;
    this.wake?.(true);
    this.dispatchEvent(new CustomEvent("chosen", { detail: name }));
    if (name === null) {
      this.hidden = true;
      this.opener?.focus({ preventScroll: true });
      return;
    }
    if (this.hidden) this.opener = document.activeElement;
    this.hidden = false;
    this.draw();
    this.querySelector("h2").focus({ preventScroll: true });
    this.keepAsking(name);
  }

  close() {
    history.replaceState(null, "", location.pathname + location.search);
    this.follow();
  }

  async keepAsking(name) {
    while (this.name === name) {
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
      if (this.name !== name) return;
      this.answer = answer;
      this.clock = new Clock(answer.freshness?.readTime ?? new Date().toISOString());
      this.failure = null;
    } catch (error) {
      if (this.name !== name) return;
      this.failure = { cause: plain(error), reason: error.reason };
      if (error.reason === "NODE_NOT_FOUND") this.answer = null;
    }
    this.draw();
  }

  draw() {
    const { answer, failure, name } = this;
    render(
      this,
      h("header", {},
        h("h2", { tabindex: "-1", class: "id", title: name }, name),
        h("button", { type: "button", "aria-label": "Close" }, "✕")),
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
      h("ol", { key: "chain", class: "chain" }, evidence.map((link, place) => this.link(link, place === firstBroken))),
    ];
  }

  sign({ signTime, signSource }) {
    const age = this.clock.age(signTime);
    return sources[signSource] ? `${ago(age)}, from ${sources[signSource]}` : `none seen for ${age}`;
  }

  link({ code, verdict, finding, next, source, replicaId, version, observeTime, object }, first) {
    const { mark, word } = verdicts[verdict] ?? { mark: "?", word: verdict };
    const origin = [source, object?.name && `${object.kind} ${object.namespace ? `${object.namespace}/` : ""}${object.name}`, version && `version ${version}`, replicaId && `seen by ${replicaId}`, observeTime && ago(this.clock.age(observeTime))];
    return h("li", { key: code, "data-verdict": verdict, "aria-current": first && "step" },
      h("span", { class: "verdict", title: word }, h("span", { "aria-hidden": "true" }, mark), h("span", { class: "unseen" }, word)),
      h("div", {},
        h("h4", {}, spoken(code), first && h("span", { class: "badge" }, "begin here")),
        finding && h("p", {}, finding),
        next && h("p", { class: "next" }, next),
        h("p", { class: "quiet origin" }, origin.filter(Boolean).join(" · "))));
  }
}

function fact(name, value) {
  return value ? h("div", { key: name }, h("dt", {}, name), h("dd", {}, value)) : null;
}

// spoken turns LAST_BEAT into "Last beat".
function spoken(code) {
  const words = code.toLowerCase().replaceAll("_", " ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}

// nameIn is the Node that an address names, or null. Only what can be the name of one counts.
function nameIn(hash) {
  return /^#node\/([a-z0-9]([-a-z0-9.]*[a-z0-9])?)$/.exec(hash)?.[1] ?? null;
}

customElements.define("trivet-node", NodePanel);
