// <trivet-nodes> is the section of all Nodes: a count of each health, and each Node as a cell of a
// grid or a line of a list.

import { conditionOf, count, missingText, sentence, zoneText } from "./format.js";
import "./nodegrid.js";
import { colorOf, healths, onThemeChange, spritesOf } from "./nodehealth.js";
import { NodeModel } from "./nodemodel.js";
import { WatchSection } from "./section.js";
import { ask } from "./stream.js";
import { h, muted, notice, render } from "./view.js";

const longestList = 200;
const zonesPause = 5000;
const symbolSize = 28;

class Nodes extends WatchSection {
  path = "/v1/nodes:watch";

  prepare() {
    this.nodes = new NodeModel();
    this.emphasis = null; // rank of the health that is emphasized
    this.asList = false;
    this.grid = this.querySelector("trivet-node-grid");
    this.addEventListener("click", (event) => this.click(event));
    onThemeChange(() => this.draw());
    this.askForZones();
  }

  // choose marks the Node of the open panel; null marks none.
  choose(name) {
    this.grid.choose(name);
  }

  begin() {
    this.nodes.begin();
  }

  apply(event) {
    this.nodes.take(event);
    this.grid.show(this.nodes);
  }

  subjectOf({ node }) {
    return node;
  }

  newsOf({ name }) {
    return name.replace(/^nodes\//, "");
  }

  async askForZones() {
    for (;;) {
      const follows = !document.hidden && !this.failure && this.nodes.complete;
      if (follows) {
        try {
          const { zones, conditions } = await ask("/v1/zones?page_size=5000", AbortSignal.timeout(zonesPause));
          const held = conditionOf(conditions, "DeclarationsHeld");
          this.held = held?.is === "TRUE" ? held.message : "";
          this.grid.showZones(zones);
        } catch {
          this.held = "";
          this.grid.showZones([]); // no state is better than an old one
        }
        this.redrawSoon();
      }
      await new Promise((resolve) => setTimeout(resolve, follows ? zonesPause : 500));
    }
  }

  click({ target }) {
    const button = target.closest("button");
    if (!button) return;
    if (button.dataset.rank !== undefined) {
      const rank = Number(button.dataset.rank);
      this.emphasis = this.emphasis === rank ? null : rank;
      this.grid.emphasize(this.emphasis);
    } else if (button.dataset.as) {
      this.asList = button.dataset.as === "list";
    }
    this.draw();
    if (button.dataset.as === "grid") this.grid.repaint();
  }

  draw() {
    const { byName, complete } = this.nodes;
    const off = this.failure?.reason === "LOOP_DISABLED";
    const known = byName.size > 0 && !off;
    this.dataset.old = this.failure && known ? "yes" : "no";
    render(this.part("count"), known ? `${count(byName.size)}${complete ? "" : "…"}` : "");
    render(this.part("notice"), off ? disabled() : this.notices());
    this.part("modes").hidden = this.part("legend").hidden = !known;
    this.grid.hidden = !known || this.asList;
    this.part("list").hidden = !known || !this.asList;
    if (known) {
      this.drawModes();
      this.drawLegend();
      if (this.asList) this.drawList();
    }
  }

  notices() {
    const { byName, complete, missing } = this.nodes;
    const notices = [];
    if (this.failure) {
      notices.push(this.failureNotice(byName.size > 0));
    } else if (!complete && byName.size === 0) {
      notices.push(muted("waiting", "Waiting for the first answer…"));
    } else if (complete && byName.size === 0 && missing.length === 0) {
      notices.push(muted("empty", "The cluster has no Node."));
    }
    if (this.held) {
      notices.push(notice("held", "fair", h("strong", {}, "No Node is set to Unknown at present. "), sentence(this.held)));
    }
    if (missing.length > 0) {
      notices.push(h("div", { key: "missing", class: "notice", role: "status", "data-health": "fair" },
        h("p", {}, h("strong", {}, "Incomplete. "), "Nodes of these parts are missing or old:"),
        h("ul", {}, missing.map((part, place) => h("li", { key: place }, missingText(part))))));
    }
    return notices;
  }

  drawModes() {
    for (const button of this.part("modes").querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String((button.dataset.as === "list") === this.asList));
    }
  }

  drawLegend() {
    const legend = this.part("legend");
    render(legend, healths.map(({ word, meaning }, rank) =>
      h("li", { key: word },
        h("button", { type: "button", "data-rank": rank, title: meaning, "aria-pressed": String(this.emphasis === rank) },
          h("canvas", { "aria-hidden": "true", width: symbolSize, height: symbolSize }), h("span", {}, word), h("b", {}, count(this.nodes.counts[rank]))))));
    if (this.painted === colorOf(healths[0])) return;
    this.painted = colorOf(healths[0]);
    const sprites = spritesOf(symbolSize);
    legend.querySelectorAll("canvas").forEach((canvas, rank) => {
      const context = canvas.getContext("2d");
      context.clearRect(0, 0, symbolSize, symbolSize);
      context.drawImage(sprites[rank], 0, 0);
    });
  }

  drawList() {
    const fits = ({ name, zone, rank }) => (this.emphasis === null || rank === this.emphasis) && (name.includes(this.search) || zone.includes(this.search));
    const { nodes, more } = this.nodes.worst(longestList, fits);
    render(
      this.part("lines"),
      nodes.map(({ name, rank, zone, message }) =>
        h("li", { key: name },
          h("a", { href: `#node/${name}` }, h("span", { class: "id" }, name)),
          h("span", { class: `health health-${rank}` }, healths[rank].word),
          h("span", { class: "muted" }, zoneText(zone)),
          h("span", { class: "muted" }, message))),
      nodes.length === 0 && h("li", { key: "none", class: "muted" }, "No Node matches."),
      more > 0 && h("li", { key: "more", class: "muted" }, `And ${count(more)} more: search, or choose a state above.`),
    );
  }
}

// disabled says what to do if the loop is off.
function disabled() {
  return h("div", { class: "notice", "data-health": "off" },
    h("p", {}, h("strong", {}, "Node health is off. "), "The node-lifecycle controller of kube-controller-manager watches Nodes; leasesvc keeps leases and Lease objects only."),
    h("p", {}, "To enable it, start kube-controller-manager with ", h("code", {}, "--controllers=*,-node-lifecycle-controller"), ", and every leasesvc with ", h("code", {}, "--loops=*,node-health"), "."));
}

customElements.define("trivet-nodes", Nodes);
