// Requests to the gateway: one answer, or a watch.

// A watch that is silent for so long is broken; a cut connection reports nothing.
const silenceLimit = 8000;
const longestPause = 10000;

// Stream follows a watch, which answers with one JSON object per line. It opens the watch again
// whenever it ends: at once, then after pauses that grow to ten seconds.
export class Stream {
  // path is a function, because a watch that resumes has another path. The callbacks are on.opened() when a stream starts, on.message(result) for each line, and
  // on.broken({cause, reason}, retryAt) after each failure. reason is the reason of the gateway's
  // error, if any; retryAt is a time of performance.now().
  constructor(path, on) {
    this.path = path;
    this.on = on;
    this.failures = 0;
    this.paused = false;
    this.wake = () => {};
    this.stop = () => {};
  }

  // follow does not return.
  async follow() {
    for (;;) {
      const failure = await this.readUntilBroken();
      const pause = this.failures === 0 ? 250 : Math.min(longestPause, 500 * 2 ** this.failures) * (0.8 + 0.4 * Math.random());
      this.failures++;
      if (!this.paused) this.on.broken(failure, performance.now() + pause);
      if (!this.paused) await this.wait(pause);
      while (this.paused) await this.wait(null); // it may also have been paused while it waited
    }
  }

  // retryNow opens the watch at once, also if it is paused.
  retryNow() {
    this.paused = false;
    this.wake();
  }

  // pause closes the watch until retryNow is called.
  pause() {
    this.paused = true;
    this.stop();
  }

  // wait ends after a pause, or when wake is called; null is for ever.
  wait(pause) {
    return new Promise((resolve) => {
      const timer = pause === null ? 0 : setTimeout(resolve, pause);
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  async readUntilBroken() {
    const abort = new AbortController();
    this.stop = () => abort.abort(new Error("the page is hidden"));
    const silence = new Deadline(silenceLimit, () => abort.abort(new Error("the gateway sends nothing")));
    try {
      const response = await fetch(this.path(), { signal: abort.signal, cache: "no-store" });
      if (!response.ok) return await errorOf(response);
      this.on.opened?.();
      await this.readLines(response.body, silence);
      return { cause: "the gateway ended the stream" };
    } catch (error) {
      return abort.signal.aborted ? { cause: abort.signal.reason.message } : { cause: plain(error), reason: error.reason };
    } finally {
      silence.cancel();
      abort.abort();
    }
  }

  async readLines(body, silence) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      silence.extend();
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) this.take(line);
    }
  }

  take(line) {
    if (line.trim() === "") return;
    const message = JSON.parse(line);
    if (message.error) throw failureOf(message.error);
    this.failures = 0;
    this.on.message(message.result);
  }
}

// Deadline calls expired once, unless it is extended in time.
class Deadline {
  constructor(limit, expired) {
    this.limit = limit;
    this.expired = expired;
    this.extend();
  }

  extend() {
    clearTimeout(this.timer);
    this.timer = setTimeout(this.expired, this.limit);
  }

  cancel() {
    clearTimeout(this.timer);
  }
}

// ask returns one answer, or throws an Error with the reason of the gateway's error. A request with
// a body is a POST.
export async function ask(path, signal, body) {
  const post = body && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  const response = await fetch(path, { signal, cache: "no-store", ...post });
  if (response.ok) return response.json();
  const { cause, reason } = await errorOf(response);
  throw Object.assign(new Error(cause), { reason });
}

// errorOf reads an error answer. A watch wraps its own errors as its first line.
async function errorOf(response) {
  try {
    const body = await response.json();
    const failure = failureOf(body.error ?? body);
    return { cause: failure.message || `HTTP ${response.status}`, reason: failure.reason };
  } catch {
    return { cause: `HTTP ${response.status}` };
  }
}

function failureOf({ message, details }) {
  return Object.assign(new Error(message), { reason: details?.find(({ domain }) => domain === "trivet.dev")?.reason });
}

// plain replaces what browsers report without a connection, such as "Failed to fetch".
export function plain(error) {
  return error instanceof TypeError ? "the gateway cannot be reached" : error.message;
}
