// The table of arms: numbers, and each interval drawn on a common range.

import { interval, intervalAxis } from "./charts.js";
import { asTable, count, decimals, el, setText } from "./dom.js";

const HEADINGS = ["Arm", "Mean and confidence interval", "Mean", "Interval", "Users"];

export function armsTable() {
  const body = el("tbody");
  const axis = el("td", { class: "drawn" });
  const headings = HEADINGS.map((text) => el("th", { scope: "col" }, text));
  const node = el(
    "table", { class: "arms", "aria-label": "Arms with their confidence intervals" },
    el("thead", {}, el("tr", {}, ...headings)), body,
    el("tfoot", { "aria-hidden": "true" }, el("tr", {}, el("td"), axis, el("td"), el("td"), el("td"))),
  );
  asTable(node);
  const rows = [];
  let shown = null;
  function draw() {
    if (shown === null) return;
    const range = rangeOf(shown.arms);
    const width = Math.max(80, axis.clientWidth - 8);
    shown.arms.forEach((arm, i) => {
      rows[i].drawn.replaceChildren(interval(arm, range, width, rows[i].node.className));
    });
    axis.replaceChildren(intervalAxis(range, width));
  }
  new ResizeObserver(draw).observe(node);
  function update(snapshot) {
    shown = snapshot;
    while (rows.length < shown.arms.length) rows.push(addRow(body));
    while (rows.length > shown.arms.length) rows.pop().node.remove();
    shown.arms.forEach((arm, i) => rows[i].update(arm, shown));
    draw();
  }
  return { node, update };
}

function rangeOf(arms) {
  const low = Math.min(...arms.map((arm) => arm.lower));
  const high = Math.max(...arms.map((arm) => arm.upper));
  const room = Math.max(0.005, (high - low) * 0.04);
  return [Math.max(0, low - room), Math.min(1, high + room)];
}

function addRow(body) {
  const name = el("span", { class: "name" });
  const standing = el("span", { class: "standing" });
  const drawn = el("td", { class: "drawn" });
  const [mean, bounds, users] = HEADINGS.slice(2).map((label) => el("td", { "data-label": label }));
  const node = el("tr", {}, el("th", { scope: "row" }, name, " ", standing), drawn, mean, bounds, users);
  body.append(asTable(node));
  function update(arm, shown) {
    node.className = kind(arm, shown);
    setText(name, arm.name);
    setText(standing, says(arm, shown));
    setText(mean, decimals(arm.mean));
    setText(bounds, `${decimals(arm.lower)} to ${decimals(arm.upper)}`);
    setText(users, count(arm.users));
  }
  return { node, drawn, update };
}

export function kind(arm, shown) {
  if (arm.name === shown.serve) return "winner";
  return arm.viable ? "viable" : "out";
}

function says(arm, shown) {
  if (arm.name === shown.serve) return shown.state === "decided" ? "winner" : "leader";
  return arm.viable ? "viable" : "dropped";
}
