"""Rows in columns, and the formats that are one JSON object a line: JSON lines and DSJSON.

Every column comes as codes and the different values behind them, so that a value is looked at
once per chunk.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np
import orjson
from numpy.typing import NDArray

from producers.replay.files import Source
from stream_app.errors import ConfigurationError, InvalidInput

ROWS = 65_536


@dataclass(frozen=True, slots=True)
class Column:
    """Codes into the different values; -1 where there is none."""

    codes: NDArray[np.int32]
    values: list[Any]

    def map(self, function: Callable[[Any], Any], absent: Any, dtype: Any) -> NDArray[Any]:
        """Each row's value through a function that is called once per different value."""
        table = np.array([*(function(value) for value in self.values), absent], dtype=dtype)
        mapped: NDArray[Any] = table[self.codes]
        return mapped


@dataclass(frozen=True, slots=True)
class Table:
    """Some consecutive rows of one file."""

    columns: dict[str, Column]
    numbers: NDArray[np.int64]
    # Rows that cannot be read: (reason, number).
    unreadable: list[tuple[str, int]] = field(default_factory=list)


def encode(values: Sequence[Any]) -> Column:
    """A column from plain values."""
    codes: dict[Any, int] = {}
    found = np.empty(len(values), dtype=np.int32)
    for i, value in enumerate(values):
        key = value if value is None or isinstance(value, str) else (type(value), repr(value))
        found[i] = -1 if key is None or key == "" else codes.setdefault(key, len(codes))
    different: list[Any] = [None] * len(codes)
    for i, code in enumerate(found.tolist()):
        if code >= 0:
            different[code] = values[i]
    return Column(found, different)


def present(source: Source, named: dict[str, str], header: Sequence[str]) -> None:
    """Refuse a file that lacks a column, and say which ones it has."""
    for name, option in named.items():
        if name not in header:
            listed = ", ".join(header[:12]) + (", ..." if len(header) > 12 else "")
            raise ConfigurationError(
                f"{option} {name}: {source.name} has no such column; it has {listed}"
            )


def json_lines(
    source: Source, stream: IO[bytes], named: dict[str, str], *, dsjson: bool
) -> Iterator[Table]:
    """The rows of JSON lines; of DSJSON, the decisions that can be learned from."""
    rows: list[dict[str, Any]] = []
    numbers: list[int] = []
    unreadable: list[tuple[str, int]] = []
    checked = False

    def table() -> Table:
        columns = {name: encode([_at(row, name) for row in rows]) for name in named}
        return Table(columns, np.array(numbers, dtype=np.int64), unreadable)

    for number, line in enumerate(stream, start=1):
        row = json_object(line)
        if row is not None and dsjson:
            row = decision(row)
        if row is None:
            reason = "blank line" if not line.strip() else "not a JSON object"
            unreadable.append((reason, number))
            continue
        if not row:
            unreadable.append(("not a decision", number))
            continue
        rows.append(row)
        numbers.append(number)
        if len(rows) == ROWS:
            checked = checked or _some_present(source, named, rows)
            yield table()
            rows = []
            numbers = []
            unreadable = []
    if rows and not checked:
        _some_present(source, named, rows)
    yield table()


def _some_present(source: Source, named: dict[str, str], rows: list[dict[str, Any]]) -> bool:
    """A key may be absent from some records, but not from all of them."""
    for name, option in named.items():
        if all(_at(row, name) is None for row in rows):
            present(source, {name: option}, list(rows[0]))
            raise InvalidInput(f"{option} {name}: {source.name} has no value there")
    return True


def json_object(line: bytes) -> dict[str, Any] | None:
    """A line's object; None if it is not one."""
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def _at(row: dict[str, Any], path: str) -> Any:
    """A key's value; dots reach into inner objects."""
    if path in row:
        return row[path]
    value: Any = row
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def decision(row: dict[str, Any]) -> dict[str, Any]:
    """What a DSJSON event says of its decision; empty for one that is not to be learned from."""
    actions = row.get("a")
    chances = row.get("p")
    cost = row.get("_label_cost")
    if row.get("_skipLearn") or not isinstance(cost, int | float) or not actions:
        return {}
    action = row.get("_label_Action", actions[0] if isinstance(actions, list) else None)
    chance = row.get("_label_probability", chances[0] if isinstance(chances, list) else None)
    return {**row, "action": action, "probability": chance, "reward": 0.0 - cost}
