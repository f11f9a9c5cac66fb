// The Nodes as the stream reports them. Nothing here touches the document.

import { order } from "./format.js";
import { healths, rankOf } from "./nodehealth.js";

// A set of more Nodes is not sorted for the few that are shown: the zones are sorted already.
const largestSort = 5000;

const byOrder = (a, b) => (a.order < b.order ? -1 : a.order > b.order ? 1 : 0);

export class NodeModel {
  constructor() {
    this.byName = new Map();
    this.byZone = new Map(); // name of a zone to its members, which may have ones that left
    this.byRank = healths.map(() => new Set());
    // complete is whether the stream has sent all that existed at its start.
    this.complete = false;
    this.missing = [];
    this.round = 0;
    // changed has the Nodes to paint again; moved has the zones whose Nodes came or left. The grid
    // resets both.
    this.changed = new Set();
    this.moved = new Set();
    this.texts = new Map(); // one copy of each text that many Nodes have
  }

  // counts has the number of Nodes of each health, by rank.
  get counts() {
    return this.byRank.map(({ size }) => size);
  }

  // begin starts a stream that reports everything again. A Node that it does not report is removed
  // when the stream has sent all that exists.
  begin() {
    this.round++;
    this.complete = false;
    this.texts.clear();
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

  put({ name, zone: zoneName, health, message, changeTime, agent }) {
    const rank = rankOf(health);
    const zone = this.shared(zoneName);
    let known = this.byName.get(name);
    if (!known) {
      const short = name.replace(/^nodes\//, "");
      known = { name: short, order: order(short), zone: null, rank: null };
      this.byName.set(name, known);
    }
    if (known.zone !== zone) {
      if (known.zone !== null) this.moved.add(known.zone);
      this.moved.add(zone);
      if (!this.byZone.has(zone)) this.byZone.set(zone, []);
      this.byZone.get(zone).push(known);
    }
    if (known.rank !== rank) {
      this.byRank[known.rank]?.delete(known);
      this.byRank[rank].add(known);
      this.changed.add(known);
    }
    known.zone = zone;
    known.rank = rank;
    known.message = this.shared(message);
    known.changeTime = changeTime;
    known.agent = this.shared(agent ? [agent.name, agent.version].filter(Boolean).join(" ") || "yes" : "");
    known.round = this.round;
  }

  // shared returns the copy of a text that all Nodes use. It forgets texts that are many.
  shared(text) {
    if (this.texts.size > 1000) this.texts.clear();
    if (!this.texts.has(text)) this.texts.set(text, text);
    return this.texts.get(text);
  }

  remove(name) {
    const known = this.byName.get(name);
    if (!known) return;
    this.byName.delete(name);
    this.byRank[known.rank].delete(known);
    this.moved.add(known.zone);
    known.zone = null;
  }

  // tidy sorts the members of the zones that moved, and removes the ones that left.
  tidy() {
    for (const zone of this.moved) {
      const members = (this.byZone.get(zone) ?? []).filter((node) => node.zone === zone).sort(byOrder).filter((node, place, all) => node !== all[place - 1]);
      if (members.length === 0) this.byZone.delete(zone);
      else this.byZone.set(zone, members);
    }
  }

  // zones has the Nodes by zone, both ordered by name.
  zones() {
    this.tidy();
    return new Map([...this.byZone].sort(([a], [b]) => (order(a) < order(b) ? -1 : 1)));
  }

  // worst returns at most limit Nodes of these ranks that fit, the least healthy first, and how many
  // more there are. Without fits all Nodes do.
  worst(limit, ranks, fits) {
    const nodes = [];
    let found = 0;
    for (const rank of ranks) {
      const all = this.byRank[rank];
      const need = limit - nodes.length;
      if (fits || all.size <= largestSort) {
        const fitting = fits ? [...all].filter(fits) : [...all];
        found += fitting.length;
        if (need > 0) nodes.push(...fitting.sort(byOrder).slice(0, need));
      } else {
        found += all.size;
        if (need > 0) nodes.push(...this.firstOf(rank, need));
      }
    }
    return { nodes, more: found - nodes.length };
  }

  firstOf(rank, limit) {
    this.tidy();
    const first = [];
    for (const members of this.byZone.values()) {
      let taken = 0;
      for (const node of members) {
        if (node.rank !== rank) continue;
        first.push(node);
        if (++taken === limit) break;
      }
    }
    return first.sort(byOrder).slice(0, limit);
  }
}
