"""Which columns of a log mean what, and how their values are read. Knows no file.

A value comes as text (CSV) or as what JSON and Parquet hold. Values are read once per different
value of a chunk, so nothing here is a hot path.
"""

import contextlib
import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from enum import StrEnum
from typing import Any

from stream_app.errors import ConfigurationError

_MISSING = frozenset({"", "na", "n/a", "nan", "null", "none"})
_WORDS = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}
_FILTER = re.compile(r"(?P<column>[^=!<>]+?)\s*(?P<sign>!=|<=|>=|=|<|>)\s*(?P<value>.*)", re.DOTALL)
_SIGNS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Format(StrEnum):
    """How a log is written."""

    AUTO = "auto"
    CSV = "csv"
    JSONL = "jsonl"
    PARQUET = "parquet"
    OBD = "obd"
    DSJSON = "dsjson"


@dataclass(frozen=True, slots=True)
class Filter:
    """Rows to keep: a column's value is one of some, none of some, or compares with a number."""

    column: str
    sign: str
    values: tuple[str, ...]

    def keeps(self, value: Any) -> bool:
        """Whether a row with this value stays."""
        if self.sign in ("=", "!="):
            return (text(value) in self.values) == (self.sign == "=")
        number = _number(value)
        return number is not None and _SIGNS[self.sign](number, float(self.values[0]))


def parse_filter(given: str) -> Filter:
    """`COLUMN=VALUE,VALUE`, `COLUMN!=VALUE`, `COLUMN<NUMBER`. Raises ConfigurationError."""
    found = _FILTER.fullmatch(given)
    if found is None:
        raise ConfigurationError(
            f"--where {given!r}: must be COLUMN=VALUE[,VALUE...], COLUMN!=VALUE or COLUMN<NUMBER "
            "(also <=, >, >=)"
        )
    sign = found["sign"]
    value = found["value"]
    if sign in _SIGNS and _number(value) is None:
        raise ConfigurationError(f"--where {given!r}: {value!r} must be a number after {sign}")
    values = (value,) if sign in _SIGNS else tuple(part.strip() for part in value.split(","))
    return Filter(found["column"].strip(), sign, values)


@dataclass(frozen=True, slots=True)
class Columns:
    """The names of the columns that are read; None: not there, or not asked for."""

    arm: str | None = None
    reward: str | None = None
    time: str | None = None
    user: str | None = None
    propensity: str | None = None
    filters: tuple[Filter, ...] = ()

    def named(self) -> dict[str, str]:
        """Every column that must be there, with the option that asks for it."""
        options: dict[str | None, str] = {
            self.arm: "--arm-column",
            self.reward: "--reward-column",
            self.time: "--time-column",
            self.user: "--user-column",
            self.propensity: "--propensity-column",
            **{kept.column: "--where" for kept in self.filters},
        }
        return {name: option for name, option in options.items() if name is not None}

    def for_format(self, form: Format) -> "Columns":
        """With the names that a known format gives, where none was asked for."""
        known = _KNOWN.get(form, Columns("arm", "reward"))
        return replace(
            self,
            arm=self.arm or known.arm,
            reward=self.reward or known.reward,
            time=self.time or known.time,
            propensity=self.propensity or known.propensity,
        )


_KNOWN = {
    Format.OBD: Columns("item_id", "click", "timestamp", None, "propensity_score"),
    # Names that `tables` gives to what a decision holds.
    Format.DSJSON: Columns("action", "reward", "Timestamp", None, "probability"),
}


def text(value: Any) -> str | None:
    """A value as text, None if it is missing: 3 and 3.0 are both '3'."""
    if value is None:
        return None
    if isinstance(value, float):
        return None if math.isnan(value) else format(value, ".17g")
    return str(value)


def reward(value: Any) -> float | None:
    """A reward as a number, None if there is none in it; its range is not checked here."""
    if isinstance(value, str):
        word = value.strip().lower()
        if word in _WORDS:
            return _WORDS[word]
    return _number(value)


def missing(value: Any) -> bool:
    """Whether a value is absent, in any of the usual spellings."""
    return value is None or (len(word := str(value)) < 6 and word.strip().lower() in _MISSING)


def seconds(value: Any) -> float | None:
    """A time as seconds since 1970 UTC: a number (s, ms, us or ns), ISO 8601, or a date."""
    if isinstance(value, str) and "-" in value[1:]:
        with contextlib.suppress(ValueError):
            value = datetime.fromisoformat(value.strip())
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC).timestamp()
    number = _number(value)
    # Seconds reach 1e11 in the year 5138; larger ones are in a smaller unit.
    while number is not None and abs(number) >= 1e11:
        number /= 1000
    return number


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
