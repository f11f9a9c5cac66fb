// <trivet-decisions> lists what the replicas decided, the newest first. It follows the decisions once
// its fold is open.

import { duration, label, nameOf, plural, sentence } from "./format.js";
import { WatchSection } from "./section.js";
import { cell, h, more, muted, render, row, table } from "./view.js";

const clockTolerance = 60; // seconds by which a replica's clock may be ahead

class Decisions extends WatchSection {
  path = "/v1/decisions:watch";

  // follow waits until a person wants to see the decisions.
  follow() {
    this.querySelector("details").addEventListener("toggle", () => this.stream.follow(), { once: true });
  }

  // show takes the clock by which ages are measured.
  show(_, { clock }) {
    this.clock = clock;
    if (this.complete) this.redrawSoon();
  }

  subjectOf({ decision }) {
    return decision;
  }

  newsOf({ name }) {
    return name;
  }

  summaryOf(decision) {
    return decision;
  }

  draw() {
    const all = [...this.byName.values()].filter((decision) =>
      [decision.message, decision.action, ...decision.resources].some((text) => text.toLowerCase().includes(this.search)));
    // Names begin with the time. A decision of a clock that is ahead does not hide the newest ones.
    all.sort((a, b) => this.isAhead(a) - this.isAhead(b) || (a.name < b.name ? 1 : -1));
    render(this.part("count"), this.complete ? plural(this.byName.size, "decision") : "");
    render(
      this.part("lines"),
      this.failure && this.failureNotice(this.byName.size > 0),
      !this.failure && !this.complete && muted("waiting", "Loading…"),
      all.length > 0 && table("Decisions, the newest first", [["When", "wide"], "Action", "Object", "Why", ["Replica", "wide"]], all.slice(0, this.lines).map((one) => this.line(one))),
      this.complete && all.length === 0 && muted("none", this.byName.size > 0 ? "No decision matches." : "No decision is kept."),
      more(all.length - this.lines, "decisions"),
    );
  }

  isAhead({ decideTime }) {
    return Boolean(this.clock) && this.clock.until(decideTime) > clockTolerance;
  }

  line({ name, decideTime, action, object, message, replicaId, resources }) {
    return row(name, {}, [
      cell("wide muted", this.isAhead({ decideTime }) ? `in ${duration(this.clock.until(decideTime))}, by its clock` : this.clock ? this.clock.age(decideTime) : ""),
      label(action.replace(/^ACTION_/, "")),
      object ? linkOf(object) : resources.join(", "),
      cell("muted", sentence(message)),
      cell("wide muted", h("span", { class: "id" }, replicaId)),
    ]);
  }
}

// linkOf leads to the panel of a Node or Service.
function linkOf(object) {
  const { kind, namespace, name } = object;
  const href = kind === "Node" ? `#node/${name}` : kind === "Service" && `#service/${namespace}/${name}`;
  return href ? h("a", { href }, nameOf(object)) : nameOf(object);
}

customElements.define("trivet-decisions", Decisions);
