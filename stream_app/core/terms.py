"""What a batch promises: its canonical form, its self-certifying id, and the check of both.

Client and shuffle stage make the same check before they touch a reward or a report, so that
whoever writes assignments cannot weaken the noise (producers/PROTOCOL.md, "Terms"). The canonical
form is JSON as RFC 8785 would print it: sorted keys, no spaces, UTF-8, and no number that a
language could print in two ways: integers below 2**53, and decimal strings for all else.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

import orjson

from stream_app.core.batch_id import format_batch_id
from stream_app.core.mechanisms import Mechanism, MechanismName, rebuild
from stream_app.core.promise import Calibration, Promise, plain
from stream_app.errors import ConfigurationError, InvalidInput

# Part of what is hashed: other terms would be another version, and other ids.
VERSION = 1
# Up to here JSON's numbers are exact in every language.
MAX_INTEGER = 2**53 - 1
# Kinds of noise that are certified for one assignment: its batches have one size, and so one kind.
MOST_CERTIFICATES = 4
# Terms of one assignment that are refused before the rest is not read: an honest agent has none.
MOST_REFUSED = 16
# One spelling for each number: no sign, exponent or trailing zero; enough digits for MIN_DELTA.
_DECIMAL = re.compile(r"(0|[1-9][0-9]{0,30})(\.[0-9]{0,60}[1-9])?")
# Exactly these: a key that somebody does not know could weaken the promise.
_KEYS = frozenset(
    {
        "arm",
        "attribution_ms",
        "batch_size",
        "calibration",
        "delta",
        "epsilon",
        "experiment",
        "honest_fraction",
        "mechanism",
        "parameters",
        "sequence",
        "version",
    }
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client or a shuffle stage accepts at most, whatever the agent asks for."""

    # The largest eps of a batch that is accepted, whatever the agent asks for.
    max_epsilon: Decimal = Decimal(1)
    # The largest delta of a batch.
    max_delta: Decimal = Decimal("0.0001")
    # The largest share of a batch that may be relied upon to add its noise.
    max_honest_fraction: Decimal = Decimal("0.9")
    # The largest number of users in a batch.
    max_batch_size: int = 1_000_000_000
    # The longest attribution window.
    max_attribution_ms: int = 7 * 24 * 3600 * 1000
    # The least number of users in a batch: whoever can forge reports must forge all but one of
    # these to see one user's noisy reward alone.
    min_batch_size: int = 2


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of one batch."""

    experiment: str
    sequence: int
    arm: str
    mechanism: Mechanism
    attribution_ms: int = 0

    def as_json(self) -> dict[str, Any]:
        """The terms as the wire carries them."""
        promise = self.mechanism.promise
        return {
            "arm": self.arm,
            "attribution_ms": self.attribution_ms,
            "batch_size": promise.batch_size,
            "calibration": str(self.mechanism.calibration),
            "delta": plain(promise.delta),
            "epsilon": plain(promise.epsilon),
            "experiment": self.experiment,
            "honest_fraction": plain(promise.honest_fraction),
            "mechanism": str(self.mechanism.name),
            "parameters": {
                key: str(value) if key in self.mechanism.wide_parameters else value
                for key, value in self.mechanism.parameters.items()
            },
            "sequence": self.sequence,
            "version": VERSION,
        }

    @property
    def batch_id(self) -> str:
        """The id that these terms hash to."""
        return batch_id(self.as_json())


def canonical(terms: Mapping[str, Any]) -> bytes:
    """The bytes that are hashed."""
    return orjson.dumps(terms, option=orjson.OPT_SORT_KEYS)


def batch_id(terms: Mapping[str, Any]) -> str:
    """The id that terms hash to."""
    return format_batch_id(terms["sequence"], canonical(terms))


def parse(raw: object) -> Terms:
    """Terms from the wire; every field is checked. Raises InvalidInput."""
    if (
        not isinstance(raw, dict)
        or set(raw) != _KEYS
        or type(raw["version"]) is not int
        or raw["version"] != VERSION
    ):
        raise InvalidInput(f"terms must have exactly the keys {', '.join(sorted(_KEYS))}")
    try:
        name = MechanismName(raw["mechanism"])
        mechanism = _mechanism(
            name,
            Calibration(raw["calibration"]),
            _decimal(raw, "epsilon"),
            _decimal(raw, "delta"),
            _integer(raw, "batch_size"),
            _decimal(raw, "honest_fraction"),
            _parameters(name, raw["parameters"]),
        )
    except (ConfigurationError, ValueError) as error:
        raise InvalidInput(f"terms: {error}") from None
    terms = Terms(
        _text(raw, "experiment"),
        _integer(raw, "sequence"),
        _text(raw, "arm"),
        mechanism,
        _integer(raw, "attribution_ms"),
    )
    if terms.as_json() != raw:
        raise InvalidInput("terms are not in canonical form")
    return terms


def _parameters(name: MechanismName, stated: object) -> tuple[tuple[str, int], ...]:
    wanted = name.family.parameter_names
    if not isinstance(stated, dict) or set(stated) != wanted:
        raise InvalidInput(f"parameters of {name} must be {sorted(wanted)}")
    wide = name.family.wide_parameters
    return tuple(
        (key, int(_decimal(stated, key)) if key in wide else _integer(stated, key))
        for key in stated
    )


@lru_cache(maxsize=1024)
def _mechanism(
    name: MechanismName,
    calibration: Calibration,
    epsilon: Decimal,
    delta: Decimal,
    batch_size: int,
    honest_fraction: Decimal,
    parameters: tuple[tuple[str, int], ...],
) -> Mechanism:
    """Remembered: thousands of experiments have the same settings."""
    promise = Promise(epsilon, delta, batch_size, honest_fraction)
    return rebuild(name, calibration, promise, dict(parameters))


class Checks:
    """The checks of the terms that one assignment lists: bounded work, whatever stands there.

    Client and shuffle stage check on the loop that keeps them in their group, and whoever writes
    assignments is not trusted. A single check is bounded by what `rebuild` admits.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._certified: set[Mechanism] = set()
        self._refused = 0

    def check(self, stated_id: str, raw: object) -> Terms:
        """The terms, if all holds. Raises InvalidInput if any part fails, or costs too much."""
        name = f"batch {stated_id[:80]}"
        if self._refused >= MOST_REFUSED:
            raise InvalidInput(f"{name}: not read, {MOST_REFUSED} of its assignment were refused")
        try:
            terms = parse(raw)
            if (hashed := terms.batch_id) != stated_id:
                raise InvalidInput(f"{name}: its terms hash to {hashed}")
            _within(name, terms, self._limits)
            self._certify(name, terms.mechanism)
        except InvalidInput:
            self._refused += 1
            raise
        return terms

    def _certify(self, name: str, mechanism: Mechanism) -> None:
        """Whether the noise keeps the promise. Raises InvalidInput."""
        if mechanism not in self._certified and len(self._certified) >= MOST_CERTIFICATES:
            raise InvalidInput(
                f"{name}: not certified, its assignment has more than {MOST_CERTIFICATES} kinds of "
                "noise"
            )
        self._certified.add(mechanism)
        try:
            certified = mechanism.certified_delta
        except (ArithmeticError, ValueError) as error:
            raise InvalidInput(f"{name}: cannot be certified: {error}") from None
        if certified > mechanism.promise.delta:
            raise InvalidInput(
                f"{name}: its noise gives delta = {certified:.3g}, "
                f"more than the stated {plain(mechanism.promise.delta)}"
            )


def check(stated_id: str, raw: object, limits: Limits) -> Terms:
    """The check that client and shuffle stage both make. Raises InvalidInput if any part fails."""
    return Checks(limits).check(stated_id, raw)


def _within(name: str, terms: Terms, limits: Limits) -> None:
    promise = terms.mechanism.promise
    for setting, value, most in (
        ("epsilon", promise.epsilon, limits.max_epsilon),
        ("delta", promise.delta, limits.max_delta),
        ("honest_fraction", promise.honest_fraction, limits.max_honest_fraction),
        ("batch_size", promise.batch_size, limits.max_batch_size),
        ("attribution_ms", terms.attribution_ms, limits.max_attribution_ms),
    ):
        if value > most:
            raise InvalidInput(
                f"{name}: {setting} = {value} is above the limit of {most} "
                f"(setting limits.max_{setting})"
            )
    if promise.batch_size < limits.min_batch_size:
        raise InvalidInput(
            f"{name}: batch_size = {promise.batch_size} is below the limit of "
            f"{limits.min_batch_size} (setting limits.min_batch_size)"
        )


def _encodable(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _text(raw: Mapping[str, Any], key: str) -> str:
    value = raw[key]
    if not isinstance(value, str) or not 0 < len(value) <= 200 or not _encodable(value):
        raise InvalidInput(f"terms: {key} must be a text of 1 to 200 characters")
    return value


def _integer(raw: Mapping[str, Any], key: str) -> int:
    value = raw[key]
    if type(value) is not int or not 0 <= value <= MAX_INTEGER:
        raise InvalidInput(f"terms: {key} must be a whole number from 0 to {MAX_INTEGER}")
    return value


def _decimal(raw: Mapping[str, Any], key: str) -> Decimal:
    value = raw[key]
    if not isinstance(value, str) or not _DECIMAL.fullmatch(value):
        raise InvalidInput(f"terms: {key} must be a decimal string such as '0.5'")
    return Decimal(value)
