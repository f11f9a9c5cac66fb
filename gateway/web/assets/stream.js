// Watches and questions of the page.

import { errorOf, Hub, plain } from "./hub.js";
import { headers, key } from "./key.js";

export { plain };

// The page says what it wants every two seconds, because a worker is not told when a window closes.
const wantPause = 2000;
// A worker that leaves so many of these messages unanswered has ended. Time says nothing about that:
// much of it passes while the machine sleeps.
const workerLimit = 5;
// The version of the messages between page and worker: a worker of an earlier build may still run.
const version = "2";

// Feed has the watches of this page: from the worker that all windows share, or from a Hub of its
// own if the browser has no shared workers.
class Feed {
  constructor() {
    this.streams = new Map(); // by path
    this.resting = false;
    this.take = (path, messages) => this.streams.get(path)?.take(messages);
    try {
      this.worker = new SharedWorker("/assets/worker.js", { type: "module", name: `trivet ${version} ${key}` });
      this.worker.port.onmessage = ({ data }) => {
        this.unanswered = 0;
        if (data.path) this.take(data.path, data.messages);
      };
      this.worker.onerror = () => this.useOwnHub();
    } catch {
      this.useOwnHub();
    }
    this.unanswered = 0;
    setInterval(() => {
      if (this.worker && !this.resting && ++this.unanswered > workerLimit) this.useOwnHub();
      else this.want();
    }, wantPause);
  }

  useOwnHub() {
    this.worker?.port.close();
    this.worker = null;
    this.hub ??= new Hub(headers);
    this.want();
  }

  add(stream) {
    this.streams.set(stream.path, stream);
    this.want();
  }

  // rest leaves all watches until resume is called. Then each is reported again.
  rest() {
    this.resting = true;
    this.want();
  }

  resume() {
    this.resting = false;
    this.unanswered = 0;
    this.want(true);
  }

  // want says which watches are wanted now. It changes nothing if they are followed already.
  want(retry) {
    const wanted = this.resting ? [] : [...this.streams.keys()];
    if (this.worker) {
      this.worker.port.postMessage({ wanted, retry });
      return;
    }
    this.followed ??= new Set();
    for (const path of this.streams.keys()) {
      if (wanted.includes(path) === this.followed.has(path)) continue;
      if (this.followed.delete(path)) {
        this.hub.leave(path, this.take);
      } else {
        this.followed.add(path);
        this.hub.join(path, this.take);
      }
    }
    if (retry) this.hub.retry();
  }
}

export const feed = new Feed();

// Stream follows a watch. The callbacks are on.opened() when the watch reports everything again,
// on.message(event), and on.broken({cause, reason}, retryAt) after each failure. reason is the reason
// of the gateway's error, if any; retryAt is a time of performance.now().
export class Stream {
  constructor(path, on) {
    this.path = path;
    this.on = on;
  }

  follow() {
    feed.add(this);
  }

  take(messages) {
    for (const { begin, event, failure, wait } of messages) {
      if (begin) this.on.opened?.();
      else if (event) this.on.message(event);
      else if (failure) this.on.broken(failure, performance.now() + wait);
    }
  }
}

// ask returns one answer, or throws an Error with the reason of the gateway's error. A request with
// a body is a POST.
export async function ask(path, signal, body) {
  const post = body && { method: "POST", headers: { ...headers, "Content-Type": "application/json" }, body: JSON.stringify(body) };
  const response = await fetch(path, { headers, signal, cache: "no-store", ...post });
  if (response.ok) return response.json();
  throw await errorOf(response);
}
