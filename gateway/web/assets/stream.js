// Following something that the gateway streams.
//
// A watch answers with one JSON object per line. It is opened again whenever it ends, first at once, then after pauses that
// grow to ten seconds; one that stays silent counts as broken, because a cut cable tells nobody.

const silenceLimit = 8000;
const longestPause = 10000;

export class Stream {
  // on.opened() comes when a stream begins, on.message(result) with every line, and on.broken({cause, reason}, retryAt) after
  // every failure; reason is the stable code of the gateway's error, if it gave one, and retryAt is by performance.now().
  constructor(path, on) {
    this.path = path;
    this.on = on;
    this.failures = 0;
    this.paused = false;
    this.wake = () => {};
    this.stop = () => {};
  }

  // follow never returns.
  async follow() {
    for (;;) {
      const failure = await this.readUntilBroken();
      const pause = this.failures === 0 ? 250 : Math.min(longestPause, 500 * 2 ** this.failures) * (0.8 + 0.4 * Math.random());
      this.failures++;
      if (!this.paused) this.on.broken(failure, performance.now() + pause);
      if (!this.paused) await this.rest(pause);
      while (this.paused) await this.rest(null); // it may also have been paused during the pause
    }
  }

  // retryNow cuts a pause short and ends a rest.
  retryNow() {
    this.paused = false;
    this.wake();
  }

  // pause ends the stream until retryNow is called.
  pause() {
    this.paused = true;
    this.stop();
  }

  // rest waits; for ever when it is not told how long.
  rest(pause) {
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
    this.stop = () => abort.abort(new Error("nobody looks at it"));
    const silence = new Deadline(silenceLimit, () => abort.abort(new Error("the gateway has been silent for too long")));
    try {
      const response = await fetch(this.path, { signal: abort.signal, cache: "no-store" });
      if (!response.ok) return await refusal(response);
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

// ask asks once and returns the answer, or throws an Error with the reason of the gateway's.
export async function ask(path, signal) {
  const response = await fetch(path, { signal, cache: "no-store" });
  if (response.ok) return response.json();
  const { cause, reason } = await refusal(response);
  throw Object.assign(new Error(cause), { reason });
}

// refusal reads why an answer did not begin: an error of a stream's own comes as its first line, any other bare.
async function refusal(response) {
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

// plain replaces what browsers say when nobody listens: "Failed to fetch" and its kin.
export function plain(error) {
  return error instanceof TypeError ? "the gateway cannot be reached" : error.message;
}
