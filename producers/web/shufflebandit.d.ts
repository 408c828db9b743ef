/** Limits of this client, whatever the agent asks for; decimals are strings. */
export interface Limits {
  maxEpsilon: string;
  maxDelta: string;
  maxHonestFraction: string;
  maxBatchSize: number;
  maxAttributionMs: number;
  /** Of one report: what a device can draw and compute. */
  maxBits: number;
  /** Over all experiments of this profile. */
  maxUserEpsilon: string;
  maxUserDelta: string;
}

export interface Options {
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
  /** dropped: opted out before it left; expired: the gateway was away for a week. */
  state: "waiting" | "sent" | "dropped" | "expired";
  arm: string;
  batch: string;
  id: string;
  /** What the report says, noise included; null until it is decided. */
  ones: number | null;
  epsilon: string;
  delta: string;
  /** When it leaves; null: when the reward is known. */
  dueMs: number | null;
  sentMs?: number;
  outcome?: "accepted" | "malformed" | "out_of_range" | "unknown_batch" | "late";
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
  /** What left this browser, what waits, and what it costs. */
  ledger(): Ledger;
  /** Report nothing from now on; what waits is dropped. */
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
export function connect(url: string, experiment: string, options?: Options): Promise<Bandit>;
