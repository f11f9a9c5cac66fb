// <trivet-nodes> is the section of all Nodes: a count of each health, a table with the worst first,
// and a map with a cell for each Node.

import { conditionOf, count, missingText, sentence, zoneText } from "./format.js";
import "./nodegrid.js";
import { colorOf, healths, onThemeChange, spritesOf } from "./nodehealth.js";
import { NodeModel } from "./nodemodel.js";
import { tell, WatchSection } from "./section.js";
import { ask } from "./stream.js";
import { cell, h, more, muted, notice, render, row, table } from "./view.js";

const zonesPause = 5000;
const symbolSize = 28;
const linesBesideMap = 8;
const linesInTable = 40;

const allRanks = healths.map((_, rank) => rank);
// unhealthyRanks are the healths for which a person may be needed.
const unhealthyRanks = allRanks.filter((rank) => !["HEALTH_STARTING", "HEALTH_READY"].includes(healths[rank].code));

class Nodes extends WatchSection {
  path = "/v1/nodes:watch";
  firstLines = linesBesideMap;

  prepare() {
    this.nodes = new NodeModel();
    this.emphasis = null; // rank of the health that is emphasized
    this.asTable = false;
    this.grid = this.querySelector("trivet-node-grid");
    this.addEventListener("click", (event) => this.click(event));
    onThemeChange(() => this.draw());
    this.askForZones();
  }

  // choose marks the Node of the open panel; null marks none.
  choose(name) {
    this.grid.choose(name);
  }

  // show takes the clock by which ages are measured.
  show(_, { clock }) {
    this.clock = clock;
    this.redrawSoon();
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
          const held = conditionOf(conditions, "MarkingSuspended");
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
      this.lines = this.firstLines;
      this.grid.emphasize(this.emphasis);
    } else if (button.dataset.as) {
      this.asTable = button.dataset.as === "table";
      this.lines = this.firstLines = this.asTable ? linesInTable : linesBesideMap;
    }
    this.draw();
    if (button.dataset.as === "map") this.grid.repaint();
  }

  draw() {
    const { byName, complete } = this.nodes;
    const off = this.failure?.reason === "LOOP_DISABLED";
    const known = byName.size > 0 && !off;
    this.dataset.old = this.failure && known ? "yes" : "no";
    render(this.part("count"), known ? `${count(byName.size)}${complete ? "" : "…"}` : "");
    render(this.part("notice"), off ? disabled() : this.notices());
    this.part("modes").hidden = this.part("legend").hidden = this.part("list").hidden = !known;
    this.grid.parentElement.hidden = !known || this.asTable;
    if (known) {
      this.drawModes();
      this.drawLegend();
      this.drawTable();
    }
    this.tell(known);
  }

  tell(known) {
    const { byName, byRank, complete } = this.nodes;
    const unhealthy = unhealthyRanks.reduce((sum, rank) => sum + byRank[rank].size, 0);
    const words = !known ? "not known" : unhealthy > 0 ? `${count(unhealthy)} of ${count(byName.size)} not healthy` : `${count(byName.size)}${complete ? "" : "…"}`;
    tell(this, words, !known ? "off" : unhealthy > 0 ? "fair" : "good");
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
      notices.push(h("div", { key: "missing", class: "notice", "data-health": "fair" },
        h("p", {}, h("strong", {}, "Incomplete. "), "Nodes of these parts are missing or old:"),
        h("ul", {}, missing.map((part, place) => h("li", { key: place }, missingText(part))))));
    }
    return notices;
  }

  drawModes() {
    for (const button of this.part("modes").querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String((button.dataset.as === "table") === this.asTable));
    }
  }

  drawLegend() {
    const legend = this.part("legend");
    const { counts } = this.nodes;
    render(legend, healths.map(({ word, meaning }, rank) =>
      h("li", { key: word },
        h("button", { type: "button", "data-rank": rank, title: meaning, "aria-pressed": String(this.emphasis === rank) },
          h("canvas", { "aria-hidden": "true", width: symbolSize, height: symbolSize }), h("span", {}, word), " ", h("b", {}, count(counts[rank]))))));
    if (this.painted === colorOf(healths[0])) return;
    this.painted = colorOf(healths[0]);
    const sprites = spritesOf(symbolSize);
    legend.querySelectorAll("canvas").forEach((canvas, rank) => {
      const context = canvas.getContext("2d");
      context.clearRect(0, 0, symbolSize, symbolSize);
      context.drawImage(sprites[rank], 0, 0);
    });
  }

  // drawTable shows all Nodes; beside the map only those that are not healthy, or are searched.
  drawTable() {
    const { search, emphasis } = this;
    const ranks = emphasis !== null ? [emphasis] : this.asTable || search ? allRanks : unhealthyRanks;
    const fits = search && (({ name, zone, agent }) => name.includes(search) || zone.includes(search) || agent.includes(search));
    const { nodes, more: rest } = this.nodes.worst(this.lines, ranks, fits || null);
    render(
      this.part("lines"),
      nodes.length > 0 && table("Nodes, the least healthy first", ["Node", "State", ["Since", "wide"], ["Agent", "wide"], ["Zone", "wide"], "Why"], nodes.map((node) => this.line(node))),
      nodes.length === 0 && (search || emphasis !== null || this.asTable ? muted("none", "No Node matches.") : muted("none", "All Nodes are healthy.")),
      more(rest, "Nodes"),
    );
  }

  line({ name, rank, zone, message, agent, changeTime }) {
    return row(name, {}, [
      h("a", { href: `#node/${name}`, class: "id" }, name),
      h("span", { class: `health health-${rank}` }, healths[rank].word),
      cell("wide muted", this.clock && changeTime ? this.clock.age(changeTime) : ""),
      cell("wide muted", agent || "none"),
      cell("wide muted", zoneText(zone)),
      cell("muted", message),
    ]);
  }
}

// disabled says what to do if the loop is off.
function disabled() {
  return h("div", { class: "notice", "data-health": "off" },
    h("p", {}, h("strong", {}, "Node health is off. "), "The node-lifecycle controller of kube-controller-manager watches Nodes; leasesvc keeps leases and Lease objects only."),
    h("p", {}, "To enable it, start kube-controller-manager with ", h("code", {}, "--controllers=*,-node-lifecycle-controller"), ", and every leasesvc with ", h("code", {}, "--loops=*,node-health"), "."));
}

customElements.define("trivet-nodes", Nodes);
