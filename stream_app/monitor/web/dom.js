// Elements from plain values. Text is always set as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

// Only what differs is written, so that a screen reader and a selection are left alone.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 2 });

export const count = (value) => (value === null ? "–" : whole.format(value));
export const compact = (value) => short.format(value);
export const decimals = (value, digits = 3) => (value === null ? "–" : value.toFixed(digits));
export const small = (value) => (value === null ? "–" : String(Number(value.toPrecision(3))));

export function clock(time) {
  return new Date(time).toTimeString().slice(0, 8);
}

// The time, and the day unless it is today.
export function moment(time) {
  const day = new Date(time).toDateString();
  return day === new Date().toDateString() ? clock(time) : `${day.slice(4)}, ${clock(time)}`;
}

const ROLES = { TABLE: "table", THEAD: "rowgroup", TBODY: "rowgroup", TR: "row", TD: "cell" };

// A table that is laid out as blocks on a phone stays a table for a screen reader.
export function asTable(node) {
  for (const part of [node, ...node.querySelectorAll("thead, tbody, tr, td, th")]) {
    const header = part.scope === "row" ? "rowheader" : "columnheader";
    part.setAttribute("role", part.tagName === "TH" ? header : ROLES[part.tagName]);
  }
  return node;
}

export function badge(state) {
  return el("span", { class: "badge", "data-state": state }, state);
}

export function setBadge(node, state) {
  setText(node, state);
  node.dataset.state = state;
}
