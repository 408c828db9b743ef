"""One JSON object a line: JSON lines, and DSJSON, the decisions that Vowpal Wabbit logs."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import orjson

from producers.replay.columns import Columns
from producers.replay.files import Source, opened
from producers.replay.log_format import LogFormat
from producers.replay.records import ROWS, Table, encode, require_columns
from stream_app.errors import InvalidInput

_Object = dict[str, Any]  # what orjson makes of a JSON object


def _read(
    source: Source, named: dict[str, str], decoded: Callable[[_Object], _Object] | None = None
) -> Iterator[Table]:
    """The rows; `decoded` makes a row of an object, an empty one if there is none in it."""
    rows: list[_Object] = []
    numbers: list[int] = []
    unreadable: list[tuple[str, int]] = []
    checked = False

    def table() -> Table:
        columns = {name: encode([_at(row, name) for row in rows]) for name in named}
        return Table(columns, np.array(numbers, dtype=np.int64), unreadable)

    with opened(source) as stream:
        for number, line in enumerate(stream, start=1):
            row = _object(line)
            if row is not None and decoded is not None:
                row = decoded(row)
            if not row:
                unreadable.append((_why_unreadable(line, row), number))
                continue
            rows.append(row)
            numbers.append(number)
            if len(rows) == ROWS:
                if not checked:
                    _require_values(source, named, rows)
                    checked = True
                yield table()
                rows = []
                numbers = []
                unreadable = []
        if rows and not checked:
            _require_values(source, named, rows)
        yield table()


def _why_unreadable(line: bytes, row: _Object | None) -> str:
    if row is not None:
        return "not a decision"
    return "not a JSON object" if line.strip() else "blank line"


def _require_values(source: Source, named: dict[str, str], rows: list[_Object]) -> None:
    """A key may be absent from some records, but not from all of them."""
    for name, option in named.items():
        if all(_at(row, name) is None for row in rows):
            require_columns(source, {name: option}, list(rows[0]))
            raise InvalidInput(f"{option} {name}: {source.name} has no value there")


def _object(line: bytes) -> _Object | None:
    """A line's object; None if it is not one."""
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def _at(row: _Object, path: str) -> Any:
    """A key's value; dots reach into inner objects."""
    if path in row:
        return row[path]
    value: Any = row
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _first_object(source: Source) -> _Object:
    with opened(source) as stream:
        return _object(stream.readline()) or {}


def _keys(source: Source) -> list[str]:
    """Those of the first record."""
    return list(_first_object(source))


def _decision(event: _Object) -> _Object:
    """What a DSJSON event says of its decision; empty for one that is not to be learned from."""
    actions = event.get("a")
    chances = event.get("p")
    cost = event.get("_label_cost")
    if event.get("_skipLearn") or not isinstance(cost, int | float) or not actions:
        return {}
    action = event.get("_label_Action", actions[0] if isinstance(actions, list) else None)
    chance = event.get("_label_probability", chances[0] if isinstance(chances, list) else None)
    return {**event, "action": action, "probability": chance, "reward": 0.0 - cost}


def _read_decisions(source: Source, named: dict[str, str]) -> Iterator[Table]:
    return _read(source, named, _decision)


def _decision_keys(source: Source) -> list[str]:
    return list(_decision(_first_object(source)))


def _numbered_arm(arm: str, arms: Sequence[str]) -> str:
    """Actions are numbered from 1, in the order of the experiment's arms."""
    if not arm.isdigit():
        return arm
    number = int(arm)
    return arms[number - 1] if 0 < number <= len(arms) else arm


JSONL = LogFormat(
    "jsonl",
    "JSON lines",
    _read,
    _keys,
    endings=(".jsonl", ".ndjson", ".json"),
    first_bytes=b"{",
)

DSJSON = LogFormat(
    "dsjson",
    "Vowpal Wabbit; action n is the experiment's n-th arm, the reward is minus the cost",
    _read_decisions,
    _decision_keys,
    dialect=True,
    endings=(".dsjson",),
    # The names that `_decision` gives, and the event's own time.
    columns=Columns("action", "reward", "Timestamp", None, "probability"),
    arm_name=_numbered_arm,
)
