// The key of `trivet dashboard`, if it serves this page.
//
// It comes in the fragment of the URL, which a browser sends to no server, and stays in the storage
// of this window for this host and port. A cookie would go to each port of the host.

import { headersOf } from "./hub.js";

const entry = "trivet-dashboard-key";

function read() {
  const given = /^#key=(\w+)$/.exec(location.hash)?.[1];
  if (given) history.replaceState(null, "", location.pathname + location.search);
  try {
    if (given) sessionStorage.setItem(entry, given);
    return given ?? sessionStorage.getItem(entry) ?? "";
  } catch {
    return given ?? ""; // without storage, a reload needs the URL again
  }
}

export const key = read();
export const headers = headersOf(key);

// A browser adds no header when it follows a link to an answer, so the page asks instead.
if (key) {
  addEventListener("click", async (event) => {
    const link = event.target.closest?.('a[href^="/v1/"]');
    if (!link) return;
    event.preventDefault();
    const response = await fetch(link.href, { headers, cache: "no-store" });
    location.assign(URL.createObjectURL(await response.blob()));
  });
}
