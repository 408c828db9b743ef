// Tokens in the browser: the bytes that Python makes, RFC 9474's vector, errors, and the size.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { createPublicKey, generateKeyPairSync } from "node:crypto";
import { existsSync, mkdirSync, readFileSync } from "node:fs";
import { fileURLToPath, pathToFileURL } from "node:url";
import { test } from "node:test";
import { gzipSync } from "node:zlib";

import * as tokens from "../../producers/web/tokens.js";

const root = new URL("../../", import.meta.url);
const source = new URL("producers/web/tokens.js", root);
const read = (path) => JSON.parse(readFileSync(new URL(path, root)));
const vectors = read("producers/web/token_vectors.json");
const rfc = read("tests/web/rfc9474.json");
const KEY = vectors.key.public;
const BATCH = vectors.tokens[0].batch;
const REPORT = vectors.tokens[0].id;
const MOST_BYTES = 1500;

const bytes = (hex) => new Uint8Array(Buffer.from(hex, "hex"));
const text = (hex) => Buffer.from(hex, "hex").toString("base64url");
const number = (hex) => BigInt(`0x${hex}`);
const hex = (value, size) => value.toString(16).padStart(2 * size, "0");

function power(base, exponent, n) {
  let result = 1n;
  let square = base % n;
  for (let left = exponent; left; left >>= 1n) {
    if (left & 1n) result = (result * square) % n;
    square = (square * square) % n;
  }
  return result;
}

/* The inverse mod n by Euclid, step by step as in a textbook. */
function inverse(a, n) {
  if (a === 1n) return 1n;
  return ((1n - n * inverse(n % a, a)) / a + n) % n;
}

/* What an issuer does, without care for time: value ** d mod n. */
function signed(blinded, key = vectors.key) {
  const n = number(key.n);
  const d = inverse(number(key.e), (number(key.p) - 1n) * (number(key.q) - 1n));
  const value = number(Buffer.from(blinded, "base64url").toString("hex"));
  return text(hex(power(value, d, n), key.n.length / 2));
}

function scripted(...parts) {
  return (into) => {
    const next = parts.shift();
    assert.equal(next.length, into.length);
    into.set(next);
    return into;
  };
}

/* fetch, played by a function of the request's body. */
async function withFetch(answer, work) {
  const real = globalThis.fetch;
  const calls = [];
  globalThis.fetch = async (url, options) => {
    calls.push({ url, ...options });
    return answer(JSON.parse(options.body));
  };
  try {
    await work();
  } finally {
    globalThis.fetch = real;
  }
  return calls;
}

test("the vectors, every step", async () => {
  assert.equal(await tokens.keyId(KEY), vectors.key.id);
  for (const one of vectors.tokens) {
    const message = tokens.message(one.batch, one.id);
    assert.deepEqual(message, bytes(one.message));
    const random = scripted(bytes(one.salt), bytes(one.factor));
    const blinding = await tokens.blindMessage(KEY, message, random);
    assert.deepEqual(blinding, { blinded: text(one.blinded), secret: text(one.secret) });
    assert.equal(signed(blinding.blinded), text(one.signature));
    const made = await tokens.finalize(KEY, one.batch, one.id, text(one.signature), blinding);
    assert.equal(made, one.token);
  }
});

test("the vector of RFC 9474, A.3", async () => {
  const jwk = { kty: "RSA", n: text(rfc.n), e: text(rfc.e) };
  const n = number(rfc.n);
  const factor = bytes(hex(inverse(number(rfc.inv), n), 512));
  const random = scripted(bytes(rfc.salt), factor);
  const blinding = await tokens.blindMessage(jwk, bytes(rfc.msg), random);
  assert.deepEqual(blinding, { blinded: text(rfc.blinded_msg), secret: text(rfc.inv) });
  assert.equal(signed(blinding.blinded, rfc), text(rfc.blind_sig));
  const made = await tokens.finalizeMessage(jwk, bytes(rfc.msg), text(rfc.blind_sig), blinding.secret);
  assert.equal(made, text(rfc.sig));
});

test("a factor that is zero or not below the modulus is drawn again", async () => {
  const one = vectors.tokens[0];
  const message = bytes(one.message);
  const zero = new Uint8Array(256);
  const most = new Uint8Array(256).fill(255);
  const random = scripted(bytes(one.salt), zero, most, bytes(vectors.key.n), bytes(one.factor));
  const blinding = await tokens.blindMessage(KEY, message, random);
  assert.equal(blinding.blinded, text(one.blinded));
});

test("a factor without an inverse is refused", async () => {
  const one = vectors.tokens[0];
  const random = scripted(bytes(one.salt), bytes(vectors.key.p.padStart(512, "0")));
  await assert.rejects(tokens.blindMessage(KEY, bytes(one.message), random), /no inverse/);
});

test("a key is PEM, base64, DER or JWK, all the same; other keys are refused", async () => {
  const key = createPublicKey(KEY);
  const der = key.export({ format: "der", type: "spki" });
  const forms = [KEY, der.toString("base64"), new Uint8Array(der), key.export({ format: "jwk" })];
  for (const form of forms) assert.equal(await tokens.keyId(form), vectors.key.id);
  const others = [
    generateKeyPairSync("rsa", { modulusLength: 2048, publicExponent: 3 }),
    generateKeyPairSync("rsa", { modulusLength: 1024 }),
    generateKeyPairSync("ec", { namedCurve: "P-256" }),
  ];
  for (const { publicKey } of others) {
    const pem = publicKey.export({ format: "pem", type: "spki" });
    await assert.rejects(tokens.blind(pem, BATCH, REPORT));
  }
});

test("two blindings of one report have nothing in common, and their tokens differ in the salt", async () => {
  const first = await tokens.blind(KEY, BATCH, REPORT);
  const second = await tokens.blind(KEY, BATCH, REPORT);
  assert.notEqual(first.blinded, second.blinded);
  const one = await tokens.finalize(KEY, BATCH, REPORT, signed(first.blinded), first);
  const other = await tokens.finalize(KEY, BATCH, REPORT, signed(second.blinded), second);
  assert.notEqual(one, other);
  await assert.rejects(tokens.finalize(KEY, BATCH, REPORT, signed(first.blinded), second), /is wrong/);
});

test("a signature that is wrong is no token", async () => {
  const blinding = await tokens.blind(KEY, BATCH, REPORT);
  const right = signed(blinding.blinded);
  const wrong = [blinding.blinded, "", `AA${right}`, right.slice(0, -4), vectors.tokens[0].token];
  for (const signature of wrong) {
    await assert.rejects(tokens.finalize(KEY, BATCH, REPORT, signature, blinding), /is wrong/);
  }
  await assert.rejects(tokens.finalize(KEY, BATCH, "f".repeat(32), right, blinding), /is wrong/);
});

test("the issuer gets experiment, key and blinded message, with the login's cookies", async () => {
  let made;
  const sign = ({ blinded }) => new Response(JSON.stringify({ signature: signed(blinded) }));
  const [call] = await withFetch(sign, async () => {
    made = await tokens.token("/token", "banners", BATCH, REPORT, KEY);
  });
  assert.equal(made.length, 342);
  assert.equal(call.url, "/token");
  assert.equal(call.method, "POST");
  assert.equal(call.credentials, "include");
  const body = JSON.parse(call.body);
  assert.deepEqual(Object.keys(body), ["experiment", "key", "blinded"]);
  assert.equal(body.key, vectors.key.id);
  assert.ok(!call.body.includes(BATCH) && !call.body.includes(REPORT));
});

test("after a lost answer the same request is sent again", async () => {
  const kept = await tokens.blind(KEY, BATCH, REPORT);
  const stored = JSON.parse(JSON.stringify(kept));
  const asked = [];
  const sign = ({ blinded }) => {
    asked.push(blinded);
    if (asked.length === 1) throw new TypeError("Failed to fetch");
    return new Response(JSON.stringify({ signature: signed(blinded) }));
  };
  await withFetch(sign, async () => {
    await assert.rejects(tokens.token("/token", "banners", BATCH, REPORT, KEY, kept), TypeError);
    await tokens.token("/token", "banners", BATCH, REPORT, KEY, stored);
  });
  assert.deepEqual(asked, [kept.blinded, kept.blinded]);
});

test("a refusal rejects with its status", async () => {
  const refuse = () => new Response('{"error":"spent"}', { status: 409 });
  await withFetch(refuse, async () => {
    await assert.rejects(tokens.token("/token", "b", BATCH, REPORT, KEY), { status: 409 });
  });
});

test("what Python must not take is no signature here either", async () => {
  const data = createPublicKey(KEY).export({ format: "jwk" });
  const pss = { name: "RSA-PSS", hash: "SHA-384", saltLength: 48 };
  const key = await crypto.subtle.importKey("jwk", data, pss, false, ["verify"]);
  const takes = async ({ batch, id, token }) => {
    const signature = Buffer.from(token, "base64url");
    const strict = signature.toString("base64url") === token;
    return strict && crypto.subtle.verify(pss, key, signature, tokens.message(batch, id));
  };
  for (const one of vectors.tokens) assert.equal(await takes(one), true);
  for (const one of vectors.refused) assert.equal(await takes(one), false, one.why);
});

/* terser, from .cache (which git ignores) or from npm; null if neither is to be had. */
async function terser() {
  const folder = fileURLToPath(new URL(".cache/web/", root));
  const main = `${folder}node_modules/terser/main.js`;
  try {
    if (!existsSync(main)) {
      mkdirSync(folder, { recursive: true });
      const wanted = ["install", "--no-save", "--no-audit", "--prefix", folder, "terser@5"];
      execFileSync("npm", wanted, { stdio: "ignore", timeout: 60_000 });
    }
    return await import(pathToFileURL(main));
  } catch {
    return null;
  }
}

test(`at most ${MOST_BYTES} bytes, minified and compressed`, async (t) => {
  const found = await terser();
  if (!found) {
    const missing = "terser is missing: npm install --prefix .cache/web terser@5";
    if (process.env.CI === "true") assert.fail(missing);
    return t.skip(missing);
  }
  const { code } = await found.minify(readFileSync(source, "utf8"), { module: true });
  const size = gzipSync(code, { level: 9 }).length;
  t.diagnostic(`tokens.js: ${size} bytes`);
  assert.ok(size <= MOST_BYTES, `${size} bytes`);
});
