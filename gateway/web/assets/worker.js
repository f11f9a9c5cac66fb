// The shared worker: one Hub for all windows of a browser with one key. Its name ends with the key, if
// there is one.

import { headersOf, Hub } from "./hub.js";

// A window says what it wants every two seconds. One that is silent for so long is closed or frozen.
const silenceLimit = 15000;

// The page takes so many events in one task, so that it stays responsive while it learns all items.
const largestPost = 2000;

const hub = new Hub(headersOf(self.name.split(" ")[2]));

addEventListener("connect", ({ ports: [port] }) => {
  const joined = new Set();
  let silence = 0;
  const reader = (path, messages) => {
    for (let first = 0; first < messages.length; first += largestPost) port.postMessage({ path, messages: messages.slice(first, first + largestPost) });
  };
  const follow = (wanted) => {
    for (const path of joined) {
      if (wanted.includes(path)) continue;
      joined.delete(path);
      hub.leave(path, reader);
    }
    for (const path of wanted) {
      if (joined.has(path)) continue;
      joined.add(path);
      hub.join(path, reader);
    }
  };
  port.onmessage = ({ data: { wanted, retry } }) => {
    clearTimeout(silence);
    silence = setTimeout(() => follow([]), silenceLimit);
    follow(wanted);
    if (retry) hub.retry();
    port.postMessage({ alive: true });
  };
});
