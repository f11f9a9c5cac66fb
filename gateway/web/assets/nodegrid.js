// <trivet-node-grid> draws each Node as a cell, zone by zone.
//
// Each zone has one canvas. A Node that changes repaints its own cell. When Nodes come or leave,
// the zone is painted again, a few times a second at most, so that ten thousand Nodes stay smooth.

import { conditionOf, count, zoneText } from "./format.js";
import { healths, onThemeChange, spritesOf } from "./nodehealth.js";
import { h, render } from "./view.js";

const layoutPause = 300;
const tallest = 1000;

const zoneStates = {
  STATE_NORMAL: { word: "normal", health: "good" },
  STATE_PARTIAL_DISRUPTION: { word: "partial disruption", health: "fair" },
  STATE_FULL_DISRUPTION: { word: "full disruption", health: "bad" },
};

class NodeGrid extends HTMLElement {
  connectedCallback() {
    this.plots = new Map(); // by zone
    this.zoneStates = new Map();
    this.laidOut = -Infinity;
    [this.tip, this.pointed, this.chosenCell] = ["tip", "cell pointed", "cell chosen"].map((name) => {
      const element = document.createElement("div");
      element.className = name;
      element.hidden = true;
      this.append(element);
      return element;
    });
    new ResizeObserver(() => this.repaint()).observe(this);
    onThemeChange(() => this.repaint());
    this.addEventListener("pointermove", (event) => this.point(event));
    this.addEventListener("pointerleave", () => this.unpoint());
    this.addEventListener("click", (event) => {
      const hit = this.hit(event);
      if (hit) location.hash = `#node/${hit.node.name}`;
    });
  }

  // show draws a model, and its changes from then on.
  show(nodes) {
    this.nodes = nodes;
    this.schedule();
  }

  // showZones shows the state of each zone above its cells.
  showZones(zones) {
    this.zoneStates = new Map(zones.map((zone) => [zone.name, zone]));
    for (const plot of this.plots.values()) this.head(plot);
  }

  // emphasize dims all healths but one; null dims none.
  emphasize(rank) {
    this.emphasis = rank;
    this.repaint();
  }

  // choose marks a Node by its name; null marks none.
  choose(name) {
    this.chosen = name;
    this.markChosen();
  }

  markChosen() {
    const node = this.nodes?.byName.get(`nodes/${this.chosen}`);
    if (node?.plot) this.frameCell(this.chosenCell, node);
    else this.chosenCell.hidden = true;
  }

  repaint() {
    this.laidOut = -Infinity;
    if (this.nodes) this.nodes.moved = true;
    this.schedule();
  }

  // schedule paints in the next frame.
  schedule() {
    if (this.waiting || !this.nodes) return;
    this.waiting = true;
    requestAnimationFrame((now) => {
      this.waiting = false;
      this.frame(now);
    });
  }

  frame(now) {
    const { nodes } = this;
    if (nodes.moved && now - this.laidOut >= layoutPause) {
      this.laidOut = now;
      nodes.moved = false;
      nodes.changed.clear();
      this.layOut(nodes.zones());
      return;
    }
    for (const node of nodes.changed) this.paint(node);
    nodes.changed.clear();
    if (nodes.moved) setTimeout(() => this.schedule(), layoutPause);
  }

  layOut(zones) {
    const width = this.clientWidth;
    if (width === 0) return;
    this.pitch = pitchFor(this.nodes.byName.size, width);
    this.ratio = Math.min(2, devicePixelRatio || 1);
    this.sprites = spritesOf(Math.round((this.pitch - gapFor(this.pitch)) * this.ratio));
    for (const [zone, plot] of this.plots) {
      if (!zones.has(zone)) {
        plot.section.remove();
        this.plots.delete(zone);
      }
    }
    let before = null;
    for (const [zone, members] of zones) {
      const plot = this.plots.get(zone) ?? this.plot(zone);
      if (!plot.section.isConnected || plot.section.previousElementSibling !== before) this.insertBefore(plot.section, before ? before.nextSibling : this.firstChild);
      before = plot.section;
      plot.nodes = members;
      plot.columns = Math.max(1, Math.floor(width / this.pitch));
      this.paintAll(plot, width);
      this.head(plot);
    }
    this.unpoint();
    this.markChosen();
  }

  plot(zone) {
    const section = document.createElement("section");
    const header = document.createElement("header");
    const canvas = document.createElement("canvas");
    canvas.setAttribute("role", "img");
    section.append(header, canvas);
    const plot = { zone, section, header, canvas, context: canvas.getContext("2d"), nodes: [] };
    canvas.trivetPlot = plot;
    this.plots.set(zone, plot);
    return plot;
  }

  head({ zone, header, canvas, nodes }) {
    const state = this.zoneStates.get(zone);
    const known = state && zoneStates[state.state];
    const held = state && conditionOf(state.conditions, "DeclarationsHeld");
    const name = zoneText(zone);
    canvas.setAttribute("aria-label", `${count(nodes.length)} nodes of ${name}. The list has each.`);
    render(
      header,
      h("h3", {}, name),
      h("span", { class: "muted" }, count(nodes.length)),
      known && h("span", { class: "pill", "data-health": known.health }, known.word),
      state?.waitingNodeCount > 0 && h("span", { class: "muted" }, `${count(state.waitingNodeCount)} wait for a taint, ${state.taintsPerSecond}/s`),
      held?.is === "TRUE" && h("span", { class: "error" }, `No Node is set to Unknown: ${held.message}`),
    );
  }

  paintAll(plot, width) {
    const { canvas, context, nodes, columns } = plot;
    const height = Math.ceil(nodes.length / columns) * this.pitch;
    canvas.width = Math.round(width * this.ratio);
    canvas.height = Math.round(height * this.ratio);
    canvas.style.height = `${height}px`;
    context.clearRect(0, 0, canvas.width, canvas.height);
    nodes.forEach((node, place) => {
      node.plot = plot;
      node.place = place;
      this.stamp(node);
    });
  }

  paint(node) {
    if (!node.plot) return; // not in a plot yet
    const [x, y] = this.cornerOf(node);
    const size = this.pitch * this.ratio;
    node.plot.context.clearRect(x, y, size, size);
    this.stamp(node);
  }

  stamp(node) {
    const { context } = node.plot;
    const [x, y] = this.cornerOf(node);
    context.globalAlpha = this.emphasis == null || this.emphasis === node.rank ? 1 : 0.14;
    context.drawImage(this.sprites[node.rank], x, y);
  }

  cornerOf({ plot, place }) {
    const step = this.pitch * this.ratio;
    return [Math.round((place % plot.columns) * step), Math.round(Math.floor(place / plot.columns) * step)];
  }

  // hit returns the Node under the pointer, or null.
  hit({ target, offsetX, offsetY }) {
    const plot = target.trivetPlot;
    if (!plot) return null;
    const column = Math.floor(offsetX / this.pitch);
    const node = column < plot.columns ? plot.nodes[Math.floor(offsetY / this.pitch) * plot.columns + column] : undefined;
    return node ? { node, plot } : null;
  }

  point(event) {
    const hit = this.hit(event);
    if (!hit) return this.unpoint();
    const { node } = hit;
    const [left, top] = this.frameCell(this.pointed, node);
    render(this.tip, h("strong", {}, node.name), h("span", { class: "muted" }, healths[node.rank].word), node.message && h("p", {}, node.message));
    this.tip.hidden = false;
    place(this.tip, Math.max(0, Math.min(left, this.clientWidth - this.tip.offsetWidth)), top + this.pitch + 6);
  }

  // frameCell moves an element around a Node's cell and returns the position.
  frameCell(element, node) {
    const { canvas, columns } = node.plot;
    const left = canvas.offsetLeft + (node.place % columns) * this.pitch;
    const top = canvas.offsetTop + Math.floor(node.place / columns) * this.pitch;
    element.style.width = element.style.height = `${this.pitch - gapFor(this.pitch)}px`;
    place(element, left, top);
    return [left, top];
  }

  unpoint() {
    this.tip.hidden = this.pointed.hidden = true;
  }
}

function place(element, left, top) {
  element.hidden = false;
  element.style.transform = `translate(${left}px, ${top}px)`;
}

// pitchFor is the distance of cells in pixels: as large as possible while all fit on about one
// screen.
function pitchFor(nodes, width) {
  return Math.max(7, Math.min(24, Math.floor(Math.sqrt((width * tallest) / Math.max(1, nodes)))));
}

function gapFor(pitch) {
  return pitch >= 18 ? 4 : pitch >= 10 ? 2 : 1;
}

customElements.define("trivet-node-grid", NodeGrid);
