"""Sums come back as they were written; their numbers are whole and in range."""

from typing import Any

import orjson
import pytest

from stream_app.core.terms import MAX_INTEGER
from stream_app.core.window import LogPosition
from stream_app.errors import InvalidInput
from stream_app.wire.sum import decode_sum
from tests.support.transcripts import play, spring

DONE = play(spring())


def test_sums_come_back() -> None:
    """With the estimate computed again from the total."""
    for value in DONE.sums:
        found = decode_sum(value)
        raw = orjson.loads(value)

        assert (raw["batch"], raw["total"]) == (found.batch_id, found.total)
        assert (raw["digest"], raw["estimate"]) == (found.digest, found.estimate)
        assert LogPosition(**raw["first"]) == found.first
        assert LogPosition(**raw["last"]) == found.last


def put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """The value with something else at one place."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = put(copy[path[0]], path[1:], new)
    return copy


@pytest.mark.parametrize("path", [("total",), ("first", "offset"), ("terms", "batch_size")])
@pytest.mark.parametrize("value", [-2, MAX_INTEGER + 1, 1.5, True, "1", None])
def test_numbers_must_be_whole_and_in_range(path: tuple[str, ...], value: object) -> None:
    """Of a sum's record: no float, no boolean, nothing negative or beyond 2**53."""
    with pytest.raises(InvalidInput):
        decode_sum(orjson.dumps(put(orjson.loads(DONE.sums[0]), path, value)))
