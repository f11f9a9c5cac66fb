// <trivet-slices> is every Service with its EndpointSlices: how full each slice is, how many slices there are of how many would
// do, and what the last pass wrote. Services that want to be looked at come first; each leads to its panel.

import { count } from "./clock.js";
import { Stream } from "./stream.js";
import { h, render } from "./view.js";

const longestList = 40;
const mostMeters = 12;

class Slices extends HTMLElement {
  connectedCallback() {
    this.byName = new Map();
    this.missing = [];
    this.round = 0;
    this.complete = false;
    this.search = "";
    this.place = (name) => this.querySelector(`[data-part="${name}"]`);
    this.stream = new Stream("/v1/slices:watch", {
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

  // begin says that a stream tells everything anew. What it does not mention until its bookmark is gone.
  begin() {
    this.round++;
    this.complete = false;
  }

  take({ type, serviceSlices, missing }) {
    this.failure = null;
    if (type === "TYPE_BOOKMARK") this.bookmark(missing);
    else if (type === "TYPE_DELETED") this.byName.delete(serviceSlices.name);
    else this.byName.set(serviceSlices.name, { ...summary(serviceSlices), round: this.round });
    this.soon();
    if (serviceSlices) this.dispatchEvent(new CustomEvent("news", { detail: shortName(serviceSlices.name) }));
  }

  bookmark(missing) {
    this.missing = missing;
    if (this.complete) return;
    this.complete = true;
    for (const [name, { round }] of this.byName) {
      if (round !== this.round) this.byName.delete(name);
    }
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
    const known = this.byName.size > 0;
    this.dataset.old = this.failure && known ? "yes" : "no";
    render(this.place("count"), known ? this.total() : "");
    render(this.place("notice"), this.notices());
    this.place("list").hidden = !known;
    if (known) this.drawList();
  }

  total() {
    let slices = 0;
    let ideal = 0;
    for (const service of this.byName.values()) {
      slices += service.fills.length;
      ideal += service.ideal;
    }
    return `${count(this.byName.size)}${this.complete ? "" : "…"} · ${count(slices)} slices, ${count(ideal)} would do`;
  }

  notices() {
    const known = this.byName.size > 0;
    if (this.failure) {
      return h("p", { key: "failure", class: "notice", role: "status", "data-health": "bad" },
        known ? "What you see of the Services is old: " : "Nothing is known of the Services: ", this.failure.cause);
    }
    if (this.missing.length > 0) {
      return h("p", { key: "missing", class: "notice", role: "status", "data-health": "fair" },
        h("strong", {}, "Not everything is known. "), "Some replicas of slicesvc do not tell what they wrote: ",
        this.missing.map(({ replica, message }) => `${replica.id}: ${message}`).join("; "));
    }
    if (known) return [];
    return h("p", { key: "waiting", class: "quiet" }, this.complete ? "The cluster has no Service." : "Waiting for the first answer…");
  }

  drawList() {
    const found = [...this.byName.values()].filter(({ name }) => name.includes(this.search));
    found.sort((a, b) => b.concern - a.concern || (a.name < b.name ? -1 : 1));
    const more = found.length - longestList;
    render(
      this.place("lines"),
      found.slice(0, longestList).map((service) => line(service)),
      found.length === 0 && h("li", { key: "none", class: "quiet" }, "No Service has such a name."),
      more > 0 && h("li", { key: "more", class: "quiet" }, `And ${count(more)} more: search for them.`),
    );
  }
}

// summary is what is shown of a Service.
function summary({ name, managed, unmanagedReason, slices, endpoints, readyEndpoints, idealSlices, failures, lastError, contendedBy, topologyProblem, lastPlan }) {
  const reason = contendedBy ? `${contendedBy} writes the same slices` : lastError || (topologyProblem && `no hints: ${topologyProblem}`) || "";
  const ill = Boolean(contendedBy) || failures > 0;
  return {
    name: shortName(name),
    fills: slices.map(({ name, endpoints, capacity }) => ({ name, endpoints, capacity })),
    endpoints, ready: readyEndpoints, ideal: idealSlices, managed, unmanagedReason, lastPlan, reason, ill,
    concern: ill ? 1000 : slices.length - idealSlices > 1 && managed ? slices.length - idealSlices : 0,
  };
}

function line({ name, fills, endpoints, ready, ideal, managed, unmanagedReason, lastPlan, reason, ill }) {
  return h("li", { key: name, "data-health": ill ? "bad" : managed ? "good" : "off" },
    h("a", { href: `#service/${name}`, class: "id" }, name),
    h("span", { class: "figure", title: "endpoints that are ready, of all" }, `${count(ready)}/${count(endpoints)}`),
    h("span", { class: "figure", title: "slices, of how many would do" }, managed ? `${count(fills.length)}/${count(ideal)}` : "–"),
    h("span", { class: "fills" },
      fills.slice(0, mostMeters).map((slice) =>
        h("meter", { key: slice.name, min: 0, max: slice.capacity, value: slice.endpoints, title: `${slice.name}: ${slice.endpoints} of ${slice.capacity}` },
          `${slice.endpoints} of ${slice.capacity}`)),
      fills.length > mostMeters && h("span", { key: "more", class: "quiet" }, `+${count(fills.length - mostMeters)}`)),
    h("span", { class: "quiet" }, managed ? plan(lastPlan) : unmanagedReason === "EXTERNAL_NAME" ? "an ExternalName" : "no selector"),
    h("span", { class: ill ? "reason" : "reason quiet" }, reason));
}

// plan says what the last pass wrote, and what for.
export function plan(last) {
  if (!last) return "";
  const wrote = last.creates + last.updates + last.deletes === 0 ? "nothing to write" : `+${last.creates} ~${last.updates} −${last.deletes}`;
  return `${wrote} · ${last.trigger.toLowerCase()}`;
}

// shortName turns namespaces/shop/services/web into shop/web.
function shortName(name) {
  return name.replace(/^namespaces\//, "").replace("/services/", "/");
}

customElements.define("trivet-slices", Slices);
