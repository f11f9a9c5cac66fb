// <trivet-fleet> is every Node of the cluster: how many are how well, each as a cell of a field or a line of a list.

import { count } from "./clock.js";
import { colorOf, healths, onThemeChange, spritesOf } from "./health.js";
import { Nodes } from "./nodes.js";
import { ask, Stream } from "./stream.js";
import { h, render } from "./view.js";
import "./field.js";

const longestList = 200;
const zonesPause = 5000;

class Fleet extends HTMLElement {
  connectedCallback() {
    this.nodes = new Nodes();
    this.search = "";
    this.emphasis = null;
    this.asList = false;
    this.field = this.querySelector("trivet-field");
    this.place = (name) => this.querySelector(`[data-part="${name}"]`);
    this.stream = new Stream("/v1/nodes:watch", {
      opened: () => this.nodes.begin(),
      message: (event) => this.take(event),
      broken: (failure, retryAt) => this.broke(failure, retryAt),
    });
    this.addEventListener("click", (event) => this.click(event));
    this.addEventListener("input", ({ target }) => this.find(target.value));
    onThemeChange(() => this.draw());
    this.draw();
    this.stream.follow();
    this.askForZones();
  }

  // rest stops following while nobody looks; wake goes on.
  rest() {
    this.stream.pause();
  }

  wake() {
    this.stream.retryNow();
  }

  // choose rings the Node that is looked at; null for none.
  choose(name) {
    this.field.choose(name);
  }

  take(event) {
    this.failure = null;
    this.nodes.take(event);
    this.field.show(this.nodes);
    this.soon();
    if (event.node) this.dispatchEvent(new CustomEvent("news", { detail: event.node.name.replace(/^nodes\//, "") }));
  }

  broke(failure) {
    this.failure = failure;
    this.soon();
  }

  // soon redraws the words around the field, four times a second at most.
  soon() {
    if (this.timer) return;
    this.timer = setTimeout(() => {
      this.timer = 0;
      this.draw();
    }, 250);
  }

  async askForZones() {
    for (;;) {
      const follows = !document.hidden && !this.failure && this.nodes.complete;
      if (follows) {
        try {
          const { zones, blindBy } = await ask("/v1/zones", AbortSignal.timeout(zonesPause));
          this.blindBy = blindBy;
          this.field.showZones(zones);
        } catch {
          this.blindBy = "";
          this.field.showZones([]); // unknown is better than old
        }
        this.soon();
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
      this.field.emphasize(this.emphasis);
    } else if (button.dataset.as) {
      this.asList = button.dataset.as === "list";
    }
    this.draw();
    if (button.dataset.as === "field") this.field.repaint();
  }

  find(text) {
    this.search = text.trim().toLowerCase();
    this.draw();
  }

  draw() {
    const { byName, complete } = this.nodes;
    const off = this.failure?.reason === "LOOP_DISABLED";
    const known = byName.size > 0 && !off;
    this.dataset.old = this.failure && known ? "yes" : "no";
    render(this.place("count"), known ? `${count(byName.size)}${complete ? "" : "…"}` : "");
    render(this.place("notice"), off ? disabled() : this.notices());
    this.place("ways").hidden = this.place("legend").hidden = !known;
    this.field.hidden = !known || this.asList;
    this.place("list").hidden = !known || !this.asList;
    if (known) {
      this.drawWays();
      this.drawLegend();
      if (this.asList) this.drawList();
    }
  }

  notices() {
    const { byName, complete, missing } = this.nodes;
    const notices = [];
    if (this.failure) {
      const old = byName.size > 0 ? "What you see of the nodes is old: " : "Nothing is known of the nodes: ";
      notices.push(h("p", { key: "failure", class: "notice", role: "status", "data-health": "bad" }, old, this.failure.cause));
    } else if (!complete && byName.size === 0) {
      notices.push(h("p", { key: "waiting", class: "quiet" }, "Waiting for the first answer…"));
    } else if (complete && byName.size === 0 && missing.length === 0) {
      notices.push(h("p", { key: "empty", class: "quiet" }, "The cluster has no Node."));
    }
    if (this.blindBy) {
      notices.push(h("p", { key: "blind", class: "notice", role: "status", "data-health": "fair" },
        h("strong", {}, "No node is declared at present. "), this.blindBy));
    }
    if (missing.length > 0) {
      notices.push(h("div", { key: "missing", class: "notice", role: "status", "data-health": "fair" },
        h("p", {}, h("strong", {}, "This is not everything. "), `${missing.length === 1 ? "One replica of leasesvc does" : `${count(missing.length)} replicas of leasesvc do`} not tell; their nodes are missing, or shown as they were.`),
        h("ul", {}, missing.map(({ replica, code, message }) => h("li", { key: replica.id }, h("code", {}, replica.id), ` ${code}: ${message}`)))));
    }
    return notices;
  }

  drawWays() {
    for (const button of this.place("ways").querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String((button.dataset.as === "list") === this.asList));
    }
  }

  drawLegend() {
    const legend = this.place("legend");
    render(legend, healths.map(({ word, meaning }, rank) =>
      h("li", { key: word },
        h("button", { type: "button", "data-rank": rank, title: meaning, "aria-pressed": String(this.emphasis === rank) },
          h("canvas", { "aria-hidden": "true", width: 28, height: 28 }), h("span", {}, word), h("b", {}, count(this.nodes.counts[rank]))))));
    if (this.painted === colorOf(healths[0])) return;
    this.painted = colorOf(healths[0]);
    const sprites = spritesOf(28);
    legend.querySelectorAll("canvas").forEach((canvas, rank) => {
      const context = canvas.getContext("2d");
      context.clearRect(0, 0, 28, 28);
      context.drawImage(sprites[rank], 0, 0);
    });
  }

  drawList() {
    const fits = ({ name, zone, rank }) => (this.emphasis === null || rank === this.emphasis) && (name.includes(this.search) || zone.includes(this.search));
    const { nodes, more } = this.nodes.worst(longestList, fits);
    render(
      this.place("lines"),
      nodes.map(({ name, rank, zone, reason }) =>
        h("li", { key: name },
          h("a", { href: `#node/${name}` }, h("span", { class: "id" }, name)),
          h("span", { class: `health health-${rank}` }, healths[rank].word),
          h("span", { class: "quiet" }, zone),
          h("span", { class: "quiet" }, reason))),
      nodes.length === 0 && h("li", { key: "none", class: "quiet" }, "No node is like that."),
      more > 0 && h("li", { key: "more", class: "quiet" }, `And ${count(more)} more: search, or choose a state above.`),
    );
  }
}

// disabled says kindly what to do.
function disabled() {
  return h("div", { class: "notice", "data-health": "off" },
    h("p", {}, h("strong", {}, "Node health is off. "), "leasesvc keeps sessions and Leases, and leaves the judging of Nodes to the node-lifecycle controller of kube-controller-manager."),
    h("p", {}, "To have it here: start kube-controller-manager with ", h("code", {}, "--controllers=*,-node-lifecycle-controller"), ", and every leasesvc with ", h("code", {}, "--loops=*,node-health"), "."));
}

customElements.define("trivet-fleet", Fleet);
