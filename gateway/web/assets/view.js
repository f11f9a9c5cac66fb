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
  const keyed = nodesByKey(parent);
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

// nodesByKey has the nodes of each key. A node is used once, so that descriptions with the same key
// do not replace each other.
function nodesByKey(parent) {
  const keyed = new Map();
  for (const node of parent.childNodes) {
    if (node.trivetKey === undefined) continue;
    if (keyed.has(node.trivetKey)) keyed.get(node.trivetKey).push(node);
    else keyed.set(node.trivetKey, [node]);
  }
  return keyed;
}

function reuse(description, place, keyed) {
  if (description.key !== undefined) {
    const node = keyed.get(description.key)?.shift();
    return node && fits(node, description) ? node : undefined;
  }
  return place && place.trivetKey === undefined && fits(place, description) ? place : undefined;
}

function fits(node, description) {
  if (description.tag === undefined) return node.nodeType === Node.TEXT_NODE;
  return node.nodeType === Node.ELEMENT_NODE && node.localName === description.tag;
}

const svg = "http://www.w3.org/2000/svg";
const svgTags = new Set(["svg", "path", "line", "circle", "rect"]);

function create(description) {
  if (description.tag === undefined) return document.createTextNode("");
  const element = svgTags.has(description.tag) ? document.createElementNS(svg, description.tag) : document.createElement(description.tag);
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

// notice is a highlighted paragraph. It is no live region: the verdict and the banner speak for the
// page.
export function notice(key, health, ...content) {
  return h("p", { key, class: "notice", "data-health": health }, content);
}

// table is a table with a caption for screen readers and column titles. A column is a title, or a
// title and a class. Rows are descriptions of <tr>.
export function table(caption, columns, rows) {
  return h("table", { key: "table", class: "table" },
    h("caption", { class: "hidden-text" }, caption),
    h("thead", {}, h("tr", {}, columns.map((column) => {
      const [title, name] = [column].flat();
      return h("th", { key: title, scope: "col", class: name }, title);
    }))),
    h("tbody", {}, rows));
}

// row is a line of a table. Its first cell is the header of the row. A cell is its content, or
// content and the class of its column.
export function row(key, attributes, cells) {
  return h("tr", { key, ...attributes }, cells.map((cell, place) => {
    const { content, name } = cell?.content === undefined ? { content: cell } : cell;
    return place === 0 ? h("th", { scope: "row", class: name }, content) : h("td", { class: name }, content);
  }));
}

// cell is the content of a cell with the class of its column.
export function cell(name, ...content) {
  return { name, content };
}

// more is the button that shows more lines, and how many there are.
export function more(number, noun) {
  return number > 0 && h("p", { key: "more", class: "more muted" }, `And ${number.toLocaleString()} more. `,
    h("button", { type: "button", class: "button", "data-do": "more" }, `Show more ${noun}`));
}

// muted is a paragraph of secondary text.
export function muted(key, ...content) {
  return h("p", { key, class: "muted" }, content);
}
