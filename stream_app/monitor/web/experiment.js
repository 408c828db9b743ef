// The page of one experiment: a skeleton once, then only what changed.

import { armsTable, kind } from "./arms.js";
import { figure, lines } from "./charts.js";
import { badge, count, decimals, el, moment, setBadge, setText, small } from "./dom.js";

const COLOURS = 8;
const MAX_ROWS = 200;

// Builds the page; returns the function that shows an event.
export function experimentPage(main, name) {
  document.title = `${name} · shufflebandit`;
  const parts = [summary(), arms(), evidence(), regret(), phases(), certificate(name)];
  const absent = missing(name);
  const whole = el("div", { class: "parts", hidden: "" }, ...parts.map((part) => part.node));
  main.append(el("h1", {}, name), absent, whole);
  return (event) => {
    const shown = event.experiment;
    absent.hidden = shown !== null;
    whole.hidden = shown === null;
    if (shown !== null) parts.forEach((part) => part.update(shown));
  };
}

function missing(name) {
  return el(
    "section", { class: "card empty", hidden: "" },
    el("h2", {}, "No such experiment yet"),
    el("p", {}, `The service knows no experiment named ${name}. Create it, and it appears here:`),
    el("pre", {}, el("code", {}, "shufflebandit experiment create FILE.toml")),
    el("p", {}, el("a", { href: "/" }, "All experiments")),
  );
}

function section(title, note, ...children) {
  return el("section", { class: "card" }, el("h2", {}, title), note, ...children);
}

function facts(labels) {
  const values = labels.map((label) => el("dd"));
  const node = el("dl", { class: "facts" }, ...labels.map((label, i) => el("div", {}, el("dt", {}, label), values[i])));
  return { node, update: (texts) => texts.forEach((text, i) => setText(values[i], text)) };
}

function summary() {
  const state = badge("running");
  const sentence = el("p", { class: "sentence", "aria-live": "polite" });
  const promise = el("p");
  const next = el("p", { class: "note" });
  const bar = el("progress", { max: 1, "aria-label": "users against the horizon" });
  const users = el("p", { class: "users" });
  const numbers = facts(["Phase", "Viable arms", "Released sums", "Last release", "Estimated regret", "True regret"]);
  const node = el("section", { class: "card summary" }, el("div", { class: "headline" }, state, sentence), promise, users, bar, next, numbers.node);
  function update(shown) {
    setBadge(state, shown.state);
    setText(sentence, shown.words.state);
    setText(promise, `Guarantee: ${shown.words.guarantee}.`);
    setText(next, shown.words.next);
    const share = shown.users / shown.horizon;
    setText(users, `${count(shown.users)} of ${count(shown.horizon)} users in released batches (${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %)`);
    bar.value = share;
    numbers.update([
      count(shown.phase),
      `${count(shown.viable)} of ${count(shown.arms.length)}`,
      count(shown.sums),
      shown.last_release_ms === null ? "–" : moment(shown.last_release_ms),
      count(shown.estimated_regret),
      shown.true_regret === null ? "unknown" : count(shown.true_regret),
    ]);
  }
  return { node, update };
}

function arms() {
  const table = armsTable();
  const note = el("p", { class: "note" }, "The mean reward of each arm by the released sums, with its confidence interval.");
  return { node: section("Arms", note, table.node), update: table.update };
}

function dataTable(label, headings) {
  const body = el("tbody");
  const columns = headings.map((text) => el("th", { scope: "col" }, text));
  const table = el("table", { "aria-label": label }, el("thead", {}, el("tr", {}, ...columns)), body);
  const node = el("details", {}, el("summary", {}, "As a table"), el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, table));
  let rows = [];
  const fill = () => {
    if (node.open) body.replaceChildren(...rows.slice(-MAX_ROWS).map((row) => el("tr", {}, ...row.map((text) => el("td", {}, text)))));
  };
  node.addEventListener("toggle", fill);
  return { node, update: (newest) => { rows = newest; fill(); } };
}

// Arms in colour: the viable ones first, as many as there are colours.
function styles(shown) {
  const order = shown.arms.map((arm, i) => i).sort((a, b) => shown.arms[b].viable - shown.arms[a].viable || a - b);
  const coloured = new Set(order.slice(0, COLOURS));
  return shown.arms.map((arm, i) => `${coloured.has(i) ? `c${i % COLOURS}` : "other"} ${kind(arm, shown)}`);
}

function bounds(tracks) {
  const values = tracks.flatMap((track) => (track.length ? [...track.map((p) => p[1]), track.at(-1)[2], track.at(-1)[3]] : []));
  const low = Math.max(-0.1, Math.min(...values));
  const high = Math.min(1.1, Math.max(...values));
  const room = Math.max(0.01, (high - low) * 0.06);
  return [low - room, high + room];
}

// The two arms with the largest means: their intervals are the ones that matter.
function leaders(shown) {
  const known = shown.arms.filter((arm) => arm.mean !== null);
  return new Set(known.sort((a, b) => b.mean - a.mean).slice(0, 2));
}

function evidence() {
  const chart = figure("Means and confidence intervals over users", 300, lines);
  const table = dataTable("Means and confidence intervals over users", ["Arm", "Users so far", "Mean", "Lower", "Upper"]);
  const note = el("p", { class: "note" }, "Each arm's mean as the users came; for the two best arms with the confidence interval. A line that ends early is an arm that was dropped.");
  const empty = el("p", { class: "nothing" }, "No batch has been released yet.");
  const frame = el("div", { class: "frame tall" }, chart.node, empty);
  function update(shown) {
    const tracks = shown.arms.map((arm) => arm.track);
    const any = tracks.some((track) => track.length);
    empty.hidden = any;
    if (!any) return;
    const style = styles(shown);
    const best = leaders(shown);
    const series = shown.arms.map((arm, i) => ({
      points: arm.track.map(([x, mean]) => [x, mean]),
      band: best.has(arm) ? arm.track.map(([x, , low, high]) => [x, low, high]) : [],
      label: style[i].startsWith("other") ? "" : arm.name,
      style: style[i],
    }));
    const marks = shown.phases.filter((p) => p.epoch === shown.epoch).map((p) => ({ x: p.users, label: String(p.phase) }));
    chart.update(
      { id: "means", series, marks, x: [0, Math.max(shown.users, 1)], y: bounds(tracks), xLabel: "users", yLabel: "mean reward" },
      `Means and confidence intervals over users: ${shown.words.state}. The numbers are in the table below.`,
    );
    table.update(shown.arms.flatMap((arm) => arm.track.map(([x, ...rest]) => [arm.name, count(x), ...rest.map((v) => decimals(v))])));
  }
  return { node: section("Evidence", note, frame, table.node), update };
}

function regret() {
  const chart = figure("Regret over users", 240, lines);
  const table = dataTable("Regret over users", ["Users", "Estimated regret", "True regret"]);
  const note = el("p", { class: "note" });
  const empty = el("p", { class: "nothing" }, "No batch has been released yet.");
  const frame = el("div", { class: "frame" }, chart.node, empty);
  function update(shown) {
    const known = shown.true_regret !== null;
    setText(note, "What the users in released batches would have gained by the best arm: estimated by the released means" + (known ? ", and by the true means, which this simulated experiment states." : "."));
    empty.hidden = shown.regret.length > 0;
    if (!shown.regret.length) return;
    const series = [{ points: curve(shown.regret, 1), label: "estimated", style: "c0" }];
    if (known) series.push({ points: curve(shown.regret, 2), label: "true", style: "c1 dashed" });
    const top = Math.max(1, ...series.flatMap((one) => one.points.map((p) => p[1])));
    chart.update(
      { id: "regret", series, x: [0, shown.regret.at(-1)[0]], y: [0, top * 1.05], xLabel: "users", yLabel: "regret" },
      `Regret over users: estimated ${count(shown.estimated_regret)}${known ? `, true ${count(shown.true_regret)}` : ""}.`,
    );
    table.update(shown.regret.map(([x, estimated, real]) => [count(x), count(estimated), known ? count(real) : "unknown"]));
  }
  return { node: section("Regret", note, frame, table.node), update };
}

function curve(points, column) {
  return [[0, 0], ...points.filter((p) => p[column] !== null).map((p) => [p[0], p[column]])];
}

function phases() {
  const body = el("tbody");
  const headings = ["Phase", "From users", "Dropped at its end"].map((text) => el("th", { scope: "col" }, text));
  const table = el("table", { "aria-label": "Phases", class: "phases" }, el("thead", {}, el("tr", {}, ...headings)), body);
  const frame = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Phases" }, table);
  let last = "";
  function update(shown) {
    const key = JSON.stringify([shown.phases, shown.eliminated]);
    if (key === last) return;
    last = key;
    body.replaceChildren(...shown.phases.slice(-MAX_ROWS).reverse().map((phase) => phaseRow(phase, shown)));
  }
  return { node: section("Phases", null, frame), update };
}

function phaseRow(phase, shown) {
  const dropped = phase.epoch === shown.epoch ? shown.eliminated.filter((one) => one.phase === phase.phase).map((one) => one.arm) : [];
  const name = phase.epoch ? `${phase.phase} (horizon doubled ${phase.epoch} times)` : String(phase.phase);
  return el("tr", {}, el("td", {}, name), el("td", {}, count(phase.users)), el("td", {}, dropped.join(", ") || "–"));
}

function certificate(name) {
  const promise = el("p");
  const computed = el("p");
  const kept = el("p", { class: "reports" });
  const list = el("ul");
  const numbers = facts(["epsilon", "delta", "Certified delta", "Honest fraction", "Noise", "Calibration", "Batch size", "Parameters"]);
  const batch = el("code", { class: "long" });
  const path = `/api/experiments/${encodeURIComponent(name)}`;
  const links = el(
    "p", {},
    el("a", { href: `${path}/sums` }, "Released sums (the raw transcript)"), " · ",
    el("a", { href: path }, "This page as JSON"),
  );
  const check = el("p", { class: "note" }, "Anyone who can read the public topics can check it: ", el("code", {}, `shufflebandit verify ${name}`));
  const node = section("Privacy", promise, computed, kept, el("h3", {}, "What it rests on"), list, numbers.node, el("p", { class: "note" }, "Newest batch: ", batch), links, check);
  function update(shown) {
    setText(promise, shown.words.privacy);
    setText(computed, shown.words.certificate);
    setText(kept, shown.words.reports);
    const rests = shown.words.assumptions;
    if (list.textContent !== rests.join("")) list.replaceChildren(...rests.map((text) => el("li", {}, text)));
    const of = shown.certificate;
    setText(batch, of?.batch ?? "–");
    numbers.update([
      small(shown.epsilon), small(shown.delta), small(shown.certified_delta), `${shown.honest_fraction * 100} %`,
      of?.mechanism ?? "–", of?.calibration ?? "–", of ? count(of.size) : "–",
      of ? Object.entries(of.parameters).map(([key, value]) => `${key} ${value}`).join(", ") : "–",
    ]);
  }
  return { node, update };
}
