// The page. It follows the status and hands it to the elements that show it; the other sections
// follow their own streams.

import "./key.js"; // takes the key out of the URL before a panel reads the fragment
import "./bootstrap.js";
import "./decisions.js";
import "./findings.js";
import "./history.js";
import "./nodepanel.js";
import "./nodes.js";
import "./planpanel.js";
import "./problems.js";
import "./servicepanel.js";
import "./service.js";
import "./slices.js";
import "./status.js";
import { Clock } from "./format.js";
import { feed, Stream } from "./stream.js";
import { healthOf } from "./verdict.js";
import { isRefusal } from "./view.js";

const banner = document.querySelector("trivet-banner");
const views = document.querySelectorAll("trivet-problems, trivet-summary, trivet-pot, trivet-service, trivet-nodes, trivet-findings, trivet-decisions, trivet-sources");
const nodes = document.querySelector("trivet-nodes");
const slices = document.querySelector("trivet-slices");
const nodePanel = document.querySelector("trivet-node-panel");
const servicePanel = document.querySelector("trivet-service-panel");
let clock = null;

const stream = new Stream("/v1/status:watch?interval=1s", {
  message({ status, missing }) {
    clock = new Clock(status.mergeTime);
    document.documentElement.dataset.stale = "no";
    document.title = healthOf(status.verdict) === "good" ? `Trivet · ${status.cluster}` : `▲ Trivet · ${status.cluster}`;
    banner.hide();
    for (const view of views) view.show(status, { clock, missing });
    colorDrawing(status);
  },
  broken({ cause, reason }, retryAt) {
    document.documentElement.dataset.stale = isRefusal(reason) ? "no" : "yes"; // other sections may be up to date
    document.title = "? Trivet";
    banner.show({ cause, reason, retryAt, clock });
    if (clock) document.querySelector("trivet-summary time").textContent = clock.timeOfDay();
    if (isRefusal(reason)) for (const view of views) view.refuse?.();
  },
});

// Each line of the drawing has the color of the service below.
function colorDrawing(status) {
  for (const line of document.querySelectorAll("[data-service]")) {
    const service = status.services.find(({ service }) => service === line.dataset.service);
    line.dataset.health = service ? healthOf(service.verdict) : "bad";
  }
}

banner.addEventListener("retry", () => feed.resume());
addEventListener("online", () => document.hidden || feed.resume());
nodes.onNews = (name) => nodePanel.refreshSoon(name);
nodePanel.addEventListener("chosen", ({ detail }) => nodes.choose(detail));
nodes.choose(nodePanel.subject);
slices.onNews = (name) => servicePanel.refreshSoon(name);

// A hidden page rests: it follows nothing, and its title claims nothing.
const hiddenLimit = 5000;
let hiding = 0;
document.addEventListener("visibilitychange", () => {
  clearTimeout(hiding);
  if (!document.hidden) return feed.resume();
  hiding = setTimeout(() => {
    feed.rest();
    document.title = "Trivet · paused";
  }, hiddenLimit);
});

stream.follow();
