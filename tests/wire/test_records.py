"""Wire records: what goes out comes back, and whatever comes in raises only what is promised."""

import contextlib
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_app.core.agents import agent_for
from stream_app.core.terms import MAX_INTEGER
from stream_app.core.window import Delta, LogPosition
from stream_app.errors import InvalidInput
from stream_app.wire.assignment import Assignment, decode_assignment, decode_offer, is_defined_so
from stream_app.wire.checkpoint import decode_delta, delta_key, encode_delta
from stream_app.wire.definition import Definition, decode_definition
from stream_app.wire.report import REPORT_BYTES, decode_report, encode_report
from stream_app.wire.sum import decode_sum
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
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from([1e308, -1, 0, 1, 2**53, "running", "arm-0", "0.5", [], {}]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)


def test_a_report_is_these_bytes() -> None:
    """The wire format, pinned: clients in other languages are written from it."""
    batch = "12.bDpO0C0ZhM8gCjXKpbp6bYwdqiPpFHAcr9rbzXcVnMs"
    value = encode_report(batch, bytes(range(16)), 30)

    assert value == (
        b'{"batch":"12.bDpO0C0ZhM8gCjXKpbp6bYwdqiPpFHAcr9rbzXcVnMs",'
        b'"id":"000102030405060708090a0b0c0d0e0f","ones":30}' + b" " * 28
    )
    assert (batch, bytes(range(16)), 30) == decode_report(value)


@given(st.integers(0, 10**15 - 1), st.binary(min_size=16, max_size=16), st.integers(0, 2**32))
def test_all_reports_have_one_length(sequence: int, report_id: bytes, ones: int) -> None:
    """Nothing can be told from a report's size."""
    batch_id = f"{sequence}.{'A' * 43}"
    value = encode_report(batch_id, report_id, ones)

    assert REPORT_BYTES == len(value)
    assert (batch_id, report_id, ones) == decode_report(value)


@settings(max_examples=300)
@given(
    st.binary(max_size=200)
    | JSON.map(orjson.dumps)
    | st.fixed_dictionaries(
        {"batch": JSON, "id": st.just("0" * 32) | JSON, "ones": st.just(1) | JSON}
    ).map(orjson.dumps)
)
def test_a_bad_report_raises_what_the_stage_counts(value: bytes) -> None:
    """Three exceptions, no other, whatever the bytes; what passes has the right types."""
    try:
        batch_id, report_id, ones = decode_report(value)
    except (ValueError, KeyError, TypeError):
        return

    assert (int, 16) == (type(ones), len(report_id))
    assert isinstance(batch_id, str)


@pytest.mark.parametrize("stopped", [False, True])
def test_definitions_come_back(stopped: bool) -> None:
    definition = Definition(spring(), stopped)

    assert definition == decode_definition(definition.encode())
    assert definition.encode() == decode_definition(definition.encode()).encode()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"order": "interleaved"},
        {"preset": "kl-ucb", "horizon": 600},
        {"preset": "sdp-ae", "horizon": 300, "batch_size": 50},
        {"horizon": 40, "batch_size": 10, "horizon_known": False},
    ],
    ids=str,
)
def test_assignments_come_back(changes: dict[str, Any]) -> None:
    """At every moment of a run, and stopped; clients find the open batches' terms in it."""
    done = play(spring(**changes), batches=8)
    states = [*done.states, agent_for(done.experiment).stop(done.states[-1])]
    for folded, state in enumerate(states, start=-1):
        sent = Assignment(done.experiment, state, folded)
        offer = decode_offer(sent.encode())

        assert sent == decode_assignment(sent.encode())
        assert ("spring", state.status) == (offer.experiment, offer.status)
        assert [(t.batch_id, t.as_json()) for t in map(sent.terms, state.open)] == list(offer.open)


def test_a_definition_is_known_by_its_bytes() -> None:
    """The one that an assignment has; not a stopped one, another one, or another spelling."""
    assignment = Assignment(spring(), DONE.states[1], 4).encode()
    definition = Definition(spring()).encode()

    assert is_defined_so(definition, assignment)
    assert not is_defined_so(None, assignment)
    assert not is_defined_so(Definition(spring(), stopped=True).encode(), assignment)
    assert not is_defined_so(definition.replace(b"spring", b"summer"), assignment)
    assert not is_defined_so(orjson.dumps(orjson.loads(definition)["definition"]), assignment)
    assert not is_defined_so(b'{"definition":,"stopped":false,"version":1}', assignment)
    assert not is_defined_so(b'{"definition":},"stopped":false,"version":1}', assignment)


def test_sums_come_back() -> None:
    """With the estimate computed again from the total."""
    for value in DONE.sums:
        found = decode_sum(value)
        raw = orjson.loads(value)

        assert (raw["batch"], raw["total"]) == (found.batch_id, found.total)
        assert (raw["digest"], raw["estimate"]) == (found.digest, found.estimate)
        assert LogPosition(**raw["first"]) == found.first
        assert LogPosition(**raw["last"]) == found.last


def test_deltas_come_back() -> None:
    assert DELTA == decode_delta(encode_delta(DELTA))
    assert b"spring/1.x/3" == delta_key(b"spring", "1.x", 3)


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


@pytest.mark.parametrize("path", [("total",), ("first", "offset"), ("terms", "batch_size")])
@pytest.mark.parametrize("value", [-2, MAX_INTEGER + 1, 1.5, True, "1", None])
def test_numbers_must_be_whole_and_in_range(path: tuple[str, ...], value: object) -> None:
    """Of a sum's record: no float, no boolean, nothing negative or beyond 2**53."""
    with pytest.raises(InvalidInput):
        decode_sum(orjson.dumps(put(orjson.loads(DONE.sums[0]), path, value)))
