"""Many reports at once say what each says alone, whatever the bytes."""

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_app.kafka.record_batches import RecordBlock
from stream_app.wire.report import MAX_REPORT_BYTES, REPORT_BYTES, decode_report, encode_report
from stream_app.wire.report_columns import Chunk, encode_reports
from tests.support.partition_log import Record

KNOWN = [f"{sequence}.{'Aa0_-' * 8}xyz" for sequence in (1, 7, 12, 345, 10**14)]


def alone(value: bytes | None) -> tuple[str, bytes, int] | None:
    """What the one-by-one parser makes of a value, for batches that the stage knows."""
    if value is None or len(value) > MAX_REPORT_BYTES:
        return None
    try:
        report = decode_report(value)
    except (ValueError, KeyError, TypeError):
        return None
    return report if report[0] in KNOWN else None


def chunk(values: list[bytes | None]) -> Chunk:
    return Chunk.of([Record(offset, b"demo", value, 7) for offset, value in enumerate(values)])


def together(values: list[bytes | None]) -> list[tuple[str, bytes, int] | None]:
    known = {batch_id.encode(): batch_id for batch_id in KNOWN}
    found: list[tuple[str, bytes, int] | None] = [None] * len(values)
    reports = chunk(values).by_batch()
    for batch, first, last in reports.groups:
        for i in range(first, last):
            if batch in known:
                found[reports.indices[i]] = (known[batch], reports.ids[i], reports.ones[i])
    return found


GOOD = st.builds(
    encode_report,
    st.sampled_from([*KNOWN, "99.unknown", ""]),
    st.binary(min_size=16, max_size=16),
    st.integers(0, 2**32) | st.integers(-3, 10**12),
)


IDS = st.binary(min_size=16, max_size=16)


@given(st.sampled_from(KNOWN), st.lists(st.tuples(IDS, st.integers(0, 10**10))))
def test_written_together_as_alone(batch_id: str, reports: list[tuple[bytes, int]]) -> None:
    """Byte for byte; and what was written can be read."""
    ids = [i for i, _ in reports]
    ones = [n for _, n in reports]

    rows = encode_reports(batch_id, b"".join(ids), ones)

    assert rows.shape == (len(reports), REPORT_BYTES)
    assert [row.tobytes() for row in rows] == [encode_report(batch_id, i, n) for i, n in reports]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A report with a few bytes changed, often to ones that stand in reports."""
    value = bytearray(draw(GOOD))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(value) - 1))
        value[place] = draw(st.sampled_from(b'09afAFg.}{" ,:\\-\n\x00\xff') | st.integers(0, 255))
    return bytes(value)


OTHER = st.builds(
    lambda value, change: change(value),
    GOOD,
    st.sampled_from(
        [
            lambda v: v.strip(),
            lambda v: v.replace(b":", b": ")[:REPORT_BYTES],
            lambda v: v.replace(b":", b": "),
            lambda v: v.upper(),
            lambda v: v + b" " * 400,
            lambda v: v.replace(b'"id"', b'"di"'),
            lambda v: b" " + v[:-1],
        ]
    ),
)


@settings(max_examples=400)
@given(st.lists(GOOD | damaged() | OTHER | st.none() | st.binary(max_size=200), max_size=12))
def test_together_as_alone(values: list[bytes | None]) -> None:
    assert [alone(value) for value in values] == together(values)


def test_each_single_byte_of_a_report() -> None:
    """Every byte at every place of one report, among good ones: 34 816 damaged reports."""
    good = encode_report(KNOWN[2], bytes(range(16)), 40)
    for place in range(REPORT_BYTES):
        values: list[bytes | None] = [
            good[:place] + bytes([byte]) + good[place + 1 :] for byte in range(256)
        ]
        assert [alone(value) for value in values] == together(values)


def test_a_large_mixed_chunk_keeps_its_order() -> None:
    chance = random.Random(1)
    sent = [
        (
            chance.choice(KNOWN),
            chance.randbytes(16),
            chance.randrange(10 ** chance.randrange(1, 10)),
        )
        for _ in range(5_000)
    ]

    assert sent == together([encode_report(*report) for report in sent])


def test_nothing_is_also_a_chunk() -> None:
    assert ([], [], [], [], []) == chunk([]).by_batch()


def test_columns_hold_plain_values() -> None:
    """No numpy scalar may reach a window: sums must be whole numbers of any size."""
    values: list[bytes | None] = [encode_report(batch, bytes(16), 5) for batch in KNOWN * 2]
    for sent in (values[:1] * 9, values):
        groups, ids, ones, _, places = chunk(sent).by_batch()

        assert {type(entry) for entry in (*(group.batch for group in groups), *ids)} == {bytes}
        bounds = [number for group in groups for number in group[1:]]
        assert {type(entry) for entry in (*ones, *places, *bounds)} == {int}


@given(st.lists(st.tuples(st.sampled_from([*KNOWN, None]), st.sampled_from([b"a", b"b", None]))))
def test_those_to_one_batch_stand_together(sent: list[tuple[str | None, bytes | None]]) -> None:
    """Each report is in the group of its batch, with its key and place, in the order of the log."""
    values = [
        batch and encode_report(batch, bytes([i] * 16), i) for i, (batch, _) in enumerate(sent)
    ]
    records = [Record(i, sent[i][1], value, 7) for i, value in enumerate(values)]

    reports = Chunk.of(records).by_batch()

    names = [group.batch for group in reports.groups]
    assert names == list(dict.fromkeys(batch and batch.encode() for batch, _ in sent))
    ends = [group.last for group in reports.groups]
    assert [0, *ends] == [*(group.first for group in reports.groups), len(sent)]
    for batch, first, last in reports.groups:
        name = batch and batch.decode()
        places = [i for i, (other, _) in enumerate(sent) if other == name]
        assert places == reports.indices[first:last]
        assert [sent[i][1] for i in places] == reports.keys[first:last]
        if batch:
            assert [bytes([i] * 16) for i in places] == reports.ids[first:last]
            assert places == reports.ones[first:last]
        group = next(group for group in reports.groups if group.batch == batch)
        own = reports.only(group, b"a")
        assert [i for i in places if sent[i][1] == b"a"] == own.indices
        assert {b"a"} >= set(own.keys)
        assert [(batch, 0, len(own.ids))] == own.groups


def test_blocks_among_records() -> None:
    """However they come, they say the same, and stand at the same places."""
    sent = [encode_report(KNOWN[0], bytes([i] * 16), i) for i in range(50)]
    values: list[bytes | None] = [*sent, b"?", None, *sent[:3], b"x" * 600, *sent]
    alone = [Record(100 + i, b"demo", value, 7) for i, value in enumerate(values)]
    rows = np.frombuffer(b"".join(sent), np.uint8).reshape(50, REPORT_BYTES)
    keys = [b"demo"] * 50
    times = np.full(50, 7)
    first, second = (RecordBlock(offset, keys, times, rows) for offset in (100, 156))
    mixed = [first, *alone[50:56], second]

    expected = Chunk.of(alone)
    found = Chunk.of(mixed)

    for first, last in ((0, 106), (0, 1), (49, 53), (51, 106), (60, 60)):
        one = expected.part(first, last)
        other = found.part(first, last)
        assert one.by_batch() == other.by_batch()
        places = range(last - first)
        assert [values[first + i] or b"" for i in places] == [other.value(i) for i in places]
        assert [(100 + first + i, 7) for i in places] == [other.position(i) for i in places]
