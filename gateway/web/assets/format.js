// Formats times, numbers, names and sentences.

// Moment is the moment of its creation. One of the browser's clocks stands still while the machine
// sleeps, and the other one may be set back.
export class Moment {
  constructor() {
    this.steady = performance.now();
    this.wall = Date.now();
  }

  // passed is how many milliseconds ago it was.
  passed() {
    return Math.max(performance.now() - this.steady, Date.now() - this.wall);
  }
}

// Clock tells ages by the gateway's clock: its time when it merged the status, and what has passed
// here since. The browser's own clock may be wrong.
export class Clock {
  constructor(mergeTime) {
    this.merged = Date.parse(mergeTime);
    this.received = new Moment();
  }

  // sinceMerge is the age of the status in seconds.
  sinceMerge() {
    return this.received.passed() / 1000;
  }

  // age formats how long ago a time was; "" if it is unknown. Clocks of replicas may be ahead a
  // little.
  age(time) {
    const seconds = (this.merged - Date.parse(time)) / 1000 + this.sinceMerge();
    return Number.isFinite(seconds) ? duration(Math.max(0, seconds)) : "";
  }

  // until is the number of seconds until a time; negative if it has passed.
  until(time) {
    return (Date.parse(time) - this.merged) / 1000 - this.sinceMerge();
  }

  // timeOfDay is when the status was merged, with the date if that was not today.
  timeOfDay() {
    const merged = new Date(this.merged);
    const now = new Date(this.merged + this.sinceMerge() * 1000);
    const date = merged.toDateString() === now.toDateString() ? "" : `${merged.toLocaleDateString([], { day: "numeric", month: "short" })}, `;
    return date + merged.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  }
}

// duration formats seconds in one unit, or two where one is coarse: "now", "42s", "5m", "3h 10m".
export function duration(seconds) {
  if (seconds < 1) return "now";
  if (seconds < 60) return `${Math.floor(seconds)}s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m`;
  const hours = Math.floor(seconds / 3600);
  if (hours < 24) return pair(hours, "h", Math.floor((seconds % 3600) / 60), "m");
  return pair(Math.floor(hours / 24), "d", hours % 24, "h");
}

function pair(large, largeUnit, small, smallUnit) {
  return small === 0 ? `${large}${largeUnit}` : `${large}${largeUnit} ${small}${smallUnit}`;
}

// ago formats a duration in the past.
export function ago(text) {
  if (text === "") return "never";
  return text === "now" ? "just now" : `${text} ago`;
}

// milliseconds formats a protobuf duration such as "0.0021s".
export function milliseconds(text) {
  const seconds = Number.parseFloat(text ?? "");
  if (!Number.isFinite(seconds)) return "";
  const ms = seconds * 1000;
  return ms < 10 ? `${ms.toFixed(1)} ms` : `${Math.round(ms)} ms`;
}

// count groups the digits of a number; JSON has 64-bit numbers as strings.
export function count(value) {
  return Number(value).toLocaleString();
}

// missingText says which part of an answer is missing, and why.
export function missingText({ service, shards, replicaId, code, message }) {
  const part = shards.length > 0 ? `${service} ${shards.length === 1 ? "shard" : "shards"} ${rangesOf(shards)}` : service;
  return `${part}${replicaId ? ` of ${replicaId}` : ""}: ${message || code}`;
}

// rangesOf shortens an ordered list of numbers: "0-3, 7".
function rangesOf(numbers) {
  const ranges = [];
  for (const number of numbers) {
    const last = ranges.at(-1);
    if (last && last[1] + 1 === number) last[1] = number;
    else ranges.push([number, number]);
  }
  return ranges.map(([first, last]) => (first === last ? first : `${first}-${last}`)).join(", ");
}

// conditionOf returns the condition of a type, with is: "TRUE", "FALSE" or "UNKNOWN"; undefined if it
// is absent.
export function conditionOf(conditions, type) {
  const found = conditions.find((condition) => condition.type === type);
  return found && { ...found, is: found.status.replace("STATUS_", "") };
}

// sourceText names what the endpoints of slices come from; "" without slices.
export function sourceText(slices) {
  const sources = new Set(slices.map(({ source }) => source));
  if (sources.size > 1) return "both";
  return sources.has("SLICE_SOURCE_ENDPOINTS") ? "Endpoints" : sources.has("SLICE_SOURCE_SELECTOR") ? "selector" : "";
}

// zoneText turns zones/eu:a into eu:a.
export function zoneText(name) {
  return name === "zones/none" ? "no zone" : name.replace(/^zones\//, "");
}

// plural formats a number and its noun: "1 replica", "2 replicas".
export function plural(number, noun, nouns = `${noun}s`) {
  return `${count(number)} ${number === 1 ? noun : nouns}`;
}

// sentence capitalizes a text and ends it with a full stop.
export function sentence(text) {
  if (!text) return "";
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}

// label turns LAST_BEAT into "Last beat".
export function label(code) {
  const words = code.toLowerCase().replaceAll("_", " ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}

// nameOf formats an object reference: "Service shop/web".
export function nameOf({ kind, namespace, name }) {
  return `${kind} ${namespace ? `${namespace}/` : ""}${name}`;
}

// order is a sort key in which numbers inside a name count as numbers.
export function order(name) {
  return name.replace(/\d+/g, (digits) => digits.padStart(10, "0"));
}
