"""Reports: these bytes, one length, and what a bad one raises."""

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_app.wire.report import REPORT_BYTES, decode_report, encode_report
from tests.support.json_values import JSON


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
