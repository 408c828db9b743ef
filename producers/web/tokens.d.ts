/** PEM, base64 of its DER, DER (SubjectPublicKeyInfo), or a JWK; it stands in the page. */
export type PublicKey = string | ArrayBuffer | Uint8Array | JsonWebKey;

/** Plain strings, so that they can be kept with the report until the token is there. */
export interface Blinding {
  /** What the issuer gets; base64url. */
  blinded: string;
  /** What undoes it; base64url. It links token and request: forget it when the token is there. */
  secret: string;
}

/** The issuer answered something else than 200: `status` says what. */
export interface TokenError extends Error {
  /** 401: not logged in; 404: no such experiment; 409: had one; 422: reload the page. */
  status?: number;
}

/** What a token signs. */
export function message(batchId: string, reportId: string): Uint8Array;

/** A new blinding; another one is not signed for the same person, so keep it until it is done. */
export function blind(publicKey: PublicKey, batchId: string, reportId: string): Promise<Blinding>;

/** The token's text; rejects if the signature is not one of this key. */
export function finalize(
  publicKey: PublicKey,
  batchId: string,
  reportId: string,
  signature: string,
  blinding: Pick<Blinding, "secret">,
): Promise<string>;

/** By this the issuer finds the key that the page pins. */
export function keyId(publicKey: PublicKey): Promise<string>;

/** Ask the issuer, with its cookies; `kept` is what `blind` gave before, to ask again. */
export function token(
  issuerUrl: string,
  experiment: string,
  batchId: string,
  reportId: string,
  publicKey: PublicKey,
  kept?: Blinding,
): Promise<string>;

/** As `blind`, of any bytes; `random` fills the salt, then the factor (for test vectors). */
export function blindMessage(
  publicKey: PublicKey,
  message: Uint8Array,
  random?: (bytes: Uint8Array) => Uint8Array,
): Promise<Blinding>;

/** As `finalize`, of any bytes. */
export function finalizeMessage(
  publicKey: PublicKey,
  message: Uint8Array,
  signature: string,
  secret: string,
): Promise<string>;
