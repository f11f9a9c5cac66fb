// Times and durations as people say them.
//
// Ages are measured by the gateway's clock, as it stood when it merged the status, plus what has passed here since. The
// browser's own clock may be wrong; it is only asked how much time went by.

export class Clock {
  constructor(mergeTime) {
    this.merged = Date.parse(mergeTime);
    this.received = performance.now();
  }

  // sinceMerge is how old the status is, in seconds.
  sinceMerge() {
    return (performance.now() - this.received) / 1000;
  }

  // age says how long ago a time was, or nothing when it is unknown. Clocks of replicas may be ahead a little.
  age(time) {
    const seconds = (this.merged - Date.parse(time)) / 1000 + this.sinceMerge();
    return Number.isFinite(seconds) ? duration(Math.max(0, seconds)) : "";
  }

  // until is how long it is until a time, in seconds; negative when it has passed.
  until(time) {
    return (Date.parse(time) - this.merged) / 1000 - this.sinceMerge();
  }

  // timeOfDay says when the status was merged.
  timeOfDay() {
    return new Date(this.merged).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  }
}

// duration says seconds in one unit, or two where one would be coarse: "now", "42s", "5m", "3h 10m", "2d 4h".
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

// ago puts a duration in the past.
export function ago(text) {
  if (text === "") return "never";
  return text === "now" ? "just now" : `${text} ago`;
}

// milliseconds reads a protobuf duration such as "0.0021s".
export function milliseconds(text) {
  const seconds = Number.parseFloat(text ?? "");
  if (!Number.isFinite(seconds)) return "";
  const ms = seconds * 1000;
  return ms < 10 ? `${ms.toFixed(1)} ms` : `${Math.round(ms)} ms`;
}

// count groups the digits of a number, which JSON carries as a string when it has 64 bits.
export function count(value) {
  return Number(value).toLocaleString();
}
