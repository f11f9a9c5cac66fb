// Follows watches of the gateway over one connection, for any number of readers.
//
// A browser opens six connections to a host, for all its windows. So all windows share the Hub of
// worker.js, and the Hub has one connection. It closes while no watch has a reader.

import { Moment } from "./format.js";

// A connection that is silent for so long is broken: the status comes each second. A cut connection
// reports nothing.
const silenceLimit = 8000;
// A watch with bookmarks sends one every thirty seconds.
const bookmarkLimit = 95000;
// How long a browser that was busy may take to read what it has received.
const slowLimit = 2000;
const longestPause = 10000;
// Readers that join in one moment share one connection.
const joinPause = 20;
// The Hub looks at the clocks in such a pause. A look that is so late follows a sleep of the machine:
// the connection has ended then, and no timer that waits for its silence has gone on.
const lookPause = 2000;
const sleepLimit = 30000;

// slimmers cut events down to what the page shows of many items. With 130,000 Nodes this is most of
// the memory of worker and page, and of the time to copy events between them.
const slimmers = {
  "/v1/nodes:watch": ({ node, ...event }) =>
    node ? { ...event, node: { name: node.name, zone: node.zone, health: node.health, message: node.message, changeTime: node.changeTime, agent: node.agent } } : event,
};

// Watch is what is known of one watch: where it goes on, and its state for readers that join.
class Watch {
  constructor(path) {
    this.path = path;
    this.slim = slimmers[path] ?? ((event) => event);
    this.readers = new Set();
    this.failures = 0;
    this.failure = null;
    this.begin();
  }

  // begin forgets what a watch has reported, because it will report everything again.
  begin() {
    this.token = "";
    this.items = new Map();
    this.latest = null; // the last event of a watch whose events have no names
    this.bookmark = null;
  }

  // url resumes the watch if it can.
  url() {
    if (!this.token) return this.path;
    return `${this.path}${this.path.includes("?") ? "&" : "?"}resume_token=${encodeURIComponent(this.token)}`;
  }

  // take returns what readers get of an event.
  take(whole) {
    this.failures = 0;
    this.failure = null;
    const event = this.slim(whole);
    if (event.resumeToken) this.token = event.resumeToken;
    const item = itemOf(event);
    if (event.bookmark) this.bookmark = { ...event.bookmark, initialEventsEnd: true };
    else if (!item) this.latest = event;
    else if (event.type === "EVENT_TYPE_DELETED") this.items.delete(item.name);
    else this.items.set(item.name, event);
    if (item) delete event.resumeToken;
    return { event };
  }

  // replay returns what a reader gets that joins now.
  replay() {
    const messages = [{ begin: true }, ...[...this.items.values()].map((event) => ({ event: { ...event, type: "EVENT_TYPE_ADDED" } }))];
    if (this.latest) messages.push({ event: this.latest });
    if (this.bookmark) messages.push({ event: { type: "EVENT_TYPE_BOOKMARK", bookmark: this.bookmark } });
    if (this.failure) messages.push(this.failure);
    return messages;
  }

  fail(failure) {
    const wait = this.failures === 0 ? 250 : Math.min(longestPause, 500 * 2 ** this.failures) * (0.8 + 0.4 * Math.random());
    this.failures++;
    if (failure.reason === "RESUME_TOKEN_EXPIRED") this.token = "";
    this.failure = { failure, wait };
    this.tell([this.failure]);
    return wait;
  }

  tell(messages) {
    for (const reader of this.readers) reader(this.path, messages);
  }
}

// itemOf returns the item of an event: the field that has a name.
function itemOf(event) {
  return Object.values(event).find((value) => typeof value?.name === "string");
}

// headersOf returns the headers of a request with a key of `trivet dashboard`; none for no key.
export const headersOf = (key) => (key ? { "Trivet-Dashboard-Key": key } : {});

export class Hub {
  constructor(headers) {
    this.headers = headers;
    this.watches = new Map();
    this.open = () => {};
    this.run();
    let looked = new Moment();
    setInterval(() => {
      if (looked.passed() > sleepLimit) this.open();
      looked = new Moment();
    }, lookPause);
  }

  // join makes a reader follow a watch. A reader is a function of a path and messages: {begin} when
  // the watch reports everything again, {event}, or {failure, wait} with the cause, the reason of
  // the gateway's error and the milliseconds until the next attempt. It gets what is known at once.
  join(path, reader) {
    if (!this.watches.has(path)) this.watches.set(path, new Watch(path));
    const watch = this.watches.get(path);
    watch.readers.add(reader);
    reader(path, watch.replay());
    if (watch.readers.size === 1) this.openSoon();
  }

  leave(path, reader) {
    const watch = this.watches.get(path);
    if (!watch?.readers.delete(reader) || watch.readers.size > 0) return;
    watch.latest = null; // it is old when the next reader joins
    this.openSoon();
  }

  // retry opens the connection at once if a watch has failed.
  retry() {
    if ([...this.watches.values()].some(({ failure }) => failure)) this.open();
  }

  openSoon() {
    clearTimeout(this.joining);
    this.joining = setTimeout(() => this.open(), joinPause);
  }

  // run keeps one connection for the watches that have readers. It opens the connection again when
  // another watch has its first or last reader, and when a watch ended.
  async run() {
    for (;;) {
      const again = new Promise((resolve) => (this.open = resolve));
      const watches = [...this.watches.values()].filter(({ readers }) => readers.size > 0);
      if (watches.length > 0) {
        const connection = new Connection(watches, this.open, this.headers);
        connection.read();
        await again;
        connection.close();
      } else {
        await again;
      }
    }
  }
}

// Connection is one combined stream. It calls reopen when a watch is to be opened again.
class Connection {
  constructor(watches, reopen, headers) {
    this.watches = watches;
    this.reopen = reopen;
    this.headers = headers;
    this.abort = new AbortController();
    this.timers = [];
    this.going = new Set(watches.keys());
    this.fresh = new Set([...watches.keys()].filter((index) => !watches[index].token)); // report everything
    this.silence = new Map(); // a timer for each watch
  }

  close() {
    this.abort.abort(new Error("closed"));
    for (const timer of [...this.timers, ...this.silence.values()]) clearTimeout(timer);
  }

  async read() {
    for (const index of this.going) this.heard(index);
    try {
      const query = this.watches.map((watch) => `watch=${encodeURIComponent(watch.url())}`).join("&");
      const response = await fetch(`/v1/watch?${query}`, { headers: this.headers, signal: this.abort.signal, cache: "no-store" });
      if (!response.ok) throw await errorOf(response);
      await this.readLines(response.body);
      throw new Error("the gateway ended the stream");
    } catch (error) {
      if (this.abort.signal.aborted) return;
      this.failAll({ cause: plain(error), reason: error.reason });
    }
  }

  async readLines(body) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      this.take(lines.filter((line) => line.trim() !== "").map((line) => JSON.parse(line)));
    }
  }

  // take hands the lines of each watch on together.
  take(lines) {
    const told = new Map();
    for (const { watch: index, result, error } of lines) {
      if (!this.going.has(index)) continue;
      if (error) {
        const { message, reason } = failureOf(error);
        this.failed(index, { cause: message, reason });
        continue;
      }
      const watch = this.watches[index];
      if (!told.has(watch)) told.set(watch, []);
      if (this.fresh.delete(index)) {
        watch.begin();
        told.get(watch).push({ begin: true });
      }
      told.get(watch).push(watch.take(result));
    }
    for (const [watch, messages] of told) {
      this.heard(this.watches.indexOf(watch)); // after the lines: a bookmark among them gives it more time
      watch.tell(messages);
    }
  }

  // heard gives a watch time for its next message, and the connection.
  heard(index) {
    clearTimeout(this.silence.get(index));
    clearTimeout(this.silence.get(this));
    const cause = "the gateway sends nothing";
    this.expect(index, this.watches[index].bookmark ? bookmarkLimit : silenceLimit, () => this.failed(index, { cause }));
    this.expect(this, silenceLimit, () => this.failAll({ cause }));
  }

  // expect calls silent if nothing is heard in time. Two things are no silence: a browser that was
  // busy has received more than it has read; and behind the first report of 130,000 Nodes, the lines
  // of other watches wait.
  expect(what, limit, silent) {
    const end = () => (what !== this && this.isLoading() ? this.expect(what, limit, silent) : silent());
    this.silence.set(what, setTimeout(() => this.silence.set(what, setTimeout(end, slowLimit)), limit));
  }

  // isLoading is whether the first report of a watch is coming in.
  isLoading() {
    return [...this.going].some((index) => this.watches[index].items.size > 0 && !this.watches[index].bookmark);
  }

  failAll(failure) {
    clearTimeout(this.silence.get(this));
    for (const index of [...this.going]) this.failed(index, failure);
    this.abort.abort();
  }

  failed(index, failure) {
    clearTimeout(this.silence.get(index));
    this.going.delete(index);
    this.timers.push(setTimeout(this.reopen, this.watches[index].fail(failure)));
  }
}

// errorOf reads an error answer.
export async function errorOf(response) {
  const text = await response.text().catch(() => "");
  try {
    const body = JSON.parse(text);
    return failureOf(body.error ?? body, `HTTP ${response.status}`);
  } catch {
    const isPlain = response.headers.get("Content-Type")?.startsWith("text/plain"); // of a proxy before the gateway
    return new Error((isPlain && text.trim()) || `HTTP ${response.status}`);
  }
}

function failureOf({ message, details }, otherwise) {
  return Object.assign(new Error(message || otherwise), { reason: details?.find(({ domain }) => domain === "trivet.dev")?.reason });
}

// plain replaces what browsers report without a connection, such as "Failed to fetch".
export function plain(error) {
  return error instanceof TypeError ? "the gateway cannot be reached" : error.message;
}
