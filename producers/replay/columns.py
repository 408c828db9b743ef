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
from typing import Any

from stream_app.errors import ConfigurationError

# The spellings that spreadsheets, SQL, R, pandas and JSON have for an absent value.
_MISSING = frozenset({"", "na", "n/a", "nan", "null", "none"})
# Longer texts are not looked at: the longest spelling has 4 letters, and may have one blank.
_LONGEST_MISSING = 5
# What databases write for a reward that is 0 or 1.
_WORDS = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}
# The column ends at the first sign; what stands behind the sign may hold others.
_FILTER = re.compile(r"(?P<column>[^=!<>]+?)\s*(?P<sign>!=|<=|>=|=|<|>)\s*(?P<value>.*)", re.DOTALL)
# Those that compare numbers; = and != compare texts.
_SIGNS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
# Seconds reach this in the year 5138; larger numbers are in a smaller unit.
_LARGEST_S = 1e11


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

    def with_defaults(self, defaults: "Columns") -> "Columns":
        """With a format's names, where none was asked for."""
        return replace(
            self,
            arm=self.arm or defaults.arm,
            reward=self.reward or defaults.reward,
            time=self.time or defaults.time,
            propensity=self.propensity or defaults.propensity,
        )


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
    if value is None:
        return True
    word = str(value)
    return len(word) <= _LONGEST_MISSING and word.strip().lower() in _MISSING


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
    while number is not None and abs(number) >= _LARGEST_S:
        number /= 1000
    return number


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
