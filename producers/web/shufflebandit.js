/*
 * shufflebandit in the page: choose what this person sees, report what happened, already noisy.
 *
 *   const bandit = await connect("https://edge.example", "banners", { windowS: 60 });
 *   const arm = await bandit.choose();
 *   bandit.report(1);                    // from 0 to 1; nothing of it leaves without noise
 *
 * It does what producers/client.py does in a backend, and checks the same things: vectors.json holds
 * both to the same bytes. One report per browser profile and experiment. It leaves a random moment
 * after the attribution window has ended, whatever happened. A page that is left before hands its
 * report to the gateway, with the time that is left, and the gateway lets it go at that moment: so
 * neither whether a report counts nor when it comes tells who clicked and went away.
 */

const KEYS = "arm,attribution_ms,batch_size,calibration,delta,epsilon,experiment,honest_fraction,mechanism,parameters,sequence,version";
const PARAMETERS = { binomial: "success_bits,success_numerator,trials", "discrete-laplace": "clip,table_bits" };
const DECIMAL = /^(0|[1-9][0-9]{0,30})(\.[0-9]{0,60}[1-9])?$/;
const WHOLE = /^(0|[1-9][0-9]{0,30})$/;
const ONE = 1n << 64n;
const UNIT = 10n ** 61n;
const MAX_EPSILON = 50;
// Below Python's 1 + 1e-9 and above this module's rounding, so that it refuses nothing that Python
// certifies, and still never states less than the true delta.
const MARGIN = 1 + 5e-10;
// As core/accounting.py and core/discrete_laplace.py have them: what a check costs at most.
const MAX_STEPS = 10000, MAX_TABLE_STEPS = 1 << 15, MAX_KINDS = 4, MAX_REFUSED = 16;
const REPORT_BYTES = 136;
const KEEP_MS = 7 * 24 * 3600 * 1000;
const FRESH_MS = 30_000;
// A report leaves so long after its window at least: a handover that replaces an earlier one, at the
// end of the window, has to reach the gateway before that.
const SETTLE_MS = 1000;
// And up to so long after that, at random: much more than what timers, networks and the gateway's holds
// add to it, so that their difference between pages that stay and pages that are left does not show.
const SPREAD_MS = 5000;
// An issuer that takes longer does not hold up the page; the token is asked for again.
const TOKEN_WAIT_MS = 1000;
// The issuer's answers after which asking again is of no use (TOKENS.md, "Errors").
const NO_TOKEN = [400, 404, 409, 422];
const STORE = "shufflebandit";

export const LIMITS = {
  maxEpsilon: "1", maxDelta: "0.0001", maxHonestFraction: "0.9", minBatchSize: 2, maxBatchSize: 1e9,
  maxAttributionMs: KEEP_MS,
  maxBits: 1 << 18, // of one report: what a device can draw and compute
  maxUserEpsilon: "4", maxUserDelta: "0.001", // over all experiments of this profile
};

export class Refused extends Error {
  constructor(message) { super(message); this.name = "Refused"; }
}

function need(holds, message) { if (!holds) throw new Refused(message); }

/* Decimal strings as exact integers, in units of 10**-61. */
function exact(text) {
  const [whole, fraction = ""] = String(text).split(".");
  return BigInt(whole + fraction.padEnd(61, "0"));
}

function inexact(value) {
  const digits = value.toString().padStart(62, "0");
  return `${digits.slice(0, -61)}.${digits.slice(-61)}`.replace(/\.?0+$/, "");
}

// --- Terms: canonical form, id, check (stream_app/core/terms.py) ---------------------------------

export function canonical(value) {
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  return `{${Object.keys(value).sort().map((k) => `${JSON.stringify(k)}:${canonical(value[k])}`).join()}}`;
}

export async function batchId(terms) {
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(canonical(terms)));
  const text = btoa(String.fromCharCode(...new Uint8Array(digest)));
  return `${terms.sequence}.${text.replace(/=+$/, "").replaceAll("+", "-").replaceAll("/", "_")}`;
}

const keys = (object) => Object.keys(object).sort().join();

/* Every field is checked; returns what the noise needs. */
export function parse(raw) {
  need(raw && typeof raw === "object" && keys(raw) === KEYS && raw.version === 1, `terms must have exactly the keys ${KEYS}`);
  const integer = (of, key) => need(Number.isSafeInteger(of[key]) && of[key] >= 0, `terms: ${key} must be a whole number`);
  const decimal = (key) => need(typeof raw[key] === "string" && DECIMAL.test(raw[key]), `terms: ${key} must be a decimal string such as '0.5'`);
  for (const key of ["experiment", "arm"]) {
    need(typeof raw[key] === "string" && raw[key] && [...raw[key]].length <= 200, `terms: ${key} must be a text of 1 to 200 characters`);
  }
  ["epsilon", "delta", "honest_fraction"].forEach(decimal);
  ["batch_size", "sequence", "attribution_ms"].forEach((key) => integer(raw, key));
  const [epsilon, delta, share] = [raw.epsilon, raw.delta, raw.honest_fraction].map(exact);
  const size = raw.batch_size;
  need(epsilon >= UNIT / 100n, "terms: epsilon must be at least 0.01");
  need(delta > 0n && delta < UNIT, "terms: delta must be between 0 and 1");
  need(share > 0n && share <= UNIT, "terms: honest_fraction must be in (0, 1]");
  need(size >= 1 && size <= 1e9, "terms: batch_size must be from 1 to 1000000000");
  need(Object.hasOwn(PARAMETERS, raw.mechanism), "terms: mechanism must be binomial or discrete-laplace");
  need(["paper", "exact"].includes(raw.calibration), "terms: calibration must be paper or exact");
  const given = raw.parameters, laplace = raw.mechanism === "discrete-laplace";
  need(given && typeof given === "object" && keys(given) === PARAMETERS[raw.mechanism], `terms: parameters must be ${PARAMETERS[raw.mechanism]}`);
  const honest = Number(share * BigInt(size) / UNIT) || 1;
  const eps = Math.min(Number(raw.epsilon), MAX_EPSILON);
  if (laplace) {
    const { clip, table_bits: bits } = given;
    need(raw.calibration === "exact", "terms are not in canonical form");
    need(bits === 64 || bits === 128, "terms: table_bits must be 64 or 128");
    need(Number.isSafeInteger(clip) && clip >= 1 && tableSteps(clip, bits, eps) <= MAX_TABLE_STEPS, "terms: clip must be at least 1, and is too large to compute");
    return { laplace, epsilon: raw.epsilon, eps, size, honest, clip, tableBits: bits, bits: 2 * clip + 1 };
  }
  integer(given, "trials");
  const trials = given.trials / size, text = given.success_numerator;
  need(trials >= 1 && given.trials % size === 0 && given.trials <= 2 ** 44 && trials <= 2 ** 25, "terms: trials must be a positive multiple of batch_size");
  need(typeof text === "string" && WHOLE.test(text) && BigInt(text) > 0n && BigInt(text) < ONE, "terms: success_numerator must be in (0, 2**64)");
  need(given.success_bits === 64, "terms: success_bits must be 64");
  need(trials <= 1 << 13 || BigInt(text) === ONE >> 1n, "terms: trials must be at most 8192 a user if they are not fair");
  return { laplace, epsilon: raw.epsilon, eps, size, honest, trials, numerator: BigInt(text), bits: 1 + trials };
}

/* The check that Python's client and the shuffle stage make too. Throws Refused. */
export async function check(stated, raw, limits = LIMITS) {
  const noise = parse(raw), name = `batch ${String(stated).slice(0, 80)}`;
  const id = await batchId(raw);
  need(id === stated, `${name}: its terms hash to ${id}`);
  for (const [key, limit] of [
    ["epsilon", "maxEpsilon"], ["delta", "maxDelta"], ["honest_fraction", "maxHonestFraction"],
    ["batch_size", "maxBatchSize"], ["attribution_ms", "maxAttributionMs"],
  ]) {
    need(exact(raw[key]) <= exact(limits[limit]), `${name}: ${key} = ${raw[key]} is above this client's limit of ${limits[limit]}`);
  }
  need(raw.batch_size >= limits.minBatchSize, `${name}: batch_size = ${raw.batch_size} is below this client's limit of ${limits.minBatchSize}`);
  need(noise.bits <= limits.maxBits, `${name}: a report of ${noise.bits} bits is more than this device draws`);
  const delta = certifiedDelta(noise);
  need(delta <= Number(raw.delta), `${name}: its noise gives delta = ${delta.toPrecision(3)}, more than the stated ${raw.delta}: it would protect less than it says`);
  return noise;
}

// --- Certificates: upper bounds of delta (stream_app/core/accounting.py, MATH 2) -----------------

export function certifiedDelta(noise) {
  const cost = noise.laplace ? laplaceDelta(noise) : binomialDelta(noise);
  return Math.min(1, Math.max(1e-300, cost * MARGIN));
}

const LOG_SQRT_2PI = 0.5 * Math.log(2 * Math.PI);

function stirlingError(n) {
  if (n < 16) {
    let factorial = 1;
    for (let i = 2; i <= n; i++) factorial *= i;
    return Math.log(factorial) - (n + 0.5) * Math.log(n) + n - LOG_SQRT_2PI;
  }
  const nn = n * n;
  return (1 / 12 - (1 / 360 - (1 / 1260 - (1 / 1680 - 1 / (1188 * nn)) / nn) / nn) / nn) / n;
}

/* x log(x / mean) + mean - x without cancellation (Loader's bd0). */
function deviance(x, mean, difference) {
  if (Math.abs(difference) >= 0.1 * (x + mean)) return x * Math.log(x / mean) - difference;
  const v = difference / (x + mean);
  let total = difference * v, term = 2 * x * v;
  for (let j = 3; j < 1000; j += 2) {
    term *= v * v;
    const next = total + term / j;
    if (next === total) break;
    total = next;
  }
  return total;
}

function logPmf(x, n, numerator) {
  const q = Number(numerator) / 2 ** 64, r = Number(ONE - numerator) / 2 ** 64;
  if (x === 0) return n * Math.log1p(-q);
  if (x === n) return n * Math.log1p(-r);
  const difference = Number((BigInt(x) << 64n) - BigInt(n) * numerator) / 2 ** 64, rest = n - x;
  return stirlingError(n) - stirlingError(x) - stirlingError(rest)
    - deviance(x, n * q, difference) - deviance(rest, n * r, -difference)
    + 0.5 * (Math.log(n) - Math.log(x) - Math.log(rest)) - LOG_SQRT_2PI;
}

/* e^-eps with so many binary places, as an exact fraction. */
function shrink(epsilon, places) {
  const stated = exact(epsilon), most = BigInt(MAX_EPSILON) * UNIT;
  return expMinus(stated < most ? stated : most, places);
}

/* Log of the sum of max(0, f(b) - e^eps f(b-1)), walked downward from t = (n+1)q/(q + e^eps(1-q)),
   in units of 2**-128: a term is f(b)(t-b)(q + e^eps(1-q))/((n-b+1)q), where nothing cancels. */
function logOneSided(n, numerator, eps, p) {
  const q = Number(numerator) / 2 ** 64, r = Number(ONE - numerator) / 2 ** 64;
  const slope = (q + Math.exp(eps) * r) / q, rest = 1 + 1 / -Math.expm1(-eps);
  const part = numerator * p, t = (BigInt(n + 1) * part << 128n) / (part + (ONE - numerator << 320n)) + 1n;
  const top = Math.min(n, Number(t >> 128n)), over = Number(t - (BigInt(top) << 128n)) / 2 ** 128;
  let total = 0, mass = 1;
  for (let b = top; b >= 0; b--) {
    const above = n - b + 1;
    total += mass * slope * (top - b + over) / above;
    mass *= b * r / (above * q);
    if ((total > 0 && mass * rest <= 1e-22 * total) || top - b > MAX_STEPS) {
      total += mass * rest; // a bound of all that is left
      break;
    }
  }
  return total ? logPmf(top, n, numerator) + Math.log(total) : -Infinity;
}

function binomialDelta({ honest, trials, numerator, epsilon, eps }) {
  const n = honest * trials, p = shrink(epsilon, 320);
  return Math.exp(Math.max(logOneSided(n, numerator, eps, p), logOneSided(n, ONE - numerator, eps, p)));
}

/* 2(1 + e^eps) m P(X > c) for the clipping, m(2c+1) 2^-bits (1 + e^eps) for the table. */
function laplaceDelta({ size, honest, clip, tableBits, eps }) {
  const p = Math.exp(-eps), shape = 1 / honest, odds = 1 + Math.exp(eps);
  const last = clip + Math.ceil(60 / eps) + 1;
  let mass = Math.exp(shape * Math.log(-Math.expm1(-eps))) * shape * p, tail = 0, lost = 0;
  for (let k = 1; ; k++) { // mass = P(X = k)
    if (k > clip) {
      const sum = tail + mass;
      lost += Math.abs(tail) >= mass ? tail - sum + mass : mass - sum + tail;
      tail = sum;
    }
    if (k === last) break;
    mass *= p * (k + shape) / (k + 1);
  }
  tail += lost + mass * p / -Math.expm1(-eps);
  return 2 * odds * size * tail + size * (2 * clip + 1) * odds * 2 ** -tableBits;
}

// --- Noise (stream_app/core/mechanisms.py) -------------------------------------------------------

/* e^-x for x in units of 10**-61, with `bits` binary places: Taylor after halving, then squaring. */
function expMinus(x, bits) {
  const halvings = 16n, work = BigInt(bits) + 64n, one = 1n << work;
  const small = (x << work) / UNIT >> halvings;
  let sum = one, term = one;
  for (let k = 1n; term; k++) {
    term = term * small / k >> work;
    sum += k & 1n ? -term : term;
  }
  for (let i = 0n; i < halvings; i++) sum = sum * sum >> work;
  return sum >> 64n;
}

const tableSteps = (clip, bits, eps) => clip + Math.ceil((bits + 48) * Math.log(2) / eps) + 2;

/* 2**bits P(c + clip(X - Y, -c, c) <= j), j = 0..2c-1, right to the last bit: Miller's algorithm. */
export function laplaceTable(honest, epsilon, clip, bits) {
  const places = bits + 192, h = BigInt(honest);
  const p = shrink(epsilon, places);
  const centre = (1n << BigInt(places)) + (p * p >> BigInt(places));
  const eps = Math.min(Number(epsilon), MAX_EPSILON);
  let above = 0n, here = 1n << BigInt(places), tail = 0n;
  const tails = [];
  for (let d = tableSteps(clip, bits, eps); d > 0; d--) {
    tail += here;
    if (d <= clip) tails.push(tail);
    const k = BigInt(d);
    const below = (centre * k * h * here - p * ((k + 1n) * h - 1n) * above) / (p * ((k - 1n) * h + 1n));
    [above, here] = [here, below];
  }
  const whole = here + 2n * tail, scale = 1n << BigInt(bits);
  const lower = tails.map((t) => (2n * t * scale + whole) / (2n * whole));
  return [...lower, ...lower.map((entry) => scale - entry).reverse()];
}

/* 64-bit draws, little-endian, in blocks, each used once. */
export class Draws {
  #block = new DataView(new ArrayBuffer(2048));
  #at = 2048;
  #fill;
  constructor(fill = (bytes) => crypto.getRandomValues(bytes)) { this.#fill = fill; }
  next() {
    if (this.#at === 2048) {
      this.#fill(new Uint8Array(this.#block.buffer));
      this.#at = 0;
    }
    const draw = this.#block.getBigUint64(this.#at, true);
    this.#block.setBigUint64(this.#at, 0n);
    this.#at += 8;
    return draw;
  }
}

function popcount(draw) {
  let ones = 0;
  for (let half of [Number(draw & 0xffffffffn), Number(draw >> 32n)]) {
    half -= (half >>> 1) & 0x55555555;
    half = (half & 0x33333333) + ((half >>> 2) & 0x33333333);
    ones += Math.imul((half + (half >>> 4)) & 0x0f0f0f0f, 0x01010101) >>> 24;
  }
  return ones;
}

/* A function that gives one person's share of the noise. */
export function sampler(noise, draws) {
  if (noise.laplace) {
    const table = laplaceTable(noise.honest, noise.epsilon, noise.clip, noise.tableBits);
    return () => {
      let draw = draws.next();
      if (noise.tableBits === 128) draw |= draws.next() << 64n;
      let low = 0, high = table.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (table[middle] <= draw) low = middle + 1; else high = middle;
      }
      return low;
    };
  }
  const { trials, numerator } = noise;
  if (numerator !== ONE >> 1n) {
    return () => {
      let ones = 0;
      for (let i = 0; i < trials; i++) ones += draws.next() < numerator ? 1 : 0;
      return ones;
    };
  }
  return () => {
    let ones = 0, left = trials;
    for (; left >= 64; left -= 64) ones += popcount(draws.next());
    return left ? ones + popcount(draws.next() & ((1n << BigInt(left)) - 1n)) : ones;
  };
}

/* The reward, rounded to one bit at random (MATH 8), plus the noise. */
export function encode(reward, noise, draws = new Draws()) {
  if (!(reward >= 0 && reward <= 1)) throw new RangeError("reward must be a number from 0 to 1");
  const share = sampler(noise, draws);
  const one = rounded(reward, draws);
  return one + share();
}

/* The reward as one bit; an uncertain one takes a draw. */
function rounded(reward, draws = new Draws()) {
  if (reward === 0 || reward === 1) return reward;
  return draws.next() < BigInt(Math.floor(reward * 2 ** 64)) ? 1 : 0;
}

/* One report, padded with spaces so that all have the same length. */
export function encodeReport(batch, id, ones, token = null) {
  const signed = token === null ? "" : `,"token":"${token}"`;
  return `{"batch":"${batch}","id":"${id}","ones":${ones}${signed}}`.padEnd(REPORT_BYTES + signed.length);
}

export function encodeHandover(experiment, report, leftMs) {
  return `{"experiment":${JSON.stringify(experiment)},"left_ms":${leftMs},"report":${report}}`;
}

export function encodeBody(experiment, report) {
  return `{"experiment":${JSON.stringify(experiment)},"reports":[${report}]}`;
}

function randomHex() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((b) => b.toString(16).padStart(2, "0")).join("");
}

/* A whole number below `most`, all equally likely. */
function below(most) {
  const wide = 1n << 128n, limit = wide - wide % BigInt(most);
  for (;;) {
    const draw = BigInt(`0x${randomHex()}`);
    if (draw < limit) return Number(draw % BigInt(most));
  }
}

// --- The client (producers/client.py) ------------------------------------------------------------

/* What the profile remembers: { optedOut, reports: { experiment: entry } }; null if it cannot. */
class Memory {
  constructor(storage) { this.storage = storage; }
  read() {
    const kept = JSON.parse(this.storage.getItem(STORE) ?? "null");
    return kept ?? { optedOut: false, reports: {} };
  }
  write(kept) { this.storage.setItem(STORE, JSON.stringify(kept)); }
  /* Change it with no other tab in between; `change` gets the memory and returns the result. */
  async change(change) {
    const work = () => {
      const kept = this.read();
      Object.values(kept.reports).forEach(upgrade);
      const result = change(kept);
      this.write(kept);
      return result;
    };
    return globalThis.navigator?.locks ? navigator.locks.request(STORE, work) : work();
  }
}

/* An entry of version 0.1.0 has terms instead of noise: it is drawn now, once. */
function upgrade(entry) {
  if (!("terms" in entry)) return;
  entry.decided = entry.terms === null;
  if (entry.terms) entry.ones = encode(0, parse(entry.terms));
  entry.untilMs = entry.dueMs;
  delete entry.terms;
}

function usableStorage(given) {
  try {
    const storage = given ?? globalThis.localStorage;
    storage.setItem(`${STORE}.probe`, "1");
    storage.removeItem(`${STORE}.probe`);
    return new Memory(storage);
  } catch {
    return null; // nothing can be kept, so nothing may be reported
  }
}

/* The attribution window that the product's code is written for: the agent does not choose it. */
function statedWindow({ windowS, immediate }) {
  if (immediate === true && windowS === undefined) return 0;
  if (!immediate && windowS > 0 && Number.isSafeInteger(windowS * 1000)) return windowS * 1000;
  throw new TypeError("connect: give either windowS, in seconds, or immediate: true if the page reports every visitor at once");
}

export class Bandit {
  #url; #experiment; #windowMs; #limits; #memory; #fetch; #now; #onRefused; #issuer; #tokenKey;
  #offer = null; #fetched = -Infinity; #ids = new Map(); #newest = -1; #open = [];
  #timer = null; #sending = null; #asking = null; #attempts = 0; #problem = "";
  #told = null; // a reward that is not in the memory yet: the page may be left before it is
  #left = false; // what was handed over since the page was last seen
  #again = new Set(); // ids that were handed over again when their window ended
  refused = []; // why batches of the newest assignment were refused

  constructor(url, experiment, options = {}) {
    this.#url = String(url).replace(/\/$/, "");
    this.#experiment = experiment;
    this.#windowMs = statedWindow(options);
    this.#limits = { ...LIMITS, ...options.limits };
    this.#memory = usableStorage(options.storage);
    this.#fetch = options.fetch ?? ((...args) => fetch(...args));
    this.#now = options.now ?? Date.now;
    this.#onRefused = options.onRefused ?? ((reason) => console.warn(`shufflebandit: ${reason}`));
    this.#issuer = options.tokens ?? null;
    this.#tokenKey = options.tokenKey;
    if (this.#issuer && !this.#tokenKey) throw new TypeError("connect: tokens needs tokenKey, the issuer's public key; it stands in the page");
  }

  async start() {
    await this.refresh();
    await this.flush();
    const back = () => { this.#left = false; this.#attempts = 0; this.flush(); };
    globalThis.addEventListener?.("online", back);
    globalThis.addEventListener?.("pageshow", back);
    globalThis.addEventListener?.("pagehide", () => this.leave());
    globalThis.document?.addEventListener("visibilitychange", () => {
      if (document.visibilityState === "hidden") this.leave(); else back();
    });
    return this;
  }

  /* Fetch the assignment and check it; the last one stands while the gateway is away. */
  async refresh() {
    try {
      const name = encodeURIComponent(this.#experiment);
      const answer = await this.#fetch(`${this.#url}/v1/experiments/${name}`, { ...QUIET, cache: "no-cache" });
      if (!answer.ok) throw new Error(`the gateway answers ${answer.status}`);
      await this.take(await answer.json());
      this.#problem = "";
    } catch (error) {
      this.#problem = error instanceof Refused ? error.message : `no assignment: ${error.message}`;
    }
  }

  /* Follow an assignment: every batch's terms are checked before a draw is made for it. */
  async take(offer) {
    need(offer?.version === 1 && offer.experiment === this.#experiment && Array.isArray(offer.open), "assignment: not one of this experiment");
    const open = [], refused = [], kinds = new Set();
    for (const { batch, terms } of offer.open) {
      try {
        need(refused.length < MAX_REFUSED, `batch ${batch}: not read, ${MAX_REFUSED} of its assignment were refused`);
        const { epsilon, size, clip, trials, numerator } = parse(terms);
        kinds.add(`${[epsilon, size, clip, trials, numerator]}`);
        need(kinds.size <= MAX_KINDS, `batch ${batch}: not certified, its assignment has more than ${MAX_KINDS} kinds of noise`);
        const noise = await check(batch, terms, this.#limits);
        need(terms.experiment === this.#experiment, `batch ${batch}: its terms are for another experiment`);
        need(terms.attribution_ms === this.#windowMs, `batch ${batch}: attribution_ms = ${terms.attribution_ms}, and this page is written for ${this.#windowMs}`);
        const known = this.#ids.get(terms.sequence);
        need(known === batch || (known === undefined && terms.sequence > this.#newest), `batch ${batch}: sequence number ${terms.sequence} is not a new one`);
        open.push({ batch, terms, noise });
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
        refused.push(error.message);
      }
    }
    for (const { batch, terms } of open) {
      this.#ids.set(terms.sequence, batch);
      this.#newest = Math.max(this.#newest, terms.sequence);
    }
    refused.filter((reason) => !this.refused.includes(reason)).forEach(this.#onRefused);
    [this.#offer, this.#open, this.refused, this.#fetched] = [offer, open, refused, this.#now()];
  }

  /* What to show this person; the same again while their report waits. */
  async choose() {
    const entry = this.#mine();
    if (entry?.state === "waiting") return entry.arm;
    if (this.#now() - this.#fetched > FRESH_MS) await this.refresh();
    if (!this.#open.length) return this.#fallback();
    const batch = this.#pick();
    if (!this.#memory) return batch.terms.arm;
    const arm = await this.#memory.change((kept) => this.#bind(kept, batch));
    // Before anything is shown, so that whether the token is there does not depend on the reward.
    if (this.#issuer) await Promise.race([this.#ensureToken(), new Promise((done) => { setTimeout(done, TOKEN_WAIT_MS); })]);
    return arm;
  }

  #mine() { return this.#memory?.read().reports[this.#experiment]; }

  #bind(kept, { batch, terms, noise }) {
    const known = kept.reports[this.#experiment];
    if (known) {
      const still = this.#open.some((one) => one.terms.arm === known.arm);
      return known.state === "waiting" || still ? known.arm : terms.arm;
    }
    if (kept.optedOut || !this.#affordable(kept, terms)) return terms.arm;
    const window = terms.attribution_ms, until = window ? this.#now() + window : null;
    kept.reports[this.#experiment] = {
      state: "waiting", url: this.#url, arm: terms.arm, batch, id: randomHex(),
      ones: encode(0, noise), decided: false, // the noise is drawn here and never again
      epsilon: terms.epsilon, delta: terms.delta, untilMs: until,
      dueMs: until && until + SETTLE_MS + below(SPREAD_MS),
      ...(this.#issuer ? { token: null } : {}),
    };
    this.#schedule(window);
    return terms.arm;
  }

  #pick() {
    let draw = below(this.#open.reduce((sum, one) => sum + one.terms.batch_size, 0));
    return this.#open.find((one) => (draw -= one.terms.batch_size) < 0);
  }

  #fallback() {
    const serve = this.#offer?.serve;
    if (typeof serve === "string") return serve;
    throw new Refused(this.refused[0] ?? (this.#problem || `experiment ${this.#experiment}: nothing to show yet`));
  }

  #affordable(kept, terms) {
    const spent = (key) => Object.values(kept.reports).reduce((sum, one) => sum + exact(one[key]), exact(terms[key]));
    return spent("epsilon") <= exact(this.#limits.maxUserEpsilon) && spent("delta") <= exact(this.#limits.maxUserDelta);
  }

  /* Take the reward, from 0 to 1; false if it cannot count (no batch, late, twice). */
  async report(reward) {
    if (!(reward >= 0 && reward <= 1)) throw new RangeError("reward must be a number from 0 to 1");
    const seen = this.#mine();
    if (!this.#takes(seen) || this.#told?.id === seen.id) return false;
    this.#told = { id: seen.id, ones: seen.ones + rounded(reward) }; // at once: see `leave`
    const taken = await this.#memory.change((kept) => {
      const entry = kept.reports[this.#experiment];
      if (!this.#takes(entry)) return this.#told?.stored === true;
      this.#settle(entry);
      entry.dueMs ??= this.#now();
      return true;
    });
    if (taken) this.flush();
    return taken;
  }

  #takes(entry) {
    return entry?.state === "waiting" && !entry.decided && (entry.untilMs === null || this.#now() < entry.untilMs);
  }

  /* Put the reward that was told into the entry, if it is that one's. */
  #settle(entry) {
    if (this.#told?.id !== entry.id || this.#told.stored) return;
    Object.assign(entry, { ones: this.#told.ones, decided: true });
    this.#told.stored = true;
  }

  /*
   * The page is left: hand the report over, click or not, with the time until it is due. All at
   * once, without waiting for anything, for nothing runs any more after it.
   */
  leave() {
    if (this.#left || !this.#memory) return;
    this.#left = true;
    const kept = this.#memory.read(), entry = kept.reports[this.#experiment];
    if (entry?.state !== "waiting" || entry.url !== this.#url || "terms" in entry) return;
    this.#settle(entry);
    if (this.#handOver(entry)) this.#memory.write(kept);
  }

  /* False if it cannot be: it has no window, no token yet, or is due. */
  #handOver(entry) {
    const now = this.#now();
    if (!entry.untilMs || now >= entry.dueMs || entry.token === null) return false;
    const { id, ones } = entry;
    entry.handed ??= ones;
    const report = encodeReport(entry.batch, id, ones, entry.token ?? null);
    const body = encodeHandover(this.#experiment, report, Math.round(entry.dueMs - now));
    this.#post("held", body).then((answer) => answer.status === 202 && this.#memory.change((kept) => {
      const same = kept.reports[this.#experiment];
      if (same?.id === id) same.heldOnes = ones;
    })).catch(() => {}); // it leaves at the next visit, unless another value did
    return true;
  }

  #post(path, body) {
    const headers = { "Content-Type": "text/plain" }; // no preflight, so that it can leave with the page
    return this.#fetch(`${this.#url}/v1/${path}`, { ...QUIET, method: "POST", body, headers, keepalive: true });
  }

  /* Send what is due; whatever fails is kept and sent again, the same bytes. */
  flush() {
    this.#sending ??= this.#send().finally(() => { this.#sending = null; });
    return this.#sending;
  }

  async #send() {
    if (!this.#memory) return;
    const due = await this.#memory.change((kept) => {
      const found = [];
      for (const [experiment, entry] of Object.entries(kept.reports)) {
        if (entry.state !== "waiting" || entry.url !== this.#url) continue;
        if (this.#isDue(experiment, entry)) found.push([experiment, { ...entry }]);
      }
      return found;
    });
    if (this.#mine()?.token === null) this.#ensureToken();
    for (const [experiment, entry] of due) await this.#deliver(experiment, entry);
  }

  #isDue(experiment, entry) {
    const now = this.#now();
    if (entry.dueMs === null) return false;
    if (now - entry.dueMs > KEEP_MS) {
      entry.state = "expired";
      return false;
    }
    if (now < entry.dueMs) {
      // A page that came back: what it handed over is replaced, click or not, when its window ends.
      const again = experiment === this.#experiment && entry.handed !== undefined && !this.#again.has(entry.id);
      if (again && now >= entry.untilMs) {
        this.#again.add(entry.id);
        this.#handOver(entry);
      }
      this.#schedule((again && now < entry.untilMs ? entry.untilMs : entry.dueMs) - now);
      return false;
    }
    entry.decided = true;
    // The gateway has it; or it may have another value, and one id never leaves with two.
    if (entry.heldOnes === entry.ones || (entry.handed ?? entry.ones) !== entry.ones) {
      Object.assign(entry, { state: "sent", outcome: "held", sentMs: now });
      return false;
    }
    return entry.token !== null;
  }

  async #deliver(experiment, entry) {
    let wait = Math.min(60, 2 ** this.#attempts++);
    try {
      const answer = await this.#post("reports", encodeBody(experiment, encodeReport(entry.batch, entry.id, entry.ones, entry.token ?? null)));
      if (answer.status === 202 || answer.status === 422) {
        const outcome = (await answer.json()).outcomes[0];
        this.#attempts = 0;
        return void await this.#memory.change((kept) => {
          Object.assign(kept.reports[experiment] ?? {}, { state: "sent", outcome, sentMs: this.#now() });
        });
      }
      wait = Math.max(wait, Number(answer.headers.get("Retry-After")) || 0);
    } catch { /* offline: kept */ }
    this.#schedule(1000 * wait);
  }

  /* One token for this person's report, asked for once at a time; the request is kept until it is there. */
  #ensureToken() {
    this.#asking ??= this.#askToken().finally(() => { this.#asking = null; });
    return this.#asking;
  }

  async #askToken() {
    const seen = this.#mine();
    if (!this.#issuer || seen?.state !== "waiting" || seen.token !== null) return;
    const change = (changes) => this.#memory.change((kept) => {
      const entry = kept.reports[this.#experiment];
      if (entry?.id === seen.id) Object.assign(entry, changes(entry));
      return entry;
    });
    try {
      const tokens = await import("./tokens.js");
      const made = await tokens.blind(this.#tokenKey, seen.batch, seen.id);
      const { blinding } = await change((entry) => ({ blinding: entry.blinding ?? made }));
      const token = await tokens.token(this.#issuer, this.#experiment, seen.batch, seen.id, this.#tokenKey, blinding);
      await change(() => ({ token, blinding: undefined }));
      this.flush();
    } catch (error) {
      if (!NO_TOKEN.includes(error.status)) return this.#schedule(1000 * Math.min(60, 2 ** this.#attempts++));
      await change(() => ({ state: "dropped", outcome: "no_token", blinding: undefined }));
      this.#onRefused(`experiment ${this.#experiment}: no report: the issuer gives no token (${error.status})`);
    }
  }

  #schedule(ms) {
    if (!ms) return;
    const at = this.#now() + Math.min(ms, 3_600_000);
    if (this.#timer && this.#timer.at <= at && this.#timer.at > this.#now()) return;
    clearTimeout(this.#timer?.handle);
    const handle = setTimeout(() => { this.#timer = null; this.flush(); }, at - this.#now() + 5);
    handle.unref?.();
    this.#timer = { at, handle };
  }

  /* What left this browser, what waits, and what it costs. */
  ledger() {
    const kept = this.#memory?.read() ?? { optedOut: false, reports: {} };
    const reports = Object.entries(kept.reports).map(([experiment, { terms, url, token, blinding, handed, heldOnes, ...entry }]) => ({ experiment, ...entry }));
    const sum = (key) => inexact(reports.reduce((total, one) => total + exact(one[key]), 0n));
    return { optedOut: kept.optedOut, remembers: this.#memory !== null, epsilon: sum("epsilon"), delta: sum("delta"), reports };
  }

  /* Report nothing from now on; what waits is dropped. `optOut(false)` takes part again. */
  async optOut(out = true) {
    await this.#memory?.change((kept) => {
      kept.optedOut = out;
      for (const entry of Object.values(kept.reports)) {
        if (out && entry.state === "waiting") Object.assign(entry, { state: "dropped", ones: null });
      }
    });
  }

  /* Call back with the state now and whenever it changes; returns a function that ends it. */
  watch(callback) {
    const source = new EventSource(`${this.#url}/v1/experiments/${encodeURIComponent(this.#experiment)}/events`);
    source.addEventListener("assignment", async ({ data }) => {
      await this.take(JSON.parse(data)).catch((error) => this.#onRefused(error.message));
      callback({ state: this.#offer?.state, serve: this.#offer?.serve ?? null, arms: this.#open.map((one) => one.terms.arm) });
    });
    return () => source.close();
  }
}

const QUIET = { credentials: "omit", referrerPolicy: "no-referrer", mode: "cors" };

/*
 * A client of one experiment. Exactly one of `windowS` (seconds) and `immediate` is required. Further
 * options: limits, tokens (the issuer's address) with tokenKey, storage, fetch, now, onRefused.
 */
export async function connect(url, experiment, options = {}) {
  if (!globalThis.crypto?.subtle) throw new Error("shufflebandit needs a secure page: https, or localhost");
  return new Bandit(url, experiment, options).start();
}
