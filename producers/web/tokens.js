/*
 * Admission tokens in the page: the product's own backend (the issuer) signs once for each person, and
 * cannot see what it signs. producers/web/TOKENS.md says what stands on the wire; the scheme is
 * RSABSSA-SHA384-PSS-Deterministic (RFC 9474), the other half of it is producers/tokens.py, and
 * token_vectors.json holds both to the same bytes.
 *
 *   const text = await token("/token", "banners", batch, id, PUBLIC_KEY);
 *
 * The public key stands in the page: PEM, base64 of its DER, DER, or a JWK. Never fetch it from
 * the gateway, who could give each person another one and so know them again. BigInt is not constant in time;
 * what it works on here is used once, and nobody outside can ask for a second measurement.
 */

// The exponent of every key, and the sizes that are taken.
const EXPONENT = "AQAB";
const SIZES = [2048, 3072, 4096];
// As long as the hash, SHA-384.
const SALT_BYTES = 48;
const RSA = { name: "RSA-PSS", hash: "SHA-384", saltLength: SALT_BYTES };

const fill = (bytes) => crypto.getRandomValues(bytes);

function toBase64(bytes) {
  const text = btoa(String.fromCharCode(...bytes));
  return text.replace(/=/g, "").replace(/\+/g, "-").replace(/\//g, "_");
}

function fromBase64(text) {
  const binary = atob(text.replace(/-/g, "+").replace(/_/g, "/"));
  return Uint8Array.from(binary, (character) => character.charCodeAt());
}

function toNumber(bytes) {
  let hex = "0x0";
  for (const byte of bytes) hex += (byte + 256).toString(16).slice(1);
  return BigInt(hex);
}

function toBytes(number, size) {
  const hex = number.toString(16).padStart(2 * size, "0");
  return Uint8Array.from(hex.match(/../g), (pair) => parseInt(pair, 16));
}

async function digest(hash, bytes) {
  return new Uint8Array(await crypto.subtle.digest(hash, bytes));
}

/* A key as WebCrypto has it, with its modulus as a number. */
async function open(publicKey) {
  let format = "jwk";
  let data = publicKey;
  if (typeof data === "string") data = fromBase64(data.replace(/-----.*?-----|\s/g, ""));
  if (!data.kty) format = "spki";
  const key = await crypto.subtle.importKey(format, data, RSA, true, ["verify"]);
  const { n, e } = await crypto.subtle.exportKey("jwk", key);
  const bits = key.algorithm.modulusLength;
  if (e !== EXPONENT || !SIZES.includes(bits)) throw new Error("tokens: not a key for tokens");
  return { key, n: toNumber(fromBase64(n)), size: bits / 8 };
}

/* EMSA-PSS-ENCODE with MGF1 (RFC 8017, 9.1.1 and B.2.1), as a number of one bit less than the modulus has. */
async function encode(message, size, salt) {
  const hashed = await digest("SHA-384", message);
  const check = await digest("SHA-384", Uint8Array.of(0, 0, 0, 0, 0, 0, 0, 0, ...hashed, ...salt));
  const width = size - SALT_BYTES - 1;
  let mask = "0x";
  for (let block = 0; 48 * block < width; block++) {
    const part = await digest("SHA-384", Uint8Array.of(...check, 0, 0, 0, block));
    mask += toNumber(part).toString(16).padStart(96, "0");
  }
  const cut = BigInt(mask.slice(0, 2 + 2 * width));
  const masked = BigInt.asUintN(8 * width - 1, cut ^ toNumber([1, ...salt]));
  return (masked << 392n) | (toNumber(check) << 8n) | 0xbcn;
}

/* value ** 65537 mod n */
function power(value, n) {
  let result = value;
  for (let step = 0; step < 16; step++) result = (result * result) % n;
  return (result * value) % n;
}

/* The inverse mod n by Euclid, 0 if there is none. */
function inverse(value, n) {
  let a = n;
  let b = value;
  let x = 0n;
  let y = 1n;
  while (b) {
    const quotient = a / b;
    [a, b] = [b, a - quotient * b];
    [x, y] = [y, x - quotient * y];
  }
  return a === 1n ? (x + n) % n : 0n;
}

/* Blind (RFC 9474, 4.2) any message. `random` fills the salt, then the factor: tests give another. */
export async function blindMessage(publicKey, message, random = fill) {
  const { n, size } = await open(publicKey);
  const salt = random(new Uint8Array(SALT_BYTES));
  const encoded = await encode(message, size, salt);
  let factor;
  do factor = toNumber(random(new Uint8Array(size)));
  while (!factor || factor >= n);
  // One inverse for both: it exists only if message and factor are units.
  const both = inverse((encoded * factor) % n, n);
  if (!both) throw new Error("tokens: no inverse");
  return {
    blinded: toBase64(toBytes((encoded * power(factor, n)) % n, size)),
    secret: toBase64(toBytes((both * encoded) % n, size)),
  };
}

/* Finalize (RFC 9474, 4.4) any message: the token, checked. */
export async function finalizeMessage(publicKey, message, signature, secret) {
  const { key, n, size } = await open(publicKey);
  const signed = fromBase64(signature);
  const token = toBytes((toNumber(signed) * toNumber(fromBase64(secret))) % n, size);
  const fits = await crypto.subtle.verify(RSA, key, token, message);
  if (signed.length !== size || !fits) throw new Error("tokens: the issuer's signature is wrong");
  return toBase64(token);
}

/* What a token signs. */
export function message(batchId, reportId) {
  return new TextEncoder().encode(`shufflebandit token v1\0${batchId}${reportId}`);
}

/*
 * { blinded, secret }: what the issuer gets, and what undoes it. Keep both until the token is
 * there, since after a lost answer only this request is signed again; then forget them.
 */
export function blind(publicKey, batchId, reportId) {
  return blindMessage(publicKey, message(batchId, reportId));
}

/* The token's text, from the issuer's signature and what `blind` gave. */
export function finalize(publicKey, batchId, reportId, signature, { secret }) {
  return finalizeMessage(publicKey, message(batchId, reportId), signature, secret);
}

/* The key's id, by which the issuer finds the key that this page pins. */
export async function keyId(publicKey) {
  const { key } = await open(publicKey);
  const der = await crypto.subtle.exportKey("spki", key);
  return toBase64(await digest("SHA-256", der));
}

/*
 * Ask the issuer for one token, as the person who is logged in there. An answer other than 200
 * rejects with its `status`: 409 means that this person had a token for another request.
 */
export async function token(issuerUrl, experiment, batchId, reportId, publicKey, kept) {
  const blinding = kept ?? (await blind(publicKey, batchId, reportId));
  const request = { experiment, key: await keyId(publicKey), blinded: blinding.blinded };
  const answer = await fetch(issuerUrl, {
    method: "POST",
    credentials: "include",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(request),
  });
  if (!answer.ok) {
    const refused = new Error(`tokens: the issuer answers ${answer.status}`);
    throw Object.assign(refused, { status: answer.status });
  }
  const { signature } = await answer.json();
  return finalize(publicKey, batchId, reportId, signature, blinding);
}
