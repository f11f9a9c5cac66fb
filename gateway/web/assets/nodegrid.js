// <trivet-node-grid> draws each Node as a cell, zone by zone.
//
// Each zone has one canvas. A Node that changes repaints its own cell. When Nodes come or leave, the
// zone is painted again, one zone in a frame, and less often the longer that takes. So 130,000 Nodes
// stay smooth.

import { conditionOf, count, zoneText } from "./format.js";
import { colorOf, healths, onThemeChange, spritesOf } from "./nodehealth.js";
import { h, render } from "./view.js";

const shortestPause = 300; // between two layouts
const pauseShare = 8; // a layout takes this part of the time at most
const manyChanges = 50;
const manyPause = 500; // between two paintings of many changes
const tallest = 1000;
const smallestSymbol = 5; // a smaller cell is a square of the color

const zoneStates = {
  STATE_NORMAL: { word: "normal", health: "good" },
  STATE_PARTIAL_DISRUPTION: { word: "partial disruption", health: "fair" },
  STATE_FULL_DISRUPTION: { word: "full disruption", health: "bad" },
};

class NodeGrid extends HTMLElement {
  connectedCallback() {
    this.plots = new Map(); // by zone
    this.zoneStates = new Map();
    this.unpainted = new Set(); // plots
    this.batch = new Set(); // changed Nodes that are painted in these frames
    this.laidOut = this.painted = -Infinity;
    this.cost = 0; // of the last layout, in milliseconds
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
    if (node?.plot && node.plot.nodes[node.place] === node) this.frameCell(this.chosenCell, node);
    else this.chosenCell.hidden = true;
  }

  // repaint paints everything again, for example in another size.
  repaint() {
    this.everything = true;
    this.laidOut = -Infinity;
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
    const isDue = nodes.moved.size > 0 || this.everything;
    const pause = Math.max(shortestPause, pauseShare * this.cost);
    if (this.unpainted.size > 0) {
      this.paintNext();
    } else if (isDue && now - this.laidOut >= pause) {
      this.laidOut = now;
      this.cost = 0;
      this.timed(() => this.layOut());
    } else {
      this.paintChanged(now);
      if (isDue) setTimeout(() => this.schedule(), pause);
      return;
    }
    if (this.unpainted.size > 0 || nodes.changed.size + this.batch.size > 0) this.schedule();
  }

  // paintChanged paints the cells of one zone, because the browser draws a canvas as a whole. Many
  // changes are painted twice a second.
  paintChanged(now) {
    const { changed } = this.nodes;
    if (this.batch.size === 0) {
      const wait = changed.size > manyChanges ? this.painted + manyPause - now : 0;
      if (wait > 0) {
        setTimeout(() => this.schedule(), wait);
        return;
      }
      [this.batch, this.nodes.changed] = [changed, this.batch];
    }
    const [{ plot } = {}] = this.batch;
    for (const node of this.batch) {
      if (node.plot !== plot) continue;
      this.paint(node);
      this.batch.delete(node);
    }
    if (this.batch.size > 0) this.schedule();
    else this.painted = now;
  }

  timed(work) {
    const started = performance.now();
    work();
    this.cost += performance.now() - started;
  }

  // layOut finds the place of each zone, and the zones to paint.
  layOut() {
    const width = this.clientWidth;
    if (width === 0) return;
    const { nodes } = this;
    const zones = nodes.zones();
    const pitch = pitchFor(nodes.byName.size, width);
    const ratio = Math.min(2, devicePixelRatio || 1);
    const all = this.everything || pitch !== this.pitch || ratio !== this.ratio || width !== this.width;
    this.everything = false;
    Object.assign(this, { pitch, ratio, width });
    if (all) {
      this.cell = Math.max(1, Math.round((pitch - gapFor(pitch)) * ratio));
      this.sprites = spritesOf(this.cell);
      this.colors = healths.map(colorOf);
    }
    for (const [zone, plot] of this.plots) {
      if (zones.has(zone)) continue;
      plot.section.remove();
      this.plots.delete(zone);
    }
    let before = null;
    for (const [zone, members] of zones) {
      const known = this.plots.has(zone);
      const plot = known ? this.plots.get(zone) : this.plot(zone);
      if (!plot.section.isConnected || plot.section.previousElementSibling !== before) this.insertBefore(plot.section, before ? before.nextSibling : this.firstChild);
      before = plot.section;
      plot.next = members;
      if (all || !known || nodes.moved.has(zone)) this.unpainted.add(plot);
    }
    nodes.moved.clear();
    this.unpoint();
  }

  // paintNext paints one zone.
  paintNext() {
    const [plot] = this.unpainted;
    this.unpainted.delete(plot);
    if (this.plots.get(plot.zone) !== plot) return;
    this.timed(() => {
      plot.nodes = plot.next;
      plot.columns = Math.max(1, Math.floor(this.width / this.pitch));
      this.paintAll(plot, this.width);
      this.head(plot);
    });
    if (this.unpainted.size === 0) this.markChosen();
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
    const held = state && conditionOf(state.conditions, "MarkingSuspended");
    const name = zoneText(zone);
    canvas.setAttribute("aria-label", `${count(nodes.length)} nodes of ${name}. The table has each.`);
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
    if (!node.plot || this.unpainted.has(node.plot)) return; // it is painted with its zone
    const [x, y] = this.cornerOf(node);
    const size = this.pitch * this.ratio;
    node.plot.context.clearRect(x, y, size, size);
    this.stamp(node);
  }

  stamp(node) {
    const { context } = node.plot;
    const [x, y] = this.cornerOf(node);
    context.globalAlpha = this.emphasis == null || this.emphasis === node.rank ? 1 : 0.14;
    if (this.cell >= smallestSymbol) return context.drawImage(this.sprites[node.rank], x, y);
    context.fillStyle = this.colors[node.rank];
    context.fillRect(x, y, this.cell, this.cell);
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
// screen. A larger grid scrolls.
function pitchFor(nodes, width) {
  return Math.max(4, Math.min(24, Math.floor(Math.sqrt((width * tallest) / Math.max(1, nodes)))));
}

function gapFor(pitch) {
  return pitch >= 18 ? 4 : pitch >= 10 ? 2 : 1;
}

customElements.define("trivet-node-grid", NodeGrid);
