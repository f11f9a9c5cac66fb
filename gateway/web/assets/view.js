// Describes and updates the document.
//
// h() describes an element and render() applies the description. It changes only what differs, so
// that focus, selection and open details survive each update. Values become text nodes and
// attribute values; nothing here parses HTML.

import { sentence } from "./format.js";

// h describes an element. Attributes that are false, null or undefined are left out; those in
// `initial` are set only when the element is created.
export function h(tag, attributes, ...children) {
  const { key, initial, ...rest } = attributes ?? {};
  return { tag, key, initial, attributes: rest, children: children.flat(Infinity).filter(isShown) };
}

function isShown(child) {
  return child !== null && child !== undefined && child !== false;
}

// render makes the children of parent match the descriptions.
export function render(parent, ...descriptions) {
  const wanted = descriptions.flat(Infinity).filter(isShown);
  const keyed = new Map([...parent.childNodes].filter((node) => node.trivetKey !== undefined).map((node) => [node.trivetKey, node]));
  let place = parent.firstChild;
  for (const description of wanted) {
    const node = reuse(description, place, keyed) ?? create(description);
    if (node === place) {
      place = place.nextSibling;
    } else {
      parent.insertBefore(node, place);
    }
    update(node, description);
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

function reuse(description, place, keyed) {
  if (description.key !== undefined) {
    const node = keyed.get(description.key);
    return node && fits(node, description) ? node : undefined;
  }
  return place && place.trivetKey === undefined && fits(place, description) ? place : undefined;
}

function fits(node, description) {
  if (description.tag === undefined) return node.nodeType === Node.TEXT_NODE;
  return node.nodeType === Node.ELEMENT_NODE && node.localName === description.tag;
}

function create(description) {
  if (description.tag === undefined) return document.createTextNode("");
  const element = document.createElement(description.tag);
  element.trivetKey = description.key;
  for (const [name, value] of Object.entries(description.initial ?? {})) {
    if (isSet(value)) element.setAttribute(name, value === true ? "" : value);
  }
  return element;
}

function update(node, description) {
  if (description.tag === undefined) {
    const text = String(description);
    if (node.nodeValue !== text) node.nodeValue = text;
    return;
  }
  updateAttributes(node, description);
  render(node, description.children);
}

function updateAttributes(element, { attributes, initial }) {
  for (const { name } of [...element.attributes]) {
    if (!isSet(attributes[name]) && !(initial && name in initial) && name !== "open") element.removeAttribute(name);
  }
  for (const [name, value] of Object.entries(attributes)) {
    if (!isSet(value)) continue;
    const text = value === true ? "" : String(value);
    if (element.getAttribute(name) !== text) element.setAttribute(name, text);
  }
}

function isSet(value) {
  return value !== undefined && value !== null && value !== false;
}

// fact is a line of a dl; nothing without a value.
export function fact(name, value, health) {
  return value ? h("div", { key: name, "data-health": health }, h("dt", {}, name), h("dd", {}, value)) : null;
}

// cause is the cause of a failure. The command that shows a missing right is code.
export function cause(text) {
  const [why, command] = text.split("; see: ");
  return command ? [`${sentence(why)} See `, h("code", {}, command)] : [sentence(text)];
}

// isRefusal reports whether the reason of an error is that the caller is unknown or lacks a right.
export function isRefusal(reason) {
  return reason === "NOT_AUTHORIZED" || reason === "NOT_AUTHENTICATED";
}

// failed is a notice that there is old data or none, and why.
export function failed(hasData, { cause: text, reason }) {
  const lead = isRefusal(reason) ? "No access: " : hasData ? "Old data: " : "No data: ";
  return notice("failure", "bad", lead, cause(text));
}

// notice is a highlighted paragraph.
export function notice(key, health, ...content) {
  return h("p", { key, class: "notice", role: "status", "data-health": health }, content);
}

// muted is a paragraph of secondary text.
export function muted(key, ...content) {
  return h("p", { key, class: "muted" }, content);
}
