// The Nodes as the stream tells of them. Nothing here touches the document.

import { healths, rankOf } from "./health.js";

export class Nodes {
  constructor() {
    this.byName = new Map();
    // counts says how many Nodes have each health, by rank.
    this.counts = healths.map(() => 0);
    // complete is whether the stream has told of all that there are, as far as anybody tells of them; settled whether what it did
    // not tell of was taken out.
    this.complete = this.settled = false;
    this.missing = [];
    this.round = 0;
    // changed are Nodes that look different since the last call of taken; moved is whether Nodes came, went or changed zones.
    this.changed = new Set();
    this.moved = false;
  }

  // begin says that a stream tells everything anew. What it does not mention until its bookmark is gone, unless it may be in a part
  // that is missing.
  begin() {
    this.round++;
    this.complete = this.settled = false;
  }

  take({ type, node, missing }) {
    if (type === "TYPE_BOOKMARK") this.bookmark(missing);
    else if (type === "TYPE_DELETED") this.remove(node.name);
    else this.put(node);
  }

  bookmark(missing) {
    this.missing = missing;
    this.complete = true;
    if (this.settled || missing.length > 0) return;
    this.settled = true;
    for (const [name, { round }] of this.byName) {
      if (round !== this.round) this.remove(name);
    }
  }

  put({ name, zone, health, reason, heldBy }) {
    const rank = rankOf(health);
    let known = this.byName.get(name);
    if (!known) {
      const short = name.replace(/^nodes\//, "");
      known = { name: short, zone, rank, order: orderOf(short) };
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
    Object.assign(known, { zone, rank, reason, heldBy, round: this.round });
  }

  remove(name) {
    const known = this.byName.get(name);
    if (!known) return;
    this.byName.delete(name);
    this.counts[known.rank]--;
    this.moved = true;
  }

  // zones are the Nodes by zone, both ordered by name; numbers in names count as numbers.
  zones() {
    const zones = new Map();
    for (const node of this.byName.values()) {
      if (!zones.has(node.zone)) zones.set(node.zone, []);
      zones.get(node.zone).push(node);
    }
    for (const members of zones.values()) members.sort((a, b) => (a.order < b.order ? -1 : 1));
    return new Map([...zones].sort(([a], [b]) => (orderOf(a) < orderOf(b) ? -1 : 1)));
  }

  // worst are at most so many Nodes that fit, those first that want to be looked at.
  worst(limit, fits) {
    const found = [...this.byName.values()].filter(fits);
    found.sort((a, b) => a.rank - b.rank || (a.order < b.order ? -1 : 1));
    return { nodes: found.slice(0, limit), more: Math.max(0, found.length - limit) };
  }
}

function orderOf(name) {
  return name.replace(/\d+/g, (digits) => digits.padStart(10, "0"));
}
