"""Admission tokens, one core: verify, sign and blind, each against the bare operation of a library.

Costs are seconds of CPU for one token, so 1 / cost is tokens a second and core.
"""

import secrets
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import process_time

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from producers.tokens import (
    Issuer,
    KeyFiles,
    MemoryTokenStore,
    blind,
    finalize,
    generate,
    message,
    read_public_key,
)
from stream_app.wire.token import HASH, PADDING, Verifier, encode_token
from tests.benchmarks.harness import Measure, Outcome, compare

BATCH = "1.ajBGkDPu9CTkwObEvtE2O9S1QY4wybwxRAI0rBmNT5o"
# Of each side in a round: about half a second.
_VERIFIED = 5_000
_SIGNED = 60
_IN_NODE = 200
_MODULE = Path(__file__).parents[2] / "producers" / "web" / "tokens.js"

# The clock runs inside, so that nobody pays for the start of node. `peer`: what any page
# with a signature would do, import the key and verify.
_SCRIPT = """
import { blind, finalize, message } from "%(module)s";
const [side, times, pem, batch, id, secret, signature, token] = process.argv.slice(1);
const pss = { name: "RSA-PSS", hash: "SHA-384", saltLength: 48 };
const der = Buffer.from(pem.replace(/-----.*?-----|\\s/g, ""), "base64");
const bytes = Buffer.from(token, "base64url");
const work = {
  async peer() {
    const key = await crypto.subtle.importKey("spki", der, pss, true, ["verify"]);
    if (!await crypto.subtle.verify(pss, key, bytes, message(batch, id))) throw new Error();
  },
  async ours() {
    await blind(pem, batch, id);
    await finalize(pem, batch, id, signature, { secret });
  },
}[side];
for (let i = 0; i < 10; i++) await work();
const before = process.cpuUsage();
for (let i = 0; i < times; i++) await work();
const { user, system } = process.cpuUsage(before);
console.log((user + system) / 1e6 / times);
"""


@dataclass(frozen=True)
class Made:
    """A key, and a token at every step of its way."""

    files: KeyFiles
    issuer: Issuer
    public: RSAPublicKey
    report: bytes
    blinded: bytes
    secret: bytes
    signature: bytes
    token: bytes


def outcomes() -> Iterator[Outcome]:
    """Verify as gateway and shuffle stage do, sign as an issuer, blind and finish as a page."""
    with tempfile.TemporaryDirectory() as folder:
        made = _made(folder)
        yield _verifying(made)
        yield _signing(made)
        yield _in_node(made)


def _made(folder: str) -> Made:
    files = generate(folder, "banners")
    issuer = Issuer({"banners": files.private}, MemoryTokenStore())
    public = read_public_key(files.public, "benchmark")
    report = secrets.token_bytes(16)
    signed = message(BATCH, report)
    blinded, secret = blind(public, signed)
    signature = issuer.sign("banners", "user", blinded)
    token = finalize(public, signed, signature, secret)
    return Made(files, issuer, public, report, blinded, secret, signature, token)


def _verifying(made: Made) -> Outcome:
    verifier = Verifier("banners", [made.public])
    signed = message(BATCH, made.report)
    text = encode_token(made.token)
    return compare(
        "tokens: verify one from its text, 2048 bits: seconds of CPU",
        "cryptography's verify of the same bytes",
        _each(_VERIFIED, lambda: made.public.verify(made.token, signed, PADDING, HASH)),
        _each(_VERIFIED, lambda: verifier.admits(BATCH, made.report, text)),
        target=1.25,
    )


def _signing(made: Made) -> Outcome:
    key = load_pem_private_key(made.files.private.read_bytes(), password=None)
    assert isinstance(key, RSAPrivateKey)
    signed = message(BATCH, made.report)
    # Python's pow against OpenSSL's: `cryptography` has no private operation without padding.
    return compare(
        "tokens: the issuer signs one, 2048 bits: seconds of CPU",
        "cryptography's sign (not blinded)",
        _each(_SIGNED, lambda: key.sign(signed, PADDING, HASH)),
        _each(_SIGNED, lambda: made.issuer.sign("banners", "user", made.blinded)),
        target=32,
    )


def _in_node(made: Made) -> Outcome:
    arguments = [made.files.public.read_text(), BATCH, made.report.hex()]
    arguments += map(encode_token, (made.secret, made.signature, made.token))
    return compare(
        "tokens: blind and finish one in node: seconds of CPU",
        "WebCrypto's importKey and verify",
        lambda: _node("peer", arguments),
        lambda: _node("ours", arguments),
        target=10,
    )


def _each(times: int, work: Callable[[], object]) -> Measure:
    def measure() -> float:
        start = process_time()
        for _ in range(times):
            work()
        return (process_time() - start) / times

    return measure


def _node(side: str, arguments: list[str]) -> float:
    script = _SCRIPT % {"module": _MODULE.as_uri()}
    command = ["node", "--input-type=module", "-e", script, side, str(_IN_NODE), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return float(done.stdout)
