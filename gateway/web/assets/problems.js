// <trivet-problems> is the first section: the verdict in a sentence, what is wrong with the worst
// first, and what the other sections have in a few words. A problem opens in place and is explained
// there, by the evidence of its subject or by what its service reports.

import { chain } from "./evidence.js";
import { ago, count, plural, sentence } from "./format.js";
import { overview } from "./section.js";
import { ask, plain } from "./stream.js";
import { healthOf, severityOf, sinceOf, verdictWord } from "./verdict.js";
import { cell, h, muted, render, row, table } from "./view.js";

const explainLimit = 8000;
const explainPause = 5000; // between two explanations of a problem that is open
const announcePause = 10000; // a screen reader hears of changes no more often
const longestList = 50;

// isHelp is whether a problem's link leads to a page of documentation, and to no script.
const isHelp = (url) => URL.canParse(url) && new URL(url).protocol === "https:";

class Problems extends HTMLElement {
  connectedCallback() {
    overview.changed = () => this.draw();
    this.explained = new Map(); // by the key of a problem that is open
    this.announced = -Infinity;
    this.addEventListener("toggle", ({ target }) => target.dataset.problem && this.opened(target.dataset.problem, target.open), true);
    this.draw();
  }

  show(status, { clock, missing }) {
    Object.assign(this, { status, clock, missing, refused: false });
    for (const key of this.explained.keys()) this.explain(key);
    this.draw();
    this.announce();
  }

  refuse() {
    this.refused = true;
    this.draw();
  }

  // problems have keys that differ: a replica may have two problems with the same code.
  get problems() {
    const seen = new Map();
    return (this.status?.verdict.problems ?? []).map((problem) => {
      const subject = `${problem.code} ${problem.resource}`;
      const before = seen.get(subject) ?? 0;
      seen.set(subject, before + 1);
      return { ...problem, key: before > 0 ? `${subject} ${before}` : subject };
    });
  }

  opened(key, open) {
    if (!open) return this.explained.delete(key);
    this.explained.set(key, {});
    this.explain(key);
  }

  // explain asks for the evidence of a problem's subject, if the gateway has one.
  async explain(key) {
    const problem = this.problems.find((one) => one.key === key);
    const path = problem && explanationOf(problem.resource);
    const last = this.explained.get(key);
    if (!path || performance.now() - (last.asked ?? -Infinity) < explainPause) return;
    last.asked = performance.now();
    try {
      const { evidence, brokenIndex } = await ask(path, AbortSignal.timeout(explainLimit));
      Object.assign(last, { evidence, brokenIndex, failure: "" });
    } catch (error) {
      last.failure = plain(error);
    }
    this.draw();
  }

  // announce tells a screen reader the verdict, but does not chatter while it goes up and down.
  announce() {
    clearTimeout(this.announcing);
    const wait = Math.max(0, this.announced + announcePause - performance.now());
    this.announcing = setTimeout(() => {
      const line = this.querySelector("[data-part=live]");
      const text = titleOf(this.status, this.problems);
      if (!line || line.textContent === text) return;
      line.textContent = text;
      this.announced = performance.now();
    }, wait);
  }

  draw() {
    const { status, problems } = this;
    const verdict = status?.verdict;
    this.dataset.health = this.refused ? "off" : verdict ? healthOf(verdict) : "off";
    render(
      this.querySelector("[data-part=verdict]"),
      h("h2", { id: "verdict" }, this.refused ? "The status needs a right that you do not have" : titleOf(status, problems)),
      problems.length > 0 && h("ul", { key: "list", class: "problem-list" }, problems.slice(0, longestList).map((problem) => this.line(problem))),
      problems.length > longestList && muted("rest", `And ${count(problems.length - longestList)} more: trivet status has all.`),
    );
    render(this.querySelector("[data-part=overview]"), sections.map(({ id, title }) => {
      const { words, health } = overview.words.get(id) ?? { words: "…", health: "off" };
      return h("li", { key: id, "data-health": health },
        h("a", { href: `#${id}` }, h("span", { class: "dot", "data-health": health }), h("span", {}, title), " ", h("b", {}, words)));
    }));
  }

  line({ key, code, severity, service, resource, message, next, helpUrl }) {
    const { word, health } = severityOf(severity);
    return h("li", { key, "data-health": health },
      h("details", { "data-problem": key },
        h("summary", {},
          h("span", { class: "pill", "data-health": health }, word),
          h("span", { class: "message" }, sentence(message)),
          h("span", { class: "muted subject" }, resource || service)),
        h("div", { class: "explanation" },
          next && h("p", { class: "next" }, h("strong", {}, "Next: "), sentence(next)),
          this.evidence(key, { service, resource }),
          h("p", { key: "links", class: "actions" },
            linkOf(resource, service),
            isHelp(helpUrl) && h("a", { href: helpUrl, rel: "noreferrer" }, "What it means"),
            h("code", { class: "muted" }, code)))));
  }

  evidence(key, { service, resource }) {
    const { evidence, brokenIndex, failure } = this.explained.get(key) ?? {};
    if (evidence) return chain(evidence, { clock: this.clock, brokenIndex });
    if (failure) return muted("failure", `No evidence: ${sentence(failure)}`);
    if (explanationOf(resource)) return muted("waiting", "Loading…");
    return this.replicas(service, resource);
  }

  // replicas is what the replicas of a problem's service report.
  replicas(name, resource) {
    const service = this.status.services.find(({ service }) => service === name);
    if (!service) return null;
    const rows = service.replicas.map(({ replica, status }) => {
      const failure = this.missing.find(({ replicaId, service }) => replicaId === replica.id && service === name);
      const loops = status?.loops.filter(({ lastError }) => lastError).map(({ name, lastError, lastSuccessTime }) =>
        `Loop ${name} failed: ${lastError}${sinceOf(lastSuccessTime, this.clock)}`) ?? [];
      const broken = status?.dependencies.filter(({ healthy }) => !healthy).map(({ name, message }) => `${name}: ${message}`) ?? [];
      const reasons = [...loops, ...broken, failure?.message].filter(Boolean);
      return row(replica.id, { "aria-current": resource === `replicas/${replica.id}` && "true" }, [
        h("span", { class: "id" }, replica.id),
        status ? (status.ready ? "ready" : "not ready") : `no answer${failure?.code ? ` (${failure.code})` : ""}`,
        status ? plural(status.ledShards.length, "shard") : "not known",
        cell("wide", ago(this.clock.age(replica.startTime))),
        reasons.length > 0 ? reasons.map((reason, place) => h("p", { key: `${place}` }, sentence(reason))) : "nothing wrong",
      ]);
    });
    if (rows.length === 0) return muted("none", `No replica of ${name} is registered.`);
    return table(`Replicas of ${name}`, ["Replica", "State", "Leads", ["Started", "wide"], "Reports"], rows);
  }
}

const sections = [
  { id: "nodes", title: "Nodes" }, { id: "slices", title: "Services" }, { id: "findings", title: "Findings" },
  { id: "apiservers", title: "API servers" }, { id: "baseline", title: "Baseline" },
];

function titleOf(status, problems) {
  if (!status) return "Waiting for the first answer…";
  if (problems.length === 0) return verdictWord(status.verdict) === "OK" ? "No problem is reported" : verdictWord(status.verdict);
  const errors = problems.filter(({ severity }) => severityOf(severity).health === "bad").length;
  return `${plural(problems.length, "problem")}${errors > 0 && errors < problems.length ? `, ${plural(errors, "error")}` : ""}`;
}

// explanationOf is the path of the explanation of a resource; "" if the gateway has none.
function explanationOf(resource) {
  return /^(nodes|findings)\/[-a-z0-9._:]+$/.test(resource) ? `/v1/${resource}:explain` : "";
}

// linkOf leads to where the page has more of a resource.
function linkOf(resource, service) {
  const link = (href, text) => h("a", { class: "button", href }, text);
  const [kind, ...rest] = resource.split("/");
  const name = rest.join("/");
  const slices = /^namespaces\/([-a-z0-9]+)\/serviceslices\/([-a-z0-9]+)$/.exec(resource);
  if (slices) return link(`#service/${slices[1]}/${slices[2]}`, `Open Service ${slices[1]}/${slices[2]}`);
  if (kind === "nodes") return link(`#node/${name}`, `Open Node ${name}`);
  if (kind === "findings") return link(`#repair/${name}`, "Show the repair plan");
  if (kind === "repairs") return link("#findings", "Recent repairs");
  if (kind === "baseline") return link("#baseline", "Baseline");
  return ["leasesvc", "bootstrapsvc", "slicesvc"].includes(service) ? link(`#${service}`, `All of ${service}`) : null;
}

customElements.define("trivet-problems", Problems);
