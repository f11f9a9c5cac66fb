// The page: follows the status and hands it to the elements of the document; the others follow by themselves what they show.

import "./apiservers.js";
import "./banner.js";
import "./baseline.js";
import "./findings.js";
import "./fleet.js";
import "./node.js";
import "./plan.js";
import "./pot.js";
import "./repairs.js";
import "./shelf.js";
import "./slices.js";
import "./sources.js";
import "./summary.js";
import { Clock } from "./clock.js";
import { healthOf } from "./service.js";
import { Stream } from "./stream.js";

const banner = document.querySelector("trivet-banner");
const views = document.querySelectorAll("trivet-summary, trivet-pot, trivet-service, trivet-findings, trivet-sources");
let clock = null;

const fleet = document.querySelector("trivet-fleet");
const node = document.querySelector("trivet-node");
const slices = document.querySelector("trivet-slices");
const findings = document.querySelector("trivet-findings");
const shelf = document.querySelector("trivet-shelf");

const stream = new Stream("/v1/status:watch?interval=1s", {
  message({ status, partial }) {
    clock = new Clock(status.mergeTime);
    document.documentElement.dataset.stale = "no";
    document.title = status.healthy ? `Trivet · ${status.cluster}` : `▲ Trivet · ${status.cluster}`;
    banner.hide();
    for (const view of views) view.show(status, { clock, partial });
    colourLegs(status);
  },
  broken({ cause }, retryAt) {
    document.documentElement.dataset.stale = "yes";
    document.title = "? Trivet";
    banner.show({ cause, retryAt, clock });
  },
});

// The drawing's legs take the colour of the services below them.
function colourLegs(status) {
  for (const leg of document.querySelectorAll("[data-leg]")) {
    const service = status.services.find(({ service }) => service === leg.dataset.leg);
    leg.dataset.health = service ? healthOf(service) : "bad";
  }
}

banner.addEventListener("retry", () => stream.retryNow());
addEventListener("online", retryAll);
fleet.addEventListener("news", ({ detail }) => node.heard(detail));
node.addEventListener("chosen", ({ detail }) => fleet.choose(detail));
fleet.choose(node.subject);
slices.addEventListener("news", ({ detail }) => shelf.heard(detail));

// A browser opens few connections to one server. Pages that nobody looks at leave them to the others.
const patience = 15000;
let resting = 0;
document.addEventListener("visibilitychange", () => {
  clearTimeout(resting);
  if (!document.hidden) return retryAll();
  resting = setTimeout(() => {
    fleet.rest();
    slices.rest();
    findings.rest();
  }, patience);
});

function retryAll() {
  stream.retryNow();
  fleet.wake();
  slices.wake();
  findings.wake();
}

stream.follow();
