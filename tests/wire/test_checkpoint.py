"""Checkpoints come back as they were written."""

from stream_app.core.window import Delta, LogPosition
from stream_app.wire.checkpoint import decode_delta, delta_key, encode_delta

DELTA = Delta("1.x", 3, bytes(32), 7, LogPosition(5, -1), 9)


def test_deltas_come_back() -> None:
    assert DELTA == decode_delta(encode_delta(DELTA))
    assert b"spring/1.x/3" == delta_key(b"spring", "1.x", 3)
