// <trivet-sources> lists whom the gateway asked, how long each took, and who did not answer.

import { milliseconds } from "./clock.js";
import { h, render } from "./view.js";

class Sources extends HTMLElement {
  show({ sources }) {
    render(
      this,
      h("h2", {}, "Answers"),
      h("ul", {}, sources.map(({ replica, ok, code, message, latency }) =>
        h("li", { key: `${replica.service}/${replica.id}`, "data-health": ok ? "good" : "bad", title: message || replica.grpcAddress },
          h("span", { class: "dot", "data-health": ok ? "good" : "bad" }),
          h("span", { class: "service" }, replica.service),
          h("span", { class: "id quiet" }, replica.id),
          h("span", { class: "end" }, ok ? milliseconds(latency) : code),
        ))),
    );
  }
}

customElements.define("trivet-sources", Sources);
