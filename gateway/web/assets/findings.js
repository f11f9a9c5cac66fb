// <trivet-findings> is what is wrong with allocations: each finding with what it was concluded from, since when it is known, what
// would mend it and whether that is safe. What is mended fades out.

import { ago, count } from "./clock.js";
import { chain } from "./evidence.js";
import { Stream } from "./stream.js";
import { h, render } from "./view.js";
import { nameOf, sentence } from "./words.js";

const longestList = 100;
const farewell = 20000; // how long one that has ended is still shown

// codes are ordered by how much they want to be looked at.
export const codes = new Map(Object.entries({
  CODE_DUPLICATE_OWNER: { words: "used twice", health: "bad" },
  CODE_RANGE_MISMATCH: { words: "range differs", health: "bad" },
  CODE_UNREADABLE: { words: "unreadable", health: "bad" },
  CODE_RANGE_FULL: { words: "range is full", health: "bad" },
  CODE_NOT_ALLOCATED: { words: "not allocated", health: "bad" },
  CODE_WRONG_REFERENCE: { words: "in another name", health: "fair" },
  CODE_OUT_OF_RANGE: { words: "out of range", health: "fair" },
  CODE_INVALID: { words: "no address", health: "fair" },
  CODE_WRONG_LABELS: { words: "wrong labels", health: "fair" },
  CODE_ORPHAN: { words: "owner is gone", health: "fair" },
  CODE_LEAKED: { words: "used by nobody", health: "fair" },
}));
const ranks = new Map([...codes.keys()].map((code, rank) => [code, rank]));

const stores = {
  STORE_IP_ADDRESSES: "IPAddress objects", STORE_NODE_PORTS: "the NodePorts in etcd", STORE_CLUSTER_IPS: "the ClusterIPs in etcd",
  STORE_SECONDARY_CLUSTER_IPS: "the secondary ClusterIPs in etcd",
};

// endings say how a finding ended.
const endings = { STATE_REPAIRED: "mended", STATE_GONE: "gone by itself" };

class Findings extends HTMLElement {
  connectedCallback() {
    this.byName = new Map();
    this.missing = [];
    this.round = 0;
    this.complete = false;
    this.search = "";
    this.place = (name) => this.querySelector(`[data-part="${name}"]`);
    this.stream = new Stream("/v1/findings:watch", {
      opened: () => this.begin(),
      message: (event) => this.take(event),
      broken: (failure) => this.broke(failure),
    });
    this.addEventListener("input", ({ target }) => {
      this.search = target.value.trim().toLowerCase();
      this.draw();
    });
    this.draw();
    this.stream.follow();
  }

  // rest stops following while nobody looks; wake goes on.
  rest() {
    this.stream.pause();
  }

  wake() {
    this.stream.retryNow();
  }

  // show takes the clock by which ages are told.
  show(_, { clock }) {
    this.clock = clock;
    this.soon();
  }

  // begin says that a stream tells everything anew. What it does not mention until its bookmark is gone.
  begin() {
    this.round++;
    this.complete = false;
  }

  take({ type, finding, missing }) {
    this.failure = null;
    if (type === "TYPE_BOOKMARK") this.bookmark(missing);
    else if (type === "TYPE_DELETED") this.end(finding);
    else this.byName.set(finding.name, { ...finding, since: Date.parse(finding.firstSeenTime), round: this.round });
    this.soon();
  }

  bookmark(missing) {
    this.missing = missing;
    if (this.complete || missing.length > 0) return;
    this.complete = true;
    for (const [name, { round }] of this.byName) {
      if (round !== this.round) this.byName.delete(name);
    }
  }

  end(finding) {
    this.byName.delete(finding.name);
    if (!endings[finding.state]) return;
    const ended = { ...finding, since: Date.parse(finding.firstSeenTime), round: this.round };
    this.byName.set(finding.name, ended);
    setTimeout(() => {
      if (this.byName.get(finding.name) === ended) this.byName.delete(finding.name);
      this.soon();
    }, farewell);
  }

  broke(failure) {
    this.failure = failure;
    this.soon();
  }

  // soon redraws four times a second at most.
  soon() {
    if (this.timer) return;
    this.timer = setTimeout(() => {
      this.timer = 0;
      this.draw();
    }, 250);
  }

  draw() {
    const all = [...this.byName.values()];
    const open = all.filter(({ state }) => state === "STATE_OPEN");
    const pending = all.filter(({ state }) => state === "STATE_PENDING").length;
    const old = this.failure || this.missing.length > 0;
    this.dataset.old = old && all.length > 0 ? "yes" : "no";
    render(this.place("count"), [open.length > 0 && `${count(open.length)} open`, pending > 0 && `${count(pending)} not sure yet`].filter(Boolean).join(" · "));
    this.place("plan").hidden = open.length === 0 || Boolean(this.failure);
    render(this.place("notice"), this.notices(all.length > 0));
    this.place("list").hidden = all.length === 0;
    this.place("search").hidden = all.length <= 10 && this.search === "";
    if (all.length > 0) this.drawList(all);
  }

  notices(known) {
    if (this.failure) {
      return h("p", { key: "failure", class: "notice", role: "status", "data-health": "bad" },
        known ? "What you see of the findings is old: " : "Nothing is known of findings: ", this.failure.cause);
    }
    if (this.missing.length > 0) {
      return h("p", { key: "missing", class: "notice", role: "status", "data-health": "fair" },
        h("strong", {}, "Nobody compares at present. "), known && "What you see is as it was told last. ",
        this.missing.map(({ replica, message }) => (replica.id ? `${replica.id}: ${message}` : message)).join("; "));
    }
    if (known) return [];
    if (!this.complete) return h("p", { key: "waiting", class: "quiet" }, "Waiting for the first answer…");
    return h("p", { key: "none", class: "well", role: "status", "data-health": "good" }, h("span", { class: "dot", "data-health": "good" }),
      "Nothing is wrong: what Services use is allocated to them, and nothing else is.");
  }

  drawList(all) {
    const found = all.filter((finding) => [finding.subject, finding.message, finding.name].some((text) => text.toLowerCase().includes(this.search)));
    found.sort((a, b) => orderOf(a) - orderOf(b) || a.since - b.since || (a.name < b.name ? -1 : 1));
    const more = found.length - longestList;
    render(
      this.place("lines"),
      found.slice(0, longestList).map((finding) => this.line(finding)),
      found.length === 0 && h("li", { key: "none", class: "quiet" }, "No finding is like that."),
      more > 0 && h("li", { key: "more", class: "quiet" }, `And ${count(more)} more: search for them.`),
    );
  }

  line(finding) {
    const { name, subject, code, state, message } = finding;
    const { words, health } = codes.get(code) ?? { words: code, health: "fair" };
    const tone = endings[state] ? "good" : state === "STATE_PENDING" ? "off" : health;
    return h("li", { key: name, "data-health": tone, class: endings[state] && "ended" },
      h("details", {},
        h("summary", {},
          h("span", { class: "dot", "data-health": tone }),
          h("span", { class: "id", title: name }, subject || stores[finding.store] || name),
          h("span", { class: "what" }, words),
          h("span", { class: "message quiet" }, message),
          safety(finding),
          h("span", { class: "quiet end" }, this.clock && finding.firstSeenTime ? this.clock.age(finding.firstSeenTime) : "")),
        this.body(finding)));
  }

  body({ name, store, message, owners, evidence, firstSeenTime, lastSeenTime, sightings, repair, unsafeReason, state }) {
    const seen = (time) => time && this.clock && ago(this.clock.age(time));
    return h("div", { class: "finding" },
      h("p", { key: "message" }, sentence(message)),
      !endings[state] && h("div", { key: "mend", class: "mend" },
        h("p", {}, h("strong", {}, "What would mend it: "), repair ? sentence(repair) : "only a person can."),
        unsafeReason && h("p", { class: "quiet" }, sentence(unsafeReason))),
      h("dl", { key: "facts", class: "node-facts" },
        fact("Seen first", seen(firstSeenTime)),
        fact("Seen last", lastSeenTime && `${seen(lastSeenTime)}, in ${count(sightings)} ${sightings === 1 ? "pass" : "passes"}`),
        fact("Found in", stores[store]),
        fact(owners.length > 1 ? "Owners, the rightful one first" : "Owner", owners.map(nameOf).join(", "))),
      evidence.length > 0 && [h("h3", { key: "title" }, "Evidence"), chain(evidence, { clock: this.clock })],
      h("p", { key: "actions", class: "actions" },
        state === "STATE_OPEN" && h("a", { class: "button", href: `#repair/${name.replace("findings/", "")}` }, "Show the plan for this one"),
        h("code", { class: "quiet" }, name)));
  }
}

// safety says who may mend a finding.
function safety({ state, safe, repair }) {
  const pill = (health, words) => h("span", { class: "pill", "data-health": health }, words);
  if (endings[state]) return pill("good", endings[state]);
  if (state === "STATE_PENDING") return pill("off", "not sure yet");
  if (safe) return pill("good", "safe to mend");
  return repair ? pill("fair", "ask first") : pill("bad", "needs a person");
}

function orderOf({ code, state }) {
  return (endings[state] ? 200 : state === "STATE_PENDING" ? 100 : 0) + (ranks.get(code) ?? 50);
}

function fact(name, value) {
  return value ? h("div", { key: name }, h("dt", {}, name), h("dd", {}, value)) : null;
}

customElements.define("trivet-findings", Findings);
