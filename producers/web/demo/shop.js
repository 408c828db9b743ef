// The demo's page: one visitor at a time, each with a memory of their own in this browser.
import { connect } from "/shufflebandit.js";

const EXPERIMENT = "shop";
// What this page was written for; batches of another window are refused.
const WINDOW_S = 5;
const at = (id) => document.getElementById(id);
let visitor = Number(localStorage.getItem("visitor") ?? 0);
let bandit = null;
let arm = null;

function memoryOf(number) {
  const name = (key) => `visitor ${number} ${key}`;
  return {
    getItem: (key) => localStorage.getItem(name(key)),
    setItem: (key, value) => localStorage.setItem(name(key), value),
    removeItem: (key) => localStorage.removeItem(name(key)),
  };
}

function element(tag, text, parent) {
  const made = document.createElement(tag);
  made.textContent = text;
  parent?.append(made);
  return made;
}

/* Every request that this page makes for the experiment, as it leaves. */
async function shownFetch(url, options) {
  if (options?.method === "POST") {
    const entry = document.createElement("div");
    element("p", `${new Date().toLocaleTimeString()}, visitor ${visitor}: ${options.body.length} bytes, no cookie, no referrer`, entry);
    element("pre", options.body, entry);
    at("log").prepend(entry);
  }
  return fetch(url, options);
}

async function visit() {
  at("message").textContent = "";
  const options = { windowS: WINDOW_S, storage: memoryOf(visitor), fetch: shownFetch, onRefused: (reason) => { at("message").textContent = `Refused: ${reason}`; } };
  try {
    bandit = await connect(location.origin, EXPERIMENT, options);
    arm = await bandit.choose();
  } catch (error) {
    at("message").textContent = `Nothing is reported. ${error.message}`;
    arm = null;
  }
  at("banner").dataset.arm = arm ?? "";
  at("banner").textContent = arm ? `The ${arm} collection` : "Welcome";
}

function show() {
  if (!bandit) return;
  const { optedOut, epsilon, delta, reports } = bandit.ledger();
  const entry = reports[0];
  at("out").textContent = optedOut ? "Take part again" : "Opt out";
  const left = entry?.dueMs ? Math.max(0, Math.ceil((entry.dueMs - Date.now()) / 1000)) : 0;
  at("state").textContent = optedOut ? "You have opted out: nothing leaves."
    : !entry ? "Nothing to report."
      : entry.state === "sent" ? `Your report has left: ${entry.outcome === "accepted" ? "it counts" : entry.outcome}.`
        : entry.state !== "waiting" ? "Your report was dropped."
          : !entry.decided ? `Not clicked yet. Your report leaves in ${left} s.` : `Clicked. Your report leaves in ${left} s, as it would without the click.`;
  at("cost").textContent = entry
    ? `Cost so far: epsilon ${epsilon}, delta ${delta}. The report says ${entry.ones}: click and noise in one number.`
    : "Nothing has left, nothing is spent.";
}

function bar(one) {
  const made = document.createElement("div");
  made.className = "bar";
  const range = document.createElement("i"), mean = document.createElement("b");
  range.style.left = `${100 * one.lower}%`;
  range.style.right = `${100 * (1 - one.upper)}%`;
  mean.style.left = `${100 * Math.min(1, Math.max(0, one.mean ?? 0))}%`;
  made.append(range);
  if (one.mean !== null) made.append(mean);
  return made;
}

async function follow() {
  const view = await (await fetch("/demo/view.json")).json().catch(() => null);
  if (!view?.arms) return;
  at("words").textContent = view.state === "running"
    ? `Phase ${view.phase}: ${view.viable} of ${view.arms.length} banners left, ${view.users.toLocaleString()} visitors in released batches.`
    : `Ended (${view.state}): the shop serves ${view.serve}, after ${view.users.toLocaleString()} visitors.`;
  at("arms").replaceChildren(...view.arms.map((one) => {
    const row = document.createElement("tr");
    row.className = one.viable ? "" : "out";
    element("td", one.name, row);
    element("td", one.users.toLocaleString(), row);
    element("td", "", row).append(bar(one));
    element("td", one.mean === null ? "" : `${(100 * one.mean).toFixed(1)} %`, row);
    return row;
  }));
}

at("buy").onclick = async () => { await bandit?.report(1); show(); };
at("next").onclick = async () => {
  visitor += 1;
  localStorage.setItem("visitor", visitor);
  await visit();
  show();
};
at("out").onclick = async () => { await bandit?.optOut(!bandit.ledger().optedOut); show(); };
await visit();
show();
follow();
setInterval(show, 250);
setInterval(() => follow().catch(() => {}), 1000);
document.documentElement.dataset.ready = "true";
