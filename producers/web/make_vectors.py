"""Writes vectors.json: what a client in any language must compute, made by the Python one.

    python -m producers.web.make_vectors

terms      canonical form, id, and the certified delta, an upper bound: another client's may differ
           by a relative 1e-9, and must not lie below the true delta
refused    terms that a client must not use, and why
tables     the sampling tables of discrete Laplace noise, as the SHA-256 of their entries in
           decimal, one a line
noise      64-bit draws and a reward to a count of ones: draws are used in this order, and as many
           as are needed; 8 random bytes, little-endian, are one draw
reports    a report's exact bytes, and the body in which a device sends it to the gateway
"""

import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from decimal import Decimal
from itertools import product
from pathlib import Path
from struct import pack
from typing import Any

import orjson

from stream_app.core.batch_id import DIGEST_CHARACTERS, SEQUENCE_DIGITS
from stream_app.core.discrete_laplace import laplace_table
from stream_app.core.mechanisms import Mechanism, MechanismName, calibrate
from stream_app.core.promise import Calibration, Promise
from stream_app.core.terms import Limits, Terms, batch_id, canonical, check
from stream_app.errors import ConfigurationError, InvalidInput
from stream_app.wire.report import encode_report

FILE = Path(__file__).with_name("vectors.json")
# epsilon, delta, batch size, honest fraction: every regime of every mechanism, and its edges
_PROMISES = (
    ("1", "0.000001", 2, "1"),
    ("0.5", "0.000001", 1000, "0.9"),
    ("0.1", "0.000000001", 100, "0.5"),
    ("2", "0.0001", 64, "0.9"),
    ("0.5", "0.000001", 1_000_000, "1"),
    ("0.75", "0.0000001", 1_000_000_000, "0.999"),
    ("0.01", "0.00001", 5000, "0.9"),
)
# Wider than the default ones: the noise is the same computation at any eps.
LIMITS = Limits(max_epsilon=Decimal(2), max_honest_fraction=Decimal(1))
# Names that languages escape, encode or normalise in different ways.
_ARMS = ("spring", "été", 'a "quoted" \\ arm', "春\t\u2028🌸")


def mechanisms() -> Iterator[Mechanism]:
    """One of each kind that can keep it, for every promise."""
    for epsilon, delta, size, honest in _PROMISES:
        promise = Promise(Decimal(epsilon), Decimal(delta), size, Decimal(honest))
        for name, calibration in product(reversed(MechanismName), reversed(Calibration)):
            with suppress(ConfigurationError):
                yield calibrate(promise, name, calibration)


def _terms() -> list[Terms]:
    return [
        Terms("vectors", number, _ARMS[number % 4], mechanism, 1000 * number)
        for number, mechanism in enumerate(mechanisms())
    ]


def make() -> dict[str, Any]:
    """All vectors."""
    draws = random.Random(7)  # noqa: S311 - a test's draws, never a person's
    return {
        "version": 1,
        "terms": [
            {
                "terms": terms.as_json(),
                "canonical": canonical(terms.as_json()).decode(),
                "id": terms.batch_id,
                "certified_delta": terms.mechanism.certified_delta,
                "bits": terms.mechanism.max_ones,
            }
            for terms in _terms()
        ],
        "refused": list(_refused()),
        "tables": list(_tables()),
        "noise": [_noise(terms, draws) for terms in _terms() if terms.mechanism.max_ones < 10_000],
        "reports": list(_reports()),
    }


def _refused() -> Iterator[dict[str, Any]]:
    laplace = _default_batch(MechanismName.DISCRETE_LAPLACE)
    binomial = _default_batch(MechanismName.BINOMIAL)
    changes: list[tuple[str, dict[str, Any], Callable[[dict[str, Any]], object], bool]] = [
        ("id", laplace, lambda t: t.update(attribution_ms=5), False),
        ("clip", laplace, lambda t: t["parameters"].update(clip=t["parameters"]["clip"] - 1), True),
        ("honest", laplace, lambda t: t.update(honest_fraction="0.01"), True),
        ("steps", laplace, lambda t: t.update(epsilon="0.009"), True),
        ("table", laplace, lambda t: t["parameters"].update(clip=1 << 15), True),
        ("clip of 1e7", laplace, lambda t: t["parameters"].update(clip=10**7), True),
        ("numerator", binomial, lambda t: t["parameters"].update(success_numerator="12345"), True),
        ("certain", binomial, lambda t: t["parameters"].update(success_numerator="0"), True),
        ("trials", binomial, lambda t: t["parameters"].update(trials=1), True),
        ("delta", laplace, lambda t: t.update(delta="0.0000000001"), True),
        ("epsilon limit", laplace, lambda t: t.update(epsilon="2.00000000000000000000001"), True),
        ("delta limit", laplace, lambda t: t.update(delta="0.001"), True),
        ("window limit", laplace, lambda t: t.update(attribution_ms=8 * 24 * 3600 * 1000), True),
        ("exponent", laplace, lambda t: t.update(epsilon="1e-1"), True),
        ("trailing zero", laplace, lambda t: t.update(epsilon="0.50"), True),
        ("number", laplace, lambda t: t.update(epsilon=0.5), True),
        ("extra key", laplace, lambda t: t.update(extra=1), True),
        ("missing key", laplace, lambda t: t.pop("arm"), True),
        ("empty arm", laplace, lambda t: t.update(arm=""), True),
        ("mechanism", laplace, lambda t: t.update(mechanism="none"), True),
        ("calibration", laplace, lambda t: t.update(calibration="paper"), True),
        ("size", laplace, lambda t: t.update(batch_size=2), True),
        ("table bits", laplace, lambda t: t["parameters"].update(table_bits=32), True),
        ("version", laplace, lambda t: t.update(version=2), True),
    ]
    for why, original, change, rehash in changes:
        terms = orjson.loads(orjson.dumps(original))
        stated = batch_id(terms)
        change(terms)
        if rehash:
            stated = batch_id(terms)
        yield {"why": why, "batch": stated, "terms": terms}


def _default_batch(name: MechanismName) -> dict[str, Any]:
    """The terms of the README's batch of 1000 users, with the least noise of this kind."""
    return next(
        terms.as_json()
        for terms in _terms()
        if terms.mechanism.name == name
        and terms.mechanism.promise.batch_size == 1000
        and terms.mechanism.calibration is Calibration.EXACT
    )


def accepts(batch: str, terms: object) -> bool:
    """Whether Python's client would use these terms, with the vectors' limits."""
    try:
        check(batch, terms, LIMITS)
    except InvalidInput:
        return False
    return True


def _tables() -> Iterator[dict[str, Any]]:
    for honest, epsilon, clip, bits in (
        (1, "1", 14, 64),
        (900, "0.5", 26, 64),
        (999_000_000, "0.75", 40, 128),
        (50, "0.01", 2000, 64),
        (7, "123.456", 3, 128),
    ):
        table = laplace_table(honest, Decimal(epsilon), clip, bits)
        lines = "\n".join(map(str, table)).encode()
        yield {
            "honest": honest,
            "epsilon": epsilon,
            "clip": clip,
            "bits": bits,
            "first": str(table[0]),
            "sha256": hashlib.sha256(lines).hexdigest(),
        }


def _noise(terms: Terms, source: random.Random) -> dict[str, Any]:
    used: list[int] = []
    rewards = [0, 1, 0.25, 1, 0, 0.999]
    extremes = iter([0, 2**64 - 1])

    def entropy(size: int) -> bytes:
        block = [next(extremes, source.getrandbits(64)) for _ in range(size // 8)]
        used.extend(block)
        return pack(f"<{len(block)}Q", *block)

    sampler = terms.mechanism.sampler(entropy)
    ones = [sampler.encode(reward) for reward in rewards]
    needed = _draws_used(terms.mechanism, rewards)
    return {
        "terms": terms.as_json(),
        "draws": [str(draw) for draw in used[:needed]],
        "rewards": rewards,
        "ones": ones,
    }


def _draws_used(mechanism: Mechanism, rewards: list[float]) -> int:
    """So many for each share, and one more where a reward is rounded at random."""
    taken: list[int] = []

    def zeros(size: int) -> bytes:
        taken.append(size)
        return bytes(size)

    mechanism.many_shares(zeros)(1)
    return len(rewards) * sum(taken) // 8 + sum(0 < reward < 1 for reward in rewards)


def _reports() -> Iterator[dict[str, Any]]:
    for sequence, report_id, ones in (
        (0, bytes(16), 0),
        (12, bytes(range(16)), 30),
        (10**SEQUENCE_DIGITS - 1, b"\xff" * 16, (1 << 32) + 1),
    ):
        digest = "A" * (DIGEST_CHARACTERS - 1) + "_"
        batch = f"{sequence}.{digest}"
        record = encode_report(batch, report_id, ones).decode()
        yield {
            "batch": batch,
            "id": report_id.hex(),
            "ones": ones,
            "record": record,
            "body": f'{{"experiment":"vectors","reports":[{record}]}}',
        }


def dump() -> bytes:
    """The file's content."""
    return orjson.dumps(make(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


if __name__ == "__main__":
    FILE.write_bytes(dump())
