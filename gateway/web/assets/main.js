// The page: follows the status and hands it to the elements of the document.

import "./banner.js";
import "./pot.js";
import "./sources.js";
import "./summary.js";
import { Clock } from "./clock.js";
import { healthOf } from "./service.js";
import { Stream } from "./stream.js";

const banner = document.querySelector("trivet-banner");
const views = document.querySelectorAll("trivet-summary, trivet-pot, trivet-service, trivet-sources");
let clock = null;

const stream = new Stream({
  status({ status, partial }) {
    clock = new Clock(status.mergeTime);
    document.documentElement.dataset.stale = "no";
    document.title = status.healthy ? `Trivet · ${status.cluster}` : `▲ Trivet · ${status.cluster}`;
    banner.hide();
    for (const view of views) view.show(status, { clock, partial });
    colourLegs(status);
  },
  broken(cause, retryAt) {
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
addEventListener("online", () => stream.retryNow());
document.addEventListener("visibilitychange", () => document.hidden || stream.retryNow());
stream.follow();
