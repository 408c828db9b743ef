// The browser module against the vectors that Python made. Run with: node --test tests/web/
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { gzipSync } from "node:zlib";

import * as sb from "../../producers/web/shufflebandit.js";

const folder = new URL("../../producers/web/", import.meta.url);
const vectors = JSON.parse(readFileSync(new URL("vectors.json", folder)));

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
    const noise = await sb.check(id, terms, { ...sb.LIMITS, maxBits: 2 ** 33 });
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

test("the module is small, and stands alone", () => {
  const source = readFileSync(new URL("shufflebandit.js", folder));
  assert.ok(gzipSync(source, { level: 9 }).length < 10_000);
  assert.doesNotMatch(String(source), /^\s*import /m);
  assert.doesNotMatch(String(source), /Math\.random/);
});
