// Following the cluster's status.
//
// GET /v1/status:watch answers with one JSON object per line. The stream is opened again whenever it ends, first at once,
// then after pauses that grow to ten seconds; a stream that stays silent counts as broken, because a cut cable tells nobody.

const path = "/v1/status:watch?interval=1s";
const silenceLimit = 8000;
const longestPause = 10000;

export class Stream {
  // on.status(response) gets every status; on.broken(cause, retryAt) every failure, retryAt by performance.now().
  constructor(on) {
    this.on = on;
    this.failures = 0;
    this.wake = () => {};
  }

  // follow never returns.
  async follow() {
    for (;;) {
      const cause = await this.readUntilBroken();
      const pause = this.failures === 0 ? 250 : Math.min(longestPause, 500 * 2 ** this.failures) * (0.8 + 0.4 * Math.random());
      this.failures++;
      this.on.broken(cause, performance.now() + pause);
      await this.rest(pause);
    }
  }

  // retryNow cuts a pause short.
  retryNow() {
    this.wake();
  }

  rest(pause) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, pause);
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  async readUntilBroken() {
    const abort = new AbortController();
    const silence = new Deadline(silenceLimit, () => abort.abort(new Error("the gateway has been silent for too long")));
    try {
      const response = await fetch(path, { signal: abort.signal, cache: "no-store" });
      if (!response.ok) return await refusal(response);
      await this.readLines(response.body, silence);
      return "the gateway ended the stream";
    } catch (error) {
      return abort.signal.aborted ? abort.signal.reason.message : plain(error);
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
    if (message.error) throw new Error(message.error.message);
    this.failures = 0;
    this.on.status(message.result);
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

// refusal reads why a stream did not begin: an error of the stream's own comes as its first line, any other bare.
async function refusal(response) {
  try {
    const body = await response.json();
    return (body.error ?? body).message || `HTTP ${response.status}`;
  } catch {
    return `HTTP ${response.status}`;
  }
}

// plain replaces what browsers say when nobody listens: "Failed to fetch" and its kin.
function plain(error) {
  return error instanceof TypeError ? "the gateway cannot be reached" : error.message;
}
