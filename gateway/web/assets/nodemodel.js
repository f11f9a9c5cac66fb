// The Nodes as the stream reports them. Nothing here touches the document.

import { order } from "./format.js";
import { healths, rankOf } from "./nodehealth.js";

export class NodeModel {
  constructor() {
    this.byName = new Map();
    // counts has the number of Nodes of each health, by rank.
    this.counts = healths.map(() => 0);
    // complete is whether the stream has sent all that existed at its start.
    this.complete = false;
    this.missing = [];
    this.round = 0;
    // changed has the Nodes to paint again; moved is whether Nodes came, left or changed zones. The
    // grid resets both.
    this.changed = new Set();
    this.moved = false;
  }

  // begin starts a stream that reports everything again. A Node that it does not report is removed
  // when the stream has sent all that exists.
  begin() {
    this.round++;
    this.complete = false;
  }

  take({ type, node, bookmark }) {
    if (type === "EVENT_TYPE_BOOKMARK") this.bookmark(bookmark);
    else if (type === "EVENT_TYPE_DELETED") this.remove(node.name);
    else this.put(node);
  }

  bookmark({ initialEventsEnd, missing }) {
    this.missing = missing;
    if (!initialEventsEnd) return;
    this.complete = true;
    for (const [name, { round }] of this.byName) {
      if (round !== this.round) this.remove(name);
    }
  }

  put({ name, zone, health, message }) {
    const rank = rankOf(health);
    let known = this.byName.get(name);
    if (!known) {
      const short = name.replace(/^nodes\//, "");
      known = { name: short, zone, rank, order: order(short) };
      this.byName.set(name, known);
      this.counts[rank]++;
      this.moved = true;
    }
    if (known.zone !== zone) this.moved = true;
    if (known.rank !== rank) {
      this.counts[known.rank]--;
      this.counts[rank]++;
      this.changed.add(known);
    }
    Object.assign(known, { zone, rank, message, round: this.round });
  }

  remove(name) {
    const known = this.byName.get(name);
    if (!known) return;
    this.byName.delete(name);
    this.counts[known.rank]--;
    this.moved = true;
  }

  // zones has the Nodes by zone, both ordered by name.
  zones() {
    const zones = new Map();
    for (const node of this.byName.values()) {
      if (!zones.has(node.zone)) zones.set(node.zone, []);
      zones.get(node.zone).push(node);
    }
    for (const members of zones.values()) members.sort((a, b) => (a.order < b.order ? -1 : 1));
    return new Map([...zones].sort(([a], [b]) => (order(a) < order(b) ? -1 : 1)));
  }

  // worst returns at most limit Nodes that fit, the least healthy first.
  worst(limit, fits) {
    const found = [...this.byName.values()].filter(fits);
    found.sort((a, b) => a.rank - b.rank || (a.order < b.order ? -1 : 1));
    return { nodes: found.slice(0, limit), more: Math.max(0, found.length - limit) };
  }
}
