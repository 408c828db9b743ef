"""Rows in columns: what every format gives, chunk by chunk, so that memory stays flat.

Every column comes as codes and the different values behind them, so that a value is looked at
once per chunk. Rows have numbers: the record's position in its file from 1, a CSV's header included
(its line, unless values span lines). Nothing is judged here but whether a row can be read at all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from producers.replay.files import Source
from stream_app.errors import ConfigurationError

# Of a table, where the format lets us choose: some MB of Python values, and few calls of numpy.
ROWS = 65_536
_LISTED = 12  # columns in a message that is to stay one line


@dataclass(frozen=True, slots=True)
class Column:
    """Codes into the different values; -1 where there is none."""

    codes: NDArray[np.int32]
    values: list[Any]

    def map(self, function: Callable[[Any], Any], absent: Any, dtype: Any) -> NDArray[Any]:
        """Each row's value through a function that is called once per different value."""
        # A code of -1 reads the last entry.
        table = np.array([*(function(value) for value in self.values), absent], dtype=dtype)
        mapped: NDArray[Any] = table[self.codes]
        return mapped


@dataclass(frozen=True, slots=True)
class Table:
    """Some consecutive rows of one file."""

    columns: dict[str, Column]
    numbers: NDArray[np.int64]
    # Rows that cannot be read: (reason, number).
    unreadable: list[tuple[str, int]]


def encode(values: Sequence[Any]) -> Column:
    """A column from plain values."""
    codes: dict[Any, int] = {}
    found = np.empty(len(values), dtype=np.int32)
    for i, value in enumerate(values):
        # With its type, for 1, 1.0 and True are one key of a dict.
        key = value if value is None or isinstance(value, str) else (type(value), repr(value))
        found[i] = -1 if key is None or key == "" else codes.setdefault(key, len(codes))
    different: list[Any] = [None] * len(codes)
    for i, code in enumerate(found.tolist()):
        if code >= 0:
            different[code] = values[i]
    return Column(found, different)


def require_columns(source: Source, named: dict[str, str], header: Sequence[str]) -> None:
    """Refuse a file that lacks a column, and say which ones it has."""
    for name, option in named.items():
        if name not in header:
            listed = ", ".join(header[:_LISTED]) + (", ..." if len(header) > _LISTED else "")
            raise ConfigurationError(
                f"{option} {name}: {source.name} has no such column; it has {listed}"
            )


def wrong_width(numbers: Sequence[int]) -> list[tuple[str, int]]:
    """Rows that have more or fewer values than the header, as a table's unreadable ones."""
    return [("wrong number of columns", number) for number in numbers]
