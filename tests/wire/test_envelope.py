"""Wire records: what goes out comes back, and whatever comes in raises only what is promised."""

import contextlib
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_app.core.window import Delta, LogPosition
from stream_app.errors import InvalidInput
from stream_app.wire.assignment import Assignment, decode_assignment, decode_offer
from stream_app.wire.checkpoint import decode_delta, encode_delta
from stream_app.wire.definition import Definition, decode_definition
from stream_app.wire.sum import decode_sum
from tests.support.json_values import JSON
from tests.support.transcripts import play, spring

DONE = play(spring())


DELTA = Delta("1.x", 3, bytes(32), 7, LogPosition(5, -1), 9)


RECORDS: dict[str, tuple[Callable[[bytes | None], Any], bytes]] = {
    "definition": (decode_definition, Definition(spring(), stopped=True).encode()),
    "assignment": (decode_assignment, Assignment(spring(), DONE.states[1], 4).encode()),
    "offer": (decode_offer, Assignment(spring(), DONE.states[1], 4).encode()),
    "sum": (decode_sum, DONE.sums[0]),
    "delta": (decode_delta, encode_delta(DELTA)),
}


@pytest.mark.parametrize("name", RECORDS)
def test_missing_records_are_invalid(name: str) -> None:
    """A tombstone, nothing, another version, a missing field."""
    decode, good = RECORDS[name]
    raw = orjson.loads(good)
    bad = [None, b"", b"[]", orjson.dumps({**raw, "version": 2})]
    bad += [
        orjson.dumps({k: v for k, v in raw.items() if k != key})
        for key in raw
        if decode is not decode_offer
        and key not in ("guarantee", "estimate")
        and not (name == "assignment" and key == "experiment")
    ]
    for value in bad:
        with pytest.raises(InvalidInput):
            decode(value)


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    found = [path] if path else []
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            found += paths(inner, (*path, key))
    return found


def put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """The value with something else at one place."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = put(copy[path[0]], path[1:], new)
    return copy


@pytest.mark.parametrize("name", RECORDS)
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_parsers_raise_only_invalid_input(name: str, data: st.DataObject) -> None:
    """On any bytes, on any JSON, and on a good record with anything at one of its places."""
    decode, good = RECORDS[name]
    raw = orjson.loads(good)
    kind = data.draw(st.sampled_from(["bytes", "json", "changed"]))
    if kind == "bytes":
        value = data.draw(st.binary(max_size=100))
    elif kind == "json":
        value = orjson.dumps({"version": 1, **dict.fromkeys(raw, data.draw(JSON))})
    else:
        value = orjson.dumps(put(raw, data.draw(st.sampled_from(paths(raw))), data.draw(JSON)))
    with contextlib.suppress(InvalidInput):
        decode(value)
