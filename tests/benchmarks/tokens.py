"""Admission tokens, one core: verify, sign and blind, each against the bare operation of a library.

Costs are seconds of CPU for one token, so 1 / cost is tokens a second and core.
"""

import secrets
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import process_time

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from producers.tokens import (
    Issuer,
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


def outcomes() -> Iterator[Outcome]:
    """Verify as gateway and shuffle stage do, sign as an issuer, blind and finish as a page."""
    with tempfile.TemporaryDirectory() as folder:
        files = generate(folder, "banners")
        issuer = Issuer({"banners": files.private}, MemoryTokenStore())
        public = read_public_key(files.public, "benchmark")
        verifier = Verifier("banners", [public])
        report = secrets.token_bytes(16)
        signed = message(BATCH, report)
        blinded, secret = blind(public, signed)
        signature = issuer.sign("banners", "user", blinded)
        token = finalize(public, signed, signature, secret)
        text = encode_token(token)
        yield compare(
            "tokens: verify one from its text, 2048 bits: seconds of CPU",
            "cryptography's verify of the same bytes",
            _each(_VERIFIED, lambda: public.verify(token, signed, PADDING, HASH)),
            _each(_VERIFIED, lambda: verifier.admits(BATCH, report, text)),
            target=1.25,
        )
        # Python's pow against OpenSSL's: no library for Python has the operation without padding.
        key = load_pem_private_key(files.private.read_bytes(), password=None)
        assert isinstance(key, RSAPrivateKey)
        yield compare(
            "tokens: the issuer signs one, 2048 bits: seconds of CPU",
            "cryptography's sign (not blinded)",
            _each(_SIGNED, lambda: key.sign(signed, PADDING, HASH)),
            _each(_SIGNED, lambda: issuer.sign("banners", "user", blinded)),
            target=32,
        )
        arguments = [files.public.read_text(), BATCH, report.hex()]
        arguments += map(encode_token, (secret, signature, token))
        yield compare(
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
