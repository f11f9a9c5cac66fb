// What services say, as people say it.

// sentence begins with a capital letter and ends with a full stop.
export function sentence(text) {
  if (!text) return "";
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}

// spoken turns LAST_BEAT into "Last beat".
export function spoken(code) {
  const words = code.toLowerCase().replaceAll("_", " ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}

// nameOf says which object is meant: "Service shop/web".
export function nameOf({ kind, namespace, name }) {
  return `${kind} ${namespace ? `${namespace}/` : ""}${name}`;
}
