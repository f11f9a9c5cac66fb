// <trivet-findings> is the section of findings: each with its evidence, its age, and its repair. A
// finding that ended stays for a moment.

import { chain } from "./evidence.js";
import { ago, count, missingText, nameOf, plural, sentence } from "./format.js";
import { tell, WatchSection } from "./section.js";
import { ask, plain } from "./stream.js";
import { fact, h, more, muted, notice, render } from "./view.js";

const explainLimit = 8000;
const endedShown = 20000; // how long a finding that ended is shown

// codes are ordered by severity.
export const codes = new Map(Object.entries({
  DUPLICATE_OWNER: { words: "duplicate", health: "bad" },
  RANGE_MISMATCH: { words: "range mismatch", health: "bad" },
  UNREADABLE: { words: "unreadable", health: "bad" },
  RANGE_FULL: { words: "range is full", health: "bad" },
  NOT_ALLOCATED: { words: "not allocated", health: "bad" },
  WRONG_REFERENCE: { words: "wrong owner", health: "fair" },
  OUT_OF_RANGE: { words: "out of range", health: "fair" },
  INVALID: { words: "no address", health: "fair" },
  WRONG_LABELS: { words: "wrong labels", health: "fair" },
  ORPHAN: { words: "orphaned", health: "fair" },
  LEAKED: { words: "not in use", health: "fair" },
}));
const ranks = new Map([...codes.keys()].map((code, rank) => [code, rank]));

const stores = {
  STORE_IP_ADDRESSES: "IPAddress objects", STORE_NODE_PORTS: "NodePorts in etcd", STORE_CLUSTER_IPS: "ClusterIPs in etcd",
  STORE_SECONDARY_CLUSTER_IPS: "secondary ClusterIPs in etcd",
};

// endings are the states of a finding that ended.
const endings = { STATE_REPAIRED: "repaired", STATE_RESOLVED: "resolved" };

class Findings extends WatchSection {
  path = "/v1/findings:watch";

  prepare() {
    this.chains = new Map(); // the evidence of findings that are open on the page, by name
    this.addEventListener("toggle", ({ target }) => target.dataset.finding && this.explain(target.dataset.finding, target.open), true);
  }

  // explain asks for the evidence of a finding whose details are open.
  async explain(name, open) {
    if (!open) return this.chains.delete(name);
    try {
      const { evidence, brokenIndex } = await ask(`/v1/${name}:explain`, AbortSignal.timeout(explainLimit));
      this.chains.set(name, { evidence, brokenIndex });
    } catch (error) {
      this.chains.set(name, { evidence: [], failure: plain(error) });
    }
    this.redrawSoon();
  }

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
    if (this.chains.has(finding.name)) this.explain(finding.name, true);
    return { ...finding, since: Date.parse(finding.firstObserveTime) };
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
    const ignored = all.filter(({ state }) => state === "STATE_IGNORED").length;
    render(this.part("count"),
      [open > 0 && `${count(open)} open`, pending > 0 && `${count(pending)} pending`, ignored > 0 && `${count(ignored)} ignored`].filter(Boolean).join(" · "));
    this.part("plan").hidden = open === 0 || Boolean(this.failure);
    render(this.part("notice"), this.notices(all.length > 0));
    this.part("list").hidden = all.length === 0;
    this.part("search").hidden = all.length <= 10 && this.search === "";
    if (all.length > 0) this.drawList(all);
    const unknown = !this.complete || this.failure || this.missing.length > 0;
    tell(this, open > 0 ? `${count(open)} open` : unknown ? "not known" : "none open", open > 0 ? "fair" : unknown ? "off" : "good");
  }

  notices(known) {
    if (this.failure) return this.failureNotice(known);
    if (this.missing.length > 0) {
      return notice("missing", "fair", h("strong", {}, "No replica compares allocations at present. "), known && "The findings are old. ",
        this.missing.map(missingText).join("; "));
    }
    if (known) return [];
    if (!this.complete) return muted("waiting", "Waiting for the first answer…");
    return h("p", { key: "none", class: "no-findings", "data-health": "good" }, h("span", { class: "dot", "data-health": "good" }),
      "No findings: what Services use is allocated to them, and nothing else is allocated.");
  }

  drawList(all) {
    const found = all.filter((finding) => [finding.subject, finding.message, finding.name].some((text) => text.toLowerCase().includes(this.search)));
    found.sort((a, b) => priorityOf(a) - priorityOf(b) || a.since - b.since || (a.name < b.name ? -1 : 1));
    render(
      this.part("lines"),
      found.length > 0 && h("p", { key: "columns", class: "columns", "aria-hidden": "true" }, ["", "Subject", "Finding", "Message", "Repair", "Age"].map((title) => h("span", {}, title))),
      found.length > 0 && h("ul", { key: "lines", class: "findings", "aria-label": "Findings, the worst first" }, found.slice(0, this.lines).map((finding) => this.line(finding))),
      found.length === 0 && muted("none", "No finding matches."),
      more(found.length - this.lines, "findings"),
    );
  }

  line(finding) {
    const { name, subject, code, state, message } = finding;
    const { words, health } = codes.get(code) ?? { words: code, health: "fair" };
    const tone = endings[state] ? "good" : state === "STATE_OPEN" ? health : "off";
    return h("li", { key: name, "data-health": tone, class: endings[state] && "ended" },
      h("details", { "data-finding": name },
        h("summary", {},
          h("span", { class: "dot", "data-health": tone }),
          h("span", { class: "id", title: name }, subject || stores[finding.store] || name),
          h("span", { class: "code" }, words),
          h("span", { class: "message muted" }, message),
          repairMode(finding),
          h("span", { class: "muted end" }, this.clock && finding.firstObserveTime ? this.clock.age(finding.firstObserveTime) : "")),
        this.body(finding)));
  }

  body({ name, store, message, objects, firstObserveTime, lastObserveTime, observationCount, repair, repairModeMessage, state, ignore }) {
    const { evidence = [], brokenIndex, failure } = this.chains.get(name) ?? {};
    const seen = (time) => time && this.clock && ago(this.clock.age(time));
    return h("div", { class: "finding" },
      h("p", { key: "message" }, sentence(message)),
      !endings[state] && h("div", { key: "repair", class: "repair" },
        h("p", {}, h("strong", {}, "Repair: "), repair ? sentence(repair) : "manual only."),
        repairModeMessage && h("p", { class: "muted" }, sentence(repairModeMessage))),
      h("dl", { key: "facts", class: "panel-facts" },
        fact("First observed", seen(firstObserveTime)),
        fact("Last observed", lastObserveTime && `${seen(lastObserveTime)}, in ${plural(observationCount, "pass", "passes")}`),
        fact("Store", stores[store]),
        fact(objects.length > 1 ? "Objects, the rightful one first" : "Object", objects.map(nameOf).join(", ")),
        fact("Ignored", ignore && ignoreText(ignore, seen))),
      evidence.length > 0 && [h("h3", { key: "title" }, "Evidence"), chain(evidence, { clock: this.clock, brokenIndex })],
      failure && muted("failure", `No evidence: ${sentence(failure)}`),
      h("p", { key: "actions", class: "actions" },
        state === "STATE_OPEN" && h("a", { class: "button", href: `#repair/${name.replace("findings/", "")}` }, "Show the repair plan"),
        h("code", { class: "muted" }, name)));
  }
}

function ignoreText({ caller, createTime, comment }, seen) {
  return [`${seen(createTime)}, by ${caller?.user || "an unknown user"}`, comment].filter(Boolean).join(": ");
}

const repairModes = {
  REPAIR_MODE_AUTO: ["auto", "bootstrapsvc repairs it"],
  REPAIR_MODE_PLAN: ["by a plan", "the repair may do harm: apply a plan"],
  REPAIR_MODE_MANUAL: ["manual", "no write repairs it"],
};

// repairMode says how a finding is repaired. It has no color: it is no measure of what is wrong.
function repairMode({ state, repairMode }) {
  const text = (words, title) => h("span", { class: "repair-mode", title }, words);
  if (endings[state]) return h("span", { class: "pill", "data-health": "good" }, endings[state]);
  if (state === "STATE_PENDING") return text("pending", "the grace period has not passed");
  if (state === "STATE_IGNORED") return text("ignored");
  return text(...(repairModes[repairMode] ?? [repairMode]));
}

function priorityOf({ code, state }) {
  return (endings[state] ? 200 : state === "STATE_OPEN" ? 0 : 100) + (ranks.get(code) ?? 50);
}

customElements.define("trivet-findings", Findings);
