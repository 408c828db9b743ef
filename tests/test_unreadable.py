"""A record that aiokafka cannot parse is an empty one, in its place; the others stay."""

import struct

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer import fetcher
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import calc_crc32c

from stream_app import unreadable

PLACE = TopicPartition("reports", 0)


def batch(first: int, bad: int | None, count: int = 3) -> bytes:
    """Records `first`, `first` + 1, ...; the header of one of them has a name that is no text."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    for number in range(count):
        header = "BAD!" if number == bad else "good"
        builder.append(number, 1_700_000_000_000, b"key", b"%d" % number, [(header, b"x")])
    return sealed(bytes(builder.build()).replace(b"BAD!", b"\xff\xfe\xfd\xfc"), first)


def sealed(data: bytes, first: int) -> bytes:
    whole = bytearray(data)
    struct.pack_into(">q", whole, 0, first)
    struct.pack_into(">I", whole, 17, calc_crc32c(bytes(whole[21:])))
    return bytes(whole)


def read(data: bytes, start: int) -> list[tuple[int, bytes | None, bytes | None]]:
    unreadable.install()
    records = fetcher.PartitionRecords(PLACE, MemoryRecords(data), [], start, None, None, True, 0)
    found = [(record.offset, record.key, record.value) for record in records]
    assert records.next_fetch_offset == start + len(found)
    return found


def test_aiokafka_still_needs_it() -> None:
    """If this fails, aiokafka has learned to read such records: the module can go."""
    records = unreadable._ORIGINAL(PLACE, MemoryRecords(batch(0, 1)), [], 0, None, None, True, 0)

    with pytest.raises(UnicodeDecodeError):
        list(records)


@pytest.mark.parametrize("start", [10, 11, 12])
def test_the_rest_of_its_batch_is_empty(start: int) -> None:
    """From wherever it is fetched, and the next batch is whole."""
    data = batch(10, 1) + batch(13, None)
    expected = [
        (10, b"key", b"0"), (11, None, None), (12, None, None),
        (13, b"key", b"0"), (14, b"key", b"1"), (15, b"key", b"2"),
    ]  # fmt: skip

    assert expected[start - 10 :] == read(data, start)


def test_damage_on_the_way_is_not_hidden() -> None:
    """A wrong checksum is Kafka's business: the session starts over."""
    data = bytearray(batch(0, None))
    data[-2] ^= 1

    with pytest.raises(fetcher.Errors.CorruptRecordException):
        read(bytes(data), 0)
