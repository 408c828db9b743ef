"""What a sender's body says, and which of its reports may go on."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_app.core.state import Status
from stream_app.errors import InvalidInput
from stream_app.gateway.assignments import posted
from stream_app.gateway.reports import Outcome, read, sift
from stream_app.wire.assignment import decode_offer
from stream_app.wire.report import REPORT_BYTES, decode_report
from tests.gateway.build import assignment, batch_of, report
from tests.producers.build import changed

POSTING = posted(decode_offer(assignment()), 3)
BITS = POSTING.max_ones[batch_of()]
assert BITS is not None


def test_accepted_reports_are_written_anew() -> None:
    """The record that goes to Kafka has the fixed length, whatever spaces the sender used."""
    sent = report(ones=5)
    outcomes, values = sift(POSTING, [sent])

    assert outcomes == [Outcome.ACCEPTED]
    assert [REPORT_BYTES] == [len(value) for value in values]
    assert decode_report(values[0]) == (sent["batch"], bytes.fromhex(sent["id"]), 5)


@pytest.mark.parametrize(
    ("wrong", "outcome"),
    [
        (report(ones=-1), Outcome.OUT_OF_RANGE),
        (report(ones=BITS + 1), Outcome.OUT_OF_RANGE),
        (report(ones=2**70), Outcome.OUT_OF_RANGE),
        (report(ones=True), Outcome.MALFORMED),
        (report(ones="1"), Outcome.MALFORMED),
        (report(ones=1.0), Outcome.MALFORMED),
        (report(id="0" * 31), Outcome.MALFORMED),
        (report(id="0" * 30 + "  "), Outcome.MALFORMED),
        (report(id="A" * 32), Outcome.MALFORMED),
        (report(id=7), Outcome.MALFORMED),
        (report(batch="x"), Outcome.MALFORMED),
        (report(batch="1234567890123456." + "a" * 43), Outcome.MALFORMED),
        (report(user="me"), Outcome.MALFORMED),
        ({}, Outcome.MALFORMED),
        (None, Outcome.MALFORMED),
        ([], Outcome.MALFORMED),
        (report(batch="0." + "a" * 43), Outcome.LATE),
        (report(batch="99." + "a" * 43), Outcome.ACCEPTED),  # newer than this gateway knows
        (report(batch="99." + "a" * 43, ones=2**40), Outcome.OUT_OF_RANGE),
        (report(ones=BITS), Outcome.ACCEPTED),
        (report(ones=0), Outcome.ACCEPTED),
    ],
)
def test_outcomes(wrong: Any, outcome: Outcome) -> None:
    """Each report has an outcome of its own, and a bad one does not harm its neighbours."""
    outcomes, values = sift(POSTING, [report(), wrong, report()])

    assert outcomes == [Outcome.ACCEPTED, outcome, Outcome.ACCEPTED]
    assert len(values) == outcomes.count(Outcome.ACCEPTED)


def test_terms_that_do_not_hash_to_their_id() -> None:
    """Nobody can use such a batch, so nothing is sent to it."""

    def less(terms: dict[str, Any]) -> None:
        terms["parameters"]["clip"] = 1

    tampered = posted(decode_offer(changed(assignment(), less, rehash=False)), 3)

    assert sift(tampered, [report()])[0] == [Outcome.UNKNOWN_BATCH]


def test_nothing_is_taken_for_an_experiment_that_has_ended() -> None:
    """However new the batch looks."""
    raw = orjson.loads(assignment())
    raw |= {"state": "decided", "open": [], "serve": raw["arms"][0]["name"]}
    ended = posted(decode_offer(orjson.dumps(raw)), 3, POSTING)

    assert ended.status is Status.DECIDED
    assert sift(ended, [report(), report(batch="99." + "a" * 43)])[0] == [Outcome.LATE] * 2


@given(st.binary(max_size=400))
def test_no_bytes_break_it(noise: bytes) -> None:
    """Bytes that are no request are refused in one way."""
    with pytest.raises(InvalidInput):
        read(noise)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(
    st.lists(JSON | st.fixed_dictionaries({"batch": JSON, "id": JSON, "ones": JSON}), max_size=9)
)
def test_no_reports_break_it(reports: list[Any]) -> None:
    """Whatever stands where a report should be has an outcome."""
    outcomes, values = sift(POSTING, reports)

    assert len(outcomes) == len(reports)
    assert all(len(value) == REPORT_BYTES for value in values)


@pytest.mark.parametrize(
    "wrong",
    [
        b"", b"{", b"[]", b"null", b'{"experiment":"x"}', b'{"experiment":1,"reports":[{}]}',
        b'{"experiment":"x","reports":[]}', b'{"experiment":"x","reports":{}}',
        b'{"experiment":"x","reports":[1],"more":1}', b"[" * 100_000, b"\xff",
        orjson.dumps({"experiment": "x", "reports": [1] * 1001}),
    ],
)  # fmt: skip
def test_bodies_that_are_refused(wrong: bytes) -> None:
    """As a whole, with a reason."""
    with pytest.raises(InvalidInput):
        read(wrong)
