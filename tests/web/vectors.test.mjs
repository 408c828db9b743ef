// The browser module against the vectors that Python made. Run with: node --test tests/web/
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { gzipSync } from "node:zlib";

import { minified } from "./minified.mjs";
import * as sb from "../../producers/web/shufflebandit.js";

const folder = new URL("../../producers/web/", import.meta.url);
const vectors = JSON.parse(readFileSync(new URL("vectors.json", folder)));

// Python's own check of the vectors has no margin, and no device behind it.
const LIMITS = { ...sb.LIMITS, maxEpsilon: "2", maxHonestFraction: "1", minBatchSize: 1, maxBits: 2 ** 33 };

function scripted(draws) {
  let at = 0;
  return new sb.Draws((bytes) => {
    const view = new DataView(bytes.buffer);
    for (let i = 0; i < bytes.length; i += 8) view.setBigUint64(i, BigInt(draws[at++] ?? 0), true);
  });
}

test("terms: canonical form, id, bits and certificate are Python's", async () => {
  for (const { terms, canonical, id, bits, certified_delta: python } of vectors.terms) {
    assert.equal(sb.canonical(terms), canonical);
    assert.equal(await sb.batchId(terms), id);
    const noise = await sb.check(id, terms, LIMITS);
    assert.equal(noise.bits, bits);
    const ours = sb.certifiedDelta(noise);
    // Python's is the true delta times 1 + 1e-9, to within 1e-10: ours lies between the two.
    assert.ok(ours <= python, `${id}: ${ours} > ${python}`);
    assert.ok(ours >= python * (1 - 9e-10), `${id}: ${ours} << ${python}`);
  }
});

test("terms that Python refuses are refused", async () => {
  for (const { why, batch, terms } of vectors.refused) {
    await assert.rejects(sb.check(batch, terms), sb.Refused, why);
  }
});

test("tables are right to the last bit", () => {
  for (const { honest, epsilon, clip, bits, first, sha256 } of vectors.tables) {
    const table = sb.laplaceTable(honest, epsilon, clip, bits);
    assert.equal(table[0], BigInt(first));
    assert.equal(createHash("sha256").update(table.join("\n")).digest("hex"), sha256);
  }
});

test("draws give the same noise", () => {
  for (const { terms, draws, rewards, ones } of vectors.noise) {
    const noise = sb.parse(terms), source = scripted(draws);
    assert.deepEqual(rewards.map((reward) => sb.encode(reward, noise, source)), ones);
  }
});

test("reports have the same bytes, all of one length", () => {
  for (const { batch, id, ones, record, body } of vectors.reports) {
    assert.equal(sb.encodeReport(batch, id, ones), record);
    assert.equal(sb.encodeBody("vectors", record), body);
    assert.equal(record.length, 136);
  }
});

test("the module is small, and stands alone", async (t) => {
  const path = new URL("shufflebandit.js", folder);
  const source = readFileSync(path);
  const code = await minified(path);
  if (code === null) return t.skip("terser is missing: npm install --prefix .cache/web terser@5");
  const size = gzipSync(code, { level: 9 }).length;
  t.diagnostic(`shufflebandit.js: ${size} bytes`);
  assert.ok(size < 10_000, `${size} bytes`);
  assert.doesNotMatch(String(source), /^\s*import /m);
  assert.doesNotMatch(String(source), /Math\.random/);
});
