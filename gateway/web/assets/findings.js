// <trivet-findings> is the section of findings: each with its evidence, its age, and its repair. A
// finding that ended stays for a moment.

import { chain } from "./evidence.js";
import { ago, count, nameOf, plural, sentence } from "./format.js";
import { WatchSection } from "./section.js";
import { fact, h, muted, notice, render } from "./view.js";

const longestList = 100;
const endedShown = 20000; // how long a finding that ended is shown

// codes are ordered by severity.
export const codes = new Map(Object.entries({
  CODE_DUPLICATE_OWNER: { words: "duplicate", health: "bad" },
  CODE_RANGE_MISMATCH: { words: "range mismatch", health: "bad" },
  CODE_UNREADABLE: { words: "unreadable", health: "bad" },
  CODE_RANGE_FULL: { words: "range is full", health: "bad" },
  CODE_NOT_ALLOCATED: { words: "not allocated", health: "bad" },
  CODE_WRONG_REFERENCE: { words: "wrong owner", health: "fair" },
  CODE_OUT_OF_RANGE: { words: "out of range", health: "fair" },
  CODE_INVALID: { words: "no address", health: "fair" },
  CODE_WRONG_LABELS: { words: "wrong labels", health: "fair" },
  CODE_ORPHAN: { words: "orphaned", health: "fair" },
  CODE_LEAKED: { words: "not in use", health: "fair" },
}));
const ranks = new Map([...codes.keys()].map((code, rank) => [code, rank]));

const stores = {
  STORE_IP_ADDRESSES: "IPAddress objects", STORE_NODE_PORTS: "NodePorts in etcd", STORE_CLUSTER_IPS: "ClusterIPs in etcd",
  STORE_SECONDARY_CLUSTER_IPS: "secondary ClusterIPs in etcd",
};

// endings are the states of a finding that ended.
const endings = { STATE_REPAIRED: "repaired", STATE_GONE: "gone" };

class Findings extends WatchSection {
  path = "/v1/findings:watch";
  needsAllSources = true; // without a holder of the term, findings stay as they were

  // show takes the clock by which ages are measured.
  show(_, { clock }) {
    this.clock = clock;
    this.redrawSoon();
  }

  subjectOf({ finding }) {
    return finding;
  }

  newsOf({ name }) {
    return name;
  }

  summaryOf(finding) {
    return { ...finding, since: Date.parse(finding.firstSeenTime) };
  }

  removed(finding) {
    this.byName.delete(finding.name);
    if (!endings[finding.state]) return;
    this.keep(finding);
    const ended = this.byName.get(finding.name);
    setTimeout(() => {
      if (this.byName.get(finding.name) === ended) this.byName.delete(finding.name);
      this.redrawSoon();
    }, endedShown);
  }

  draw() {
    const all = [...this.byName.values()];
    const open = all.filter(({ state }) => state === "STATE_OPEN").length;
    const pending = all.filter(({ state }) => state === "STATE_PENDING").length;
    const old = this.failure || this.missing.length > 0;
    this.dataset.old = old && all.length > 0 ? "yes" : "no";
    render(this.part("count"), [open > 0 && `${count(open)} open`, pending > 0 && `${count(pending)} pending`].filter(Boolean).join(" · "));
    this.part("plan").hidden = open === 0 || Boolean(this.failure);
    render(this.part("notice"), this.notices(all.length > 0));
    this.part("list").hidden = all.length === 0;
    this.part("search").hidden = all.length <= 10 && this.search === "";
    if (all.length > 0) this.drawList(all);
  }

  notices(known) {
    if (this.failure) return this.failureNotice(known);
    if (this.missing.length > 0) {
      return notice("missing", "fair", h("strong", {}, "No replica compares allocations at present. "), known && "The findings are old. ",
        this.missing.map(({ replica, message }) => (replica.id ? `${replica.id}: ${message}` : message)).join("; "));
    }
    if (known) return [];
    if (!this.complete) return muted("waiting", "Waiting for the first answer…");
    return h("p", { key: "none", class: "no-findings", role: "status", "data-health": "good" }, h("span", { class: "dot", "data-health": "good" }),
      "No findings: what Services use is allocated to them, and nothing else is allocated.");
  }

  drawList(all) {
    const found = all.filter((finding) => [finding.subject, finding.message, finding.name].some((text) => text.toLowerCase().includes(this.search)));
    found.sort((a, b) => priorityOf(a) - priorityOf(b) || a.since - b.since || (a.name < b.name ? -1 : 1));
    const more = found.length - longestList;
    render(
      this.part("lines"),
      found.slice(0, longestList).map((finding) => this.line(finding)),
      found.length === 0 && h("li", { key: "none", class: "muted" }, "No finding matches."),
      more > 0 && h("li", { key: "more", class: "muted" }, `And ${count(more)} more: search for them.`),
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
          h("span", { class: "code" }, words),
          h("span", { class: "message muted" }, message),
          repairMode(finding),
          h("span", { class: "muted end" }, this.clock && finding.firstSeenTime ? this.clock.age(finding.firstSeenTime) : "")),
        this.body(finding)));
  }

  body({ name, store, message, owners, evidence, firstSeenTime, lastSeenTime, sightings, repair, unsafeReason, state }) {
    const seen = (time) => time && this.clock && ago(this.clock.age(time));
    return h("div", { class: "finding" },
      h("p", { key: "message" }, sentence(message)),
      !endings[state] && h("div", { key: "repair", class: "repair" },
        h("p", {}, h("strong", {}, "Repair: "), repair ? sentence(repair) : "manual only."),
        unsafeReason && h("p", { class: "muted" }, sentence(unsafeReason))),
      h("dl", { key: "facts", class: "panel-facts" },
        fact("First seen", seen(firstSeenTime)),
        fact("Last seen", lastSeenTime && `${seen(lastSeenTime)}, in ${plural(sightings, "pass", "passes")}`),
        fact("Store", stores[store]),
        fact(owners.length > 1 ? "Owners, the rightful one first" : "Owner", owners.map(nameOf).join(", "))),
      evidence.length > 0 && [h("h3", { key: "title" }, "Evidence"), chain(evidence, { clock: this.clock })],
      h("p", { key: "actions", class: "actions" },
        state === "STATE_OPEN" && h("a", { class: "button", href: `#repair/${name.replace("findings/", "")}` }, "Show the repair plan"),
        h("code", { class: "muted" }, name)));
  }
}

// repairMode says how a finding is repaired: without a question, by a plan, or by hand.
function repairMode({ state, safe, repair }) {
  const pill = (health, words, title) => h("span", { class: "pill", "data-health": health, title }, words);
  if (endings[state]) return pill("good", endings[state]);
  if (state === "STATE_PENDING") return pill("off", "pending", "the grace period has not passed");
  if (safe) return pill("good", "repair: auto", "the repair is safe");
  return repair ? pill("fair", "repair: plan", "the repair may do harm: apply a plan") : pill("bad", "repair: manual", "no write repairs it");
}

function priorityOf({ code, state }) {
  return (endings[state] ? 200 : state === "STATE_PENDING" ? 100 : 0) + (ranks.get(code) ?? 50);
}

customElements.define("trivet-findings", Findings);
