// <trivet-slices> is the section of all Services: the fill of each EndpointSlice, the number of
// slices, and what the last sync wrote. Services with problems come first; each has a panel.

import { count, label, missingText } from "./format.js";
import { WatchSection } from "./section.js";
import { h, muted, notice, render } from "./view.js";

const longestList = 40;
const mostMeters = 12;

class Slices extends WatchSection {
  path = "/v1/serviceslices:watch";

  subjectOf({ serviceSlices }) {
    return serviceSlices;
  }

  newsOf({ name }) {
    return shortName(name);
  }

  summaryOf({ name, conditions, slices, endpointCount, readyEndpointCount, idealSliceCount, syncs }) {
    const unmanaged = conditions.find(({ type, status }) => type === "Managed" && status === "STATUS_FALSE");
    const contended = conditions.find(({ type, status }) => type === "Contended" && status === "STATUS_TRUE");
    const withoutHints = conditions.find(({ type, status }) => type === "TopologyHints" && status === "STATUS_FALSE");
    const failed = syncs.find(({ failureCount }) => failureCount > 0);
    const failing = Boolean(contended || failed);
    const managed = !unmanaged;
    const surplus = slices.length - idealSliceCount;
    return {
      name: shortName(name),
      fills: slices.map(({ name, endpointCount, capacity }) => ({ name, endpoints: endpointCount, capacity })),
      endpoints: endpointCount, ready: readyEndpointCount, ideal: idealSliceCount, managed, unmanagedReason: unmanaged?.reason,
      lastPlan: syncs[0]?.lastPlan, reason: contended?.message || failed?.lastError || withoutHints?.message || "", failing,
      priority: failing ? 1000 : surplus > 1 && managed ? surplus : 0,
    };
  }

  draw() {
    const known = this.byName.size > 0;
    this.dataset.old = this.failure && known ? "yes" : "no";
    render(this.part("count"), known ? this.total() : "");
    render(this.part("notice"), this.notices(known));
    this.part("list").hidden = !known;
    if (known) this.drawList();
  }

  total() {
    let slices = 0;
    let ideal = 0;
    for (const service of this.byName.values()) {
      slices += service.fills.length;
      ideal += service.ideal;
    }
    return `${count(this.byName.size)}${this.complete ? "" : "…"} · ${count(slices)} slices, ideally ${count(ideal)}`;
  }

  notices(known) {
    if (this.failure) return this.failureNotice(known);
    if (this.missing.length > 0) {
      return notice("missing", "fair", h("strong", {}, "Incomplete. "), this.missing.map(missingText).join("; "));
    }
    if (known) return [];
    return muted("waiting", this.complete ? "The cluster has no Service." : "Waiting for the first answer…");
  }

  drawList() {
    const found = [...this.byName.values()].filter(({ name }) => name.includes(this.search));
    found.sort((a, b) => b.priority - a.priority || (a.name < b.name ? -1 : 1));
    const more = found.length - longestList;
    render(
      this.part("lines"),
      found.length > 0 && columns(),
      found.slice(0, longestList).map(line),
      found.length === 0 && h("li", { key: "none", class: "muted" }, "No Service matches."),
      more > 0 && h("li", { key: "more", class: "muted" }, `And ${count(more)} more: search for them.`),
    );
  }
}

function columns() {
  return h("li", { key: "columns", class: "columns", "aria-hidden": "true" },
    ["Service", "Ready", "Slices", "Fill", "Last sync", "Problem"].map((title) => h("span", {}, title)));
}

function line({ name, fills, endpoints, ready, ideal, managed, unmanagedReason, lastPlan, reason, failing }) {
  return h("li", { key: name, "data-health": failing ? "bad" : managed ? "good" : "off" },
    h("a", { href: `#service/${name}`, class: "id" }, name),
    h("span", { class: "figure", title: "ready endpoints, of all" }, managed ? `${count(ready)}/${count(endpoints)}` : "–"),
    h("span", { class: "figure", title: "slices, and the smallest possible number" }, managed ? `${count(fills.length)}/${count(ideal)}` : "–"),
    h("span", { class: "fills" },
      fills.slice(0, mostMeters).map((slice) =>
        h("meter", { key: slice.name, min: 0, max: slice.capacity, value: slice.endpoints, title: `${slice.name}: ${slice.endpoints} of ${slice.capacity}` },
          `${slice.endpoints} of ${slice.capacity}`)),
      fills.length > mostMeters && h("span", { key: "more", class: "muted" }, `+${count(fills.length - mostMeters)}`)),
    h("span", { class: "muted" }, managed ? planText(lastPlan) : unmanagedReason === "EXTERNAL_NAME" ? "an ExternalName" : "no selector"),
    h("span", { class: failing ? "reason" : "reason muted" }, reason));
}

// planText says how many slices the last sync wrote, and its trigger.
export function planText(last) {
  if (!last) return "";
  const wrote = [[last.createCount, "created"], [last.updateCount, "updated"], [last.deleteCount, "deleted"]]
    .filter(([number]) => number > 0).map(([number, word]) => `${count(number)} ${word}`);
  return `${wrote.join(", ") || "nothing to write"} · ${label(last.trigger)}`;
}

// shortName turns namespaces/shop/serviceslices/web into shop/web.
function shortName(name) {
  return name.replace(/^namespaces\//, "").replace("/serviceslices/", "/");
}

customElements.define("trivet-slices", Slices);
