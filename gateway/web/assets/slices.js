// <trivet-slices> is the section of all Services: the fill of each EndpointSlice, the number of
// slices, what their endpoints come from, and what the last sync wrote. Services with problems come
// first; each has a panel.

import { conditionOf, count, label, missingText, sourceText } from "./format.js";
import { tell, WatchSection } from "./section.js";
import { cell, h, more, muted, notice, render, row, table } from "./view.js";

const mostMeters = 12;

class Slices extends WatchSection {
  path = "/v1/serviceslices:watch";
  firstLines = 12;

  subjectOf({ serviceSlices }) {
    return serviceSlices;
  }

  newsOf({ name }) {
    return shortName(name);
  }

  summaryOf({ name, conditions, slices, endpointCount, readyEndpointCount, idealSliceCount, syncs }) {
    const messageOf = (type, value) => {
      const condition = conditionOf(conditions, type);
      return condition?.is === value ? condition.message : "";
    };
    const managing = conditionOf(conditions, "Managed");
    const managed = managing?.is !== "FALSE";
    const contended = messageOf("Contended", "TRUE");
    const lacking = messageOf("AddressesDropped", "TRUE") || messageOf("SourcesOverlap", "TRUE");
    const failed = syncs.find(({ failureCount }) => failureCount > 0);
    const failing = Boolean(contended || failed);
    const surplus = slices.length - idealSliceCount;
    return {
      name: shortName(name),
      fills: slices.map(({ name, endpointCount, capacity }) => ({ name, endpoints: endpointCount, capacity })),
      endpoints: endpointCount, ready: readyEndpointCount, ideal: idealSliceCount, managed, unmanagedReason: managing?.reason,
      source: sourceText(slices), lastPlan: lastSync(syncs)?.lastPlan,
      reason: contended || failed?.lastError || lacking || messageOf("TopologyHints", "FALSE"), failing, lacking: Boolean(lacking),
      priority: failing ? 2000 : lacking ? 1000 : surplus > 1 && managed ? surplus : 0,
    };
  }

  draw() {
    const known = this.byName.size > 0;
    this.dataset.old = this.failure && known ? "yes" : "no";
    render(this.part("count"), known ? this.total() : "");
    render(this.part("notice"), this.notices(known));
    this.part("list").hidden = !known;
    if (known) this.drawList();
    this.tell(known);
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
    const found = [...this.byName.values()].filter(({ name, source }) => name.includes(this.search) || source.toLowerCase() === this.search);
    found.sort((a, b) => b.priority - a.priority || (a.name < b.name ? -1 : 1));
    render(
      this.part("lines"),
      found.length > 0 && table("Services, those with problems first", columns, found.slice(0, this.lines).map(line)),
      found.length === 0 && muted("none", "No Service matches."),
      more(found.length - this.lines, "Services"),
    );
  }

  tell(known) {
    let failing = 0;
    let lacking = 0;
    for (const service of this.byName.values()) {
      if (service.failing) failing++;
      else if (service.lacking) lacking++;
    }
    const words = !known ? "not known" : failing + lacking > 0 ? `${count(failing + lacking)} of ${count(this.byName.size)} with problems` : count(this.byName.size);
    tell(this, words, !known ? "off" : failing > 0 ? "bad" : lacking > 0 ? "fair" : "good");
  }
}

const columns = ["Service", ["Ready", "figure"], ["Slices", "figure"], ["Fill", "wide"], ["Source", "wide"], ["Last sync", "wide"], "Problem"];

const unmanagedTexts = {
  EXTERNAL_NAME: "an ExternalName",
  LEADER_ANNOTATION: "a lock of leader election",
  NO_ENDPOINTS: "no selector, no Endpoints",
  NO_SELECTOR: "no selector",
  SKIP_MIRROR_LABEL: "label skip-mirror",
};

function line({ name, fills, endpoints, ready, ideal, managed, unmanagedReason, source, lastPlan, reason, failing, lacking }) {
  const text = (number, all) => ({ name: "figure", content: managed ? `${count(number)}/${count(all)}` : "–" });
  return row(name, { "data-health": failing ? "bad" : lacking ? "fair" : managed ? "good" : "off" }, [
    h("a", { href: `#service/${name}`, class: "id" }, name),
    text(ready, endpoints),
    text(fills.length, ideal),
    cell("wide", h("span", { class: "fills" }, fills.slice(0, mostMeters).map((slice) =>
      h("meter", { key: slice.name, min: 0, max: slice.capacity, value: slice.endpoints, "aria-label": `fill of ${slice.name}`, title: `${slice.name}: ${slice.endpoints} of ${slice.capacity}` },
        `${slice.endpoints} of ${slice.capacity}`)),
      fills.length > mostMeters && h("span", { key: "more", class: "muted" }, `+${count(fills.length - mostMeters)}`))),
    cell("wide muted", source),
    cell("wide muted", managed ? planText(lastPlan) : unmanagedTexts[unmanagedReason] ?? label(unmanagedReason)),
    cell(failing || lacking ? "reason" : "reason muted", reason),
  ]);
}

// lastSync returns the sync that began last, of the sources of a Service.
export function lastSync(syncs) {
  const began = ({ lastPlan }) => Date.parse(lastPlan?.startTime ?? 0) || 0;
  return syncs.reduce((last, sync) => (!last || began(sync) > began(last) ? sync : last), undefined);
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
