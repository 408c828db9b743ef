import type { PublicKey } from "./tokens.js";

/** Limits of this client, whatever the agent asks for; decimals are strings. */
export interface Limits {
  maxEpsilon: string;
  maxDelta: string;
  maxHonestFraction: string;
  minBatchSize: number;
  maxBatchSize: number;
  maxAttributionMs: number;
  /** Of one report: what a device can draw and compute. */
  maxBits: number;
  /** Over all experiments of this profile. */
  maxUserEpsilon: string;
  maxUserDelta: string;
}

/** What the page's code is written for; batches that differ are refused. Exactly one of the two. */
export type Attribution =
  | {
      /** Seconds from the choice during which a reward counts. */
      windowS: number;
      immediate?: false;
    }
  | {
      /** The page reports every visitor at once, whatever happened. */
      immediate: true;
      windowS?: undefined;
    };

export type Options = Attribution & FurtherOptions;

export interface FurtherOptions {
  /** The issuer's address: one token is asked for when a batch is chosen (TOKENS.md). */
  tokens?: string;
  /** Its public key, which stands in the page; required with `tokens`. */
  tokenKey?: PublicKey;
  limits?: Partial<Limits>;
  /** Where the profile's record is kept; localStorage by default. */
  storage?: Pick<Storage, "getItem" | "setItem" | "removeItem">;
  fetch?: typeof fetch;
  now?: () => number;
  /** Told why a batch was refused; by default a warning on the console. */
  onRefused?: (reason: string) => void;
}

export interface LedgerEntry {
  experiment: string;
  /** dropped: opted out, or no token; expired: the gateway was away for a week. */
  state: "waiting" | "sent" | "dropped" | "expired";
  arm: string;
  batch: string;
  id: string;
  /** What the report says, noise included; null if it was dropped. */
  ones: number | null;
  /** A reward is in it, or its time is over. */
  decided: boolean;
  epsilon: string;
  delta: string;
  /** Until when a reward counts; null: reported at once. */
  untilMs: number | null;
  /** When it leaves, a random moment after that; null: when the reward is known. */
  dueMs: number | null;
  sentMs?: number;
  /** held: the page was left, and the gateway sent it; no_token: the issuer gave none. */
  outcome?:
    | "accepted"
    | "malformed"
    | "out_of_range"
    | "unknown_batch"
    | "late"
    | "token_missing"
    | "token_invalid"
    | "held"
    | "no_token";
}

export interface Ledger {
  optedOut: boolean;
  /** False: this browser keeps nothing, so nothing is reported. */
  remembers: boolean;
  epsilon: string;
  delta: string;
  reports: LedgerEntry[];
}

/** Terms that this client does not accept; the message says why. */
export class Refused extends Error {}

export class Bandit {
  /** Why batches of the newest assignment were refused. */
  readonly refused: string[];
  /** What to show; the same again while the report waits. Rejects if there is nothing to show. */
  choose(): Promise<string>;
  /** The reward, from 0 to 1; false if it cannot count (no batch, late, twice). */
  report(reward: number): Promise<boolean>;
  /** Send what is due now. */
  flush(): Promise<void>;
  /** Hand the report over, as when the page is left; a page that navigates by itself calls it. */
  leave(): void;
  /** What left this browser, what waits, and what it costs. */
  ledger(): Ledger;
  /** Report nothing from now on; what waits here is dropped, but not what was handed over. */
  optOut(out?: boolean): Promise<void>;
  /** Fetch the assignment again. */
  refresh(): Promise<void>;
  /** Called with the state now and at every change; returns a function that ends it. */
  watch(
    callback: (state: { state?: string; serve: string | null; arms: string[] }) => void,
  ): () => void;
}

export const LIMITS: Limits;

/** A client of one experiment. Needs a secure page: https, or localhost. */
export function connect(url: string, experiment: string, options: Options): Promise<Bandit>;
