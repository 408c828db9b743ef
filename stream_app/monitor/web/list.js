// The list of experiments.

import { asTable, badge, count, el, setBadge, setText } from "./dom.js";

const HEADINGS = ["Experiment", "State", "Arm to serve", "Phase", "Viable arms", "Users"];

// Builds the page; returns the function that shows an event.
export function listPage(main) {
  const rows = new Map();
  const body = el("tbody");
  const headings = HEADINGS.map((text) => el("th", { scope: "col" }, text));
  const table = el(
    "table", { class: "list", "aria-label": "Experiments" },
    el("thead", {}, el("tr", {}, ...headings)), body,
  );
  asTable(table);
  const more = el("p", { class: "note" });
  const full = el("section", { class: "card", hidden: "" }, table, more);
  const empty = emptyState();
  main.append(el("h1", {}, "Experiments"), full, empty);
  return (event) => {
    full.hidden = event.count === 0;
    empty.hidden = event.count > 0;
    place(rows, body, event.experiments);
    setText(more, left(event));
  };
}

function emptyState() {
  return el(
    "section", { class: "card empty", hidden: "" },
    el("h2", {}, "No experiment yet"),
    el("p", {}, "Describe one in a file, and create it:"),
    el("pre", {}, el("code", {}, "shufflebandit experiment create FILE.toml")),
    el("p", {}, "It appears here by itself."),
  );
}

function left(event) {
  const rest = event.count - event.experiments.length;
  return rest > 0 ? `${count(rest)} more are not listed; each has its page at /experiments/NAME.` : "";
}

function place(rows, body, experiments) {
  const names = new Set(experiments.map((one) => one.name));
  for (const [name, row] of rows) {
    if (!names.has(name)) {
      row.node.remove();
      rows.delete(name);
    }
  }
  experiments.forEach((one, index) => {
    if (!rows.has(one.name)) rows.set(one.name, makeRow(one.name));
    const row = rows.get(one.name);
    if (body.children[index] !== row.node) body.insertBefore(row.node, body.children[index] ?? null);
    row.update(one);
  });
}

function makeRow(name) {
  const state = badge("running");
  const cells = HEADINGS.slice(2).map((label) => el("td", { "data-label": label }));
  const [serve, phase, viable, users] = cells;
  const link = el("a", { href: `/experiments/${encodeURIComponent(name)}` }, name);
  const node = el("tr", {}, el("th", { scope: "row" }, link), el("td", {}, state), ...cells);
  const bar = el("progress", { max: 1, "aria-label": `users of ${name}` });
  const text = el("span");
  users.append(text, bar);
  function update(one) {
    setBadge(state, one.state);
    setText(serve, one.serve ?? "–");
    setText(phase, count(one.phase));
    setText(viable, count(one.viable));
    setText(text, `${count(one.users)} of ${count(one.horizon)}`);
    bar.value = one.users / one.horizon;
  }
  return { node: asTable(node), update };
}
