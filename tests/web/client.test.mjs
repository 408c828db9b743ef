// The browser client's behaviour, with storage, network and clock played by the test.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { connect, batchId, Refused } from "../../producers/web/shufflebandit.js";

const vectors = JSON.parse(readFileSync(new URL("../../producers/web/vectors.json", import.meta.url)));
const EXPERIMENT = "vectors";
// Discrete Laplace at epsilon 0.5, binomial at 0.5; the attribution window is a minute.
const TERMS = [vectors.terms[2], vectors.terms[3]].map(({ terms }) => ({ ...terms, attribution_ms: 60_000 }));

// After the window: a second, and up to five more.
const LATEST_MS = 66_000;

class Storage {
  values = new Map();
  getItem(key) { return this.values.get(key) ?? null; }
  setItem(key, value) { this.values.set(key, value); }
  removeItem(key) { this.values.delete(key); }
}

async function offer(terms = TERMS, changes = {}) {
  const open = await Promise.all(terms.map(async (one) => ({ batch: await batchId(one), terms: one })));
  return { version: 1, experiment: EXPERIMENT, state: "running", serve: null, open, ...changes };
}

async function world(shown) {
  shown ??= await offer();
  const it = { bodies: [], held: [], away: false, status: 202, nowMs: 1_000_000, storage: new Storage(), reasons: [], shown };
  it.fetch = async (url, options) => {
    if (it.away) throw new TypeError("Failed to fetch");
    if (url.endsWith("/v1/held")) {
      it.held.push(JSON.parse(options.body));
      return new Response(JSON.stringify({ outcomes: ["accepted"] }), { status: it.status });
    }
    if (!url.endsWith("/v1/reports")) return new Response(JSON.stringify(it.shown));
    it.bodies.push(options.body);
    return new Response(JSON.stringify({ outcomes: ["accepted"] }), { status: it.status, headers: { "Retry-After": "1" } });
  };
  it.visit = (options = {}) => connect("http://gateway", EXPERIMENT, {
    windowS: 60, fetch: it.fetch, now: () => it.nowMs, storage: it.storage, onRefused: (reason) => it.reasons.push(reason), ...options,
  });
  return it;
}

const said = (body) => JSON.parse(body).reports[0];

test("a report leaves when the window ends, whatever happened, with one size", async () => {
  const sizes = new Set();
  for (const reward of [null, 0, 1]) {
    const it = await world(), bandit = await it.visit();
    await bandit.choose();
    if (reward !== null) assert.equal(await bandit.report(reward), true);
    it.nowMs += 60_999;
    await bandit.flush();
    assert.equal(it.bodies.length, 0);
    it.nowMs += LATEST_MS - 60_999;
    await bandit.flush();
    assert.equal(it.bodies.length, 1);
    sizes.add(it.bodies[0].length);
    await bandit.flush();
    assert.equal(it.bodies.length, 1);
    assert.equal(bandit.ledger().reports[0].outcome, "accepted");
  }
  assert.equal(sizes.size, 1);
});

test("one report per profile and experiment, and the same arm while it waits", async () => {
  const it = await world(), bandit = await it.visit();
  const arm = await bandit.choose();
  for (let i = 0; i < 20; i++) assert.equal(await (await it.visit()).choose(), arm);
  assert.equal(bandit.ledger().reports.length, 1);
  it.nowMs += LATEST_MS;
  await bandit.flush();
  await (await it.visit()).choose();
  assert.equal(await bandit.report(1), false);
  await bandit.flush();
  assert.equal(it.bodies.length, 1);
});

test("a second or late reward does not count", async () => {
  const it = await world(), bandit = await it.visit();
  await bandit.choose();
  assert.equal(await bandit.report(1), true);
  const { ones } = bandit.ledger().reports[0];
  assert.equal(await bandit.report(0), false);
  assert.equal(bandit.ledger().reports[0].ones, ones);
  const other = await world(), late = await other.visit();
  await late.choose();
  other.nowMs += 60_000;
  assert.equal(await late.report(1), false);
  await assert.rejects(late.report(2), RangeError);
});

test("a closed tab: sent at the next visit, noise drawn once, no reward kept", async () => {
  const it = await world(), bandit = await it.visit();
  await bandit.choose();
  await bandit.report(1);
  const { id, ones } = bandit.ledger().reports[0];
  const kept = it.storage.getItem("shufflebandit");
  assert.doesNotMatch(kept, /reward/);
  it.nowMs += 3_600_000;
  it.away = true;
  await it.visit();
  it.away = false;
  await it.visit();
  assert.deepEqual([said(it.bodies[0]).id, said(it.bodies[0]).ones], [id, ones]);
});

test("offline and back: the same bytes until they are acknowledged", async () => {
  const it = await world(), bandit = await it.visit();
  await bandit.choose();
  it.nowMs += LATEST_MS;
  it.away = true;
  await bandit.flush();
  it.away = false;
  it.status = 503;
  await bandit.flush();
  await bandit.flush();
  it.status = 202;
  await bandit.flush();
  await bandit.flush();
  assert.equal(it.bodies.length, 3);
  assert.equal(new Set(it.bodies).size, 1);
});

test("tampered terms are refused, with the reason", async () => {
  const weaker = structuredClone(TERMS[0]);
  weaker.parameters.clip -= 1;
  const it = await world(await offer([weaker])), bandit = await it.visit();
  await assert.rejects(bandit.choose(), (error) => error instanceof Refused && /noise gives delta/.test(error.message));
  assert.match(it.reasons[0], /more than the stated/);
  assert.equal(bandit.ledger().reports.length, 0);

  const forged = await offer();
  forged.open[0].terms = weaker;
  const other = await world(forged);
  const honest = await other.visit();
  assert.equal(await honest.choose(), TERMS[1].arm); // the other batch holds
  assert.match(honest.refused[0], /hash to/);
});

test("own limits: what an experiment, and what a person, may cost", async () => {
  const it = await world();
  const strict = await it.visit({ limits: { maxEpsilon: "0.4" } });
  await assert.rejects(strict.choose(), /above this client's limit/);
  const spent = await it.visit({ limits: { maxUserEpsilon: "0.4" } });
  assert.ok(TERMS.map((terms) => terms.arm).includes(await spent.choose()));
  assert.equal(spent.ledger().reports.length, 0);
});

test("a sequence number with other terms is refused", async () => {
  const it = await world(), bandit = await it.visit();
  it.shown = await offer([{ ...TERMS[0], arm: "other" }]);
  await bandit.refresh();
  assert.match(bandit.refused[0], /not a new one/);
});

test("opting out: an arm is shown, nothing is reported, what waits is dropped", async () => {
  const it = await world(), bandit = await it.visit();
  await bandit.choose();
  await bandit.report(1);
  await bandit.optOut();
  it.nowMs += LATEST_MS;
  await bandit.flush();
  assert.ok(await bandit.choose());
  assert.equal(it.bodies.length, 0);
  const { optedOut, reports } = bandit.ledger();
  assert.deepEqual([optedOut, reports[0].state, reports[0].ones], [true, "dropped", null]);
  await bandit.optOut(false);
  await bandit.choose();
  assert.equal(bandit.ledger().reports.length, 1);
});

test("the ledger adds up what was spent", async () => {
  const it = await world(), bandit = await it.visit();
  await bandit.choose();
  assert.deepEqual([bandit.ledger().epsilon, bandit.ledger().delta], ["0.5", "0.000001"]);
});

test("an experiment that has ended shows its winner; one that is missing says so", async () => {
  const it = await world(await offer([], { state: "decided", serve: "summer" }));
  assert.equal(await (await it.visit()).choose(), "summer");
  const gone = await world();
  gone.fetch = async () => new Response("{}", { status: 404 });
  await assert.rejects((await connect("http://g", EXPERIMENT, { ...gone, windowS: 60, now: () => 0 })).choose(), /404/);
});

test("without storage nothing is reported", async () => {
  const it = await world();
  const broken = { getItem() { throw new Error("denied"); }, setItem() { throw new Error("denied"); } };
  const bandit = await it.visit({ storage: broken });
  assert.ok(await bandit.choose());
  assert.equal(await bandit.report(1), false);
  assert.equal(bandit.ledger().remembers, false);
});

test("batches are chosen by their sizes", async () => {
  const sizes = { [TERMS[0].arm]: 0, [TERMS[1].arm]: 0 };
  const it = await world();
  for (let i = 0; i < 400; i++) {
    it.storage = new Storage();
    sizes[await (await it.visit()).choose()] += 1;
  }
  // Equal sizes: 200 expected, standard deviation 10; false-failure probability 1e-6.
  assert.ok(Object.values(sizes).every((count) => Math.abs(count - 200) < 50));
});

test("a window of 0: the report leaves with the reward", async () => {
  const it = await world(await offer([{ ...TERMS[0], attribution_ms: 0 }])), bandit = await it.visit({ windowS: undefined, immediate: true });
  await bandit.choose();
  await bandit.flush();
  assert.equal(it.bodies.length, 0);
  await bandit.report(0);
  await bandit.flush();
  assert.equal(it.bodies.length, 1);
});

test("the page states its window; batches that differ are refused", async () => {
  for (const wrong of [{ windowS: undefined }, { immediate: true }, { windowS: 0 }, { windowS: "x" }, { windowS: 0.0001 }]) {
    await assert.rejects((await world()).visit(wrong), /either windowS, in seconds, or immediate/);
  }
  const it = await world(await offer([{ ...TERMS[0], attribution_ms: 0 }, TERMS[1]])), bandit = await it.visit();
  assert.equal(await bandit.choose(), TERMS[1].arm);
  assert.match(it.reasons[0], /attribution_ms = 0, and this page is written for 60000/);
  const other = await it.visit({ windowS: undefined, immediate: true });
  assert.match(other.refused[0], /attribution_ms = 60000, and this page is written for 0/);
});

test("default limits leave a margin for forged reports", async () => {
  for (const [changes, why] of [
    [{ epsilon: "1.1" }, /epsilon = 1.1 is above this client's limit of 1/],
    [{ honest_fraction: "1" }, /honest_fraction = 1 is above this client's limit of 0.9/],
    [{ batch_size: 1 }, /batch_size = 1 is below this client's limit of 2/],
  ]) {
    const it = await world(await offer([{ ...TERMS[0], ...changes }])), bandit = await it.visit();
    await assert.rejects(bandit.choose(), why);
  }
});

test("a page that is left hands over at once, click or not, and sends nothing itself", async () => {
  const lengths = new Set();
  for (const reward of [null, 1]) {
    const it = await world(), bandit = await it.visit();
    await bandit.choose();
    const { ones: noise, dueMs } = bandit.ledger().reports[0];
    it.nowMs += 10_000;
    const told = reward === null ? null : bandit.report(reward); // and the link is followed in the same moment
    bandit.leave();
    bandit.leave(); // pagehide, then visibilitychange
    assert.equal(it.held.length, 1);
    assert.deepEqual([it.held[0].experiment, it.held[0].left_ms], [EXPERIMENT, dueMs - it.nowMs]);
    assert.equal(it.held[0].report.ones, noise + (reward ?? 0));
    lengths.add(JSON.stringify(it.held[0]).length - String(it.held[0].report.ones).length);
    assert.notEqual(await told, false);
    await new Promise((done) => { setTimeout(done, 10); });
    it.nowMs = dueMs;
    await (await it.visit()).flush();
    assert.equal(it.bodies.length, 0);
    assert.deepEqual([bandit.ledger().reports[0].state, bandit.ledger().reports[0].outcome], ["sent", "held"]);
  }
  assert.equal(lengths.size, 1);
});

test("a handover that did not get through: sent at the next visit, the same value", async () => {
  const it = await world(), bandit = await it.visit();
  await bandit.choose();
  await bandit.report(1);
  const { ones } = bandit.ledger().reports[0];
  it.away = true;
  bandit.leave();
  it.away = false;
  it.nowMs += LATEST_MS;
  await it.visit();
  assert.deepEqual(it.bodies.map((body) => said(body).ones), [ones]);
});

test("a page that comes back and is clicked replaces its value; both values never leave by its own hand", async () => {
  const it = await world(), bandit = await it.visit();
  await bandit.choose();
  bandit.leave();
  const back = await it.visit();
  assert.equal(await back.report(1), true);
  await back.flush();
  assert.equal(it.held.length, 1); // nothing at the moment of the click
  it.nowMs += 60_000;
  await back.flush(); // when the window ends
  await back.flush();
  assert.deepEqual(it.held.map(({ report }) => report.ones - it.held[0].report.ones), [0, 1]);
  assert.equal(it.held[0].report.id, it.held[1].report.id);
  it.away = true;
  it.nowMs += 6_000;
  await back.flush();
  it.away = false;
  await (await it.visit()).flush();
  assert.equal(it.bodies.length, 0);

  const unclicked = await world(), still = await unclicked.visit();
  await still.choose();
  still.leave();
  const returned = await unclicked.visit();
  unclicked.nowMs += 60_000;
  await returned.flush();
  assert.equal(unclicked.held.length, 2); // so that the second one tells nothing
});

test("the moment at which a report leaves is drawn once, after the window, from all of its range", async () => {
  const moments = [];
  for (let i = 0; i < 200; i++) {
    const it = await world(), bandit = await it.visit();
    await bandit.choose();
    const { untilMs, dueMs } = bandit.ledger().reports[0];
    assert.equal(untilMs, it.nowMs + 60_000);
    moments.push(dueMs - untilMs);
  }
  assert.ok(Math.min(...moments) >= 1000 && Math.max(...moments) < 6000);
  // Mean 3500, standard deviation 102: false-failure probability 1e-8.
  assert.ok(Math.abs(moments.reduce((sum, one) => sum + one) / 200 - 3500) < 600);
});

test("a record of version 0.1.0: its noise is drawn once, and it leaves", async () => {
  const it = await world(), [terms] = TERMS;
  const common = { state: "waiting", url: "http://gateway", arm: terms.arm, batch: await batchId(terms), epsilon: "0.5", delta: "0.000001" };
  const old = { ...common, id: "0".repeat(32), ones: null, terms, dueMs: it.nowMs + 1000 };
  const sealed = { ...common, id: "1".repeat(32), ones: 7, terms: null, dueMs: it.nowMs + 1000 };
  it.storage.setItem("shufflebandit", JSON.stringify({ optedOut: false, reports: { [EXPERIMENT]: old, sealed } }));
  const bandit = await it.visit();
  const { ones } = bandit.ledger().reports[0];
  assert.equal(await bandit.report(1), true);
  assert.equal(bandit.ledger().reports[0].ones, ones + 1);
  await bandit.flush();
  it.nowMs += 1000;
  await bandit.flush();
  assert.deepEqual(it.bodies.map((body) => said(body).ones), [ones + 1, 7]);
});
