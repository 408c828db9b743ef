"""What consumers make of fetched bytes: empty records for what cannot be parsed; blocks."""

import random
import struct
from typing import Any

import numpy as np
import pytest
from aiokafka import TopicPartition
from aiokafka.consumer import fetcher
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import calc_crc32c

from stream_app.kafka import aiokafka_patch
from stream_app.kafka.record_batches import Block, batches

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
    aiokafka_patch.install()
    batches = fetcher.MemoryRecords(data)
    records = fetcher.PartitionRecords(PLACE, batches, [], start, None, None, True, 0)
    found = [(record.offset, record.key, record.value) for record in records]
    assert records.next_fetch_offset == start + len(found)
    return found


def test_aiokafka_still_needs_it() -> None:
    """If this fails, aiokafka has learned to read such records: the module can go."""
    records = aiokafka_patch._ORIGINAL(
        PLACE, MemoryRecords(batch(0, 1)), [], 0, None, None, True, 0
    )

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


# -- by column -----------------------------------------------------------------------------------

LENGTH = 20
KEY = b"demo"
NOW_MS = 1_700_000_000_123
LOG_TIME = 0x08  # attribute


def written(count: int, first: int = 0, length: int = LENGTH, key: bytes = KEY) -> bytes:
    """A batch as our senders write it."""
    values = np.random.default_rng(count).integers(ord("0"), ord("9"), (count, length), np.uint8)
    values[:, 0] = ord("{")
    [made] = batches(key, [values], NOW_MS)
    return sealed(made._build(), first)


def appended(
    count: int, *, times: int = 1, keys: int = 1, headers: Any = (), compression: int = 0
) -> bytes:
    """A batch of any other sender, with so many different times and keys."""
    builder = DefaultRecordBatchBuilder(2, compression, 0, -1, -1, -1, 1 << 23)
    for number in range(count):
        time_ms = NOW_MS + 1_000 * (number % times) - 500
        key = b"experiment " * (number % keys) + b"%d" % (number % keys)
        builder.append(number, time_ms, key, b"{%019d" % number, [*headers])
    return sealed(bytes(builder.build()), 1_000)


def changed(data: bytes, place: int, form: str, value: int) -> bytes:
    """Another value in the header, with a checksum that is right."""
    whole = bytearray(data)
    struct.pack_into(form, whole, place, value)
    return sealed(bytes(whole), *struct.unpack_from(">q", whole))


def fetched_as(data: bytes, start: int, deserializer: Any) -> list[Any]:
    aiokafka_patch.install()
    given = fetcher.MemoryRecords(data)
    records = fetcher.PartitionRecords(PLACE, given, [], start, None, deserializer, True, 0)
    found = list(records)
    assert not found or records.next_fetch_offset == found[-1].offset + 1
    return found


def one_by_one(data: bytes, start: int = 0) -> list[tuple[Any, ...]]:
    return [(r.offset, r.timestamp, r.key, r.value) for r in fetched_as(data, start, None)]


def by_column(data: bytes, start: int = 0) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for item in fetched_as(data, start, aiokafka_patch.ByColumn(LENGTH)):
        if isinstance(item, Block):
            values = [row.tobytes() for row in item.rows]
            offsets = range(item.first, item.first + len(values))
            found += zip(offsets, item.times.tolist(), item.keys, values, strict=True)
        else:
            found.append((item.offset, item.timestamp, item.key, item.value))
    return found


def blocks(data: bytes) -> list[int]:
    """How many records each block has."""
    items = fetched_as(data, 0, aiokafka_patch.ByColumn(LENGTH))
    return [len(item.rows) for item in items if isinstance(item, Block)]


@pytest.mark.parametrize(
    ("count", "key"), [(128, b"k"), (200, b"k" * 63), (2_000, b"k" * 200), (8_192, b"k")]
)
def test_a_batch_of_ours_is_one_block(count: int, key: bytes) -> None:
    """With the same offsets, times, keys and values as record by record."""
    data = written(count, 1 << 40, key=key)

    assert [count] == blocks(data)
    assert one_by_one(data) == by_column(data)


@pytest.mark.parametrize("times", [1, 2, 150, 20_000])
@pytest.mark.parametrize("keys", [1, 2, 40])
@pytest.mark.parametrize("count", [128, 10_000])
def test_a_batch_of_others_too(count: int, times: int, keys: int) -> None:
    """With any keys and times: later ones, earlier ones, of all lengths."""
    data = appended(count, times=times, keys=keys)

    assert [count] == blocks(data)
    assert one_by_one(data) == by_column(data)


@pytest.mark.parametrize("start", [100, 101, 163, 164, 250, 299])
def test_a_fetch_may_begin_within_a_batch(start: int) -> None:
    data = written(200, 100) + written(140, 300)

    assert [*range(start, 440)] == [record[0] for record in by_column(data, start)]
    assert one_by_one(data, start) == by_column(data, start)


def test_the_log_s_time_counts() -> None:
    """Kafka writes it into the batch's head, behind which the records stay as they were."""
    data = changed(changed(appended(150, times=9), 21, ">h", LOG_TIME), 35, ">q", NOW_MS + 9)

    assert [150] == blocks(data)
    assert {NOW_MS + 9} == {record[1] for record in by_column(data)}
    assert one_by_one(data) == by_column(data)


@pytest.mark.parametrize(
    "data",
    [
        written(127),  # few
        written(150, length=LENGTH + 1),
        appended(150, headers=[("name", b"x")]),
        appended(150, times=3, compression=1),
        batch(0, 149, 150),  # cannot be read to its end
    ],
)
def test_whatever_is_different_comes_record_by_record(data: bytes) -> None:
    assert [] == blocks(data)
    assert one_by_one(data) == by_column(data)


def test_values_within_values() -> None:
    """What looks like a value in another one, or in a key, is none."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    for number in range(200):
        inner = bytes([2 * LENGTH]) + b"{" if number % 7 == 3 else b"00"
        builder.append(number, NOW_MS, b"k" + inner, b"{" + 8 * inner + b"%03d" % number, [])
    data = bytes(builder.build())

    assert one_by_one(data) == by_column(data)


@pytest.mark.parametrize("good", [written(128, 5), appended(128, times=128, keys=2)])
def test_each_byte_of_a_batch(good: bytes) -> None:
    """Another byte at any place, under a right checksum: nothing is read otherwise than alone.

    Where aiokafka fails as a whole, so does this.
    """
    chance = random.Random(1)
    for place in [16, *range(21, len(good))]:  # 17 to 20 are the checksum
        for byte in (good[place] ^ 1, chance.randrange(256)):
            data = sealed(good[:place] + bytes([byte]) + good[place + 1 :], 5)
            try:
                expected = one_by_one(data)
            except Exception as error:
                with pytest.raises(type(error)):
                    by_column(data)
            else:
                assert expected == by_column(data)


@pytest.mark.parametrize("cut", [1, LENGTH, 300, 3_000])
def test_a_batch_that_ends_early(cut: int) -> None:
    """Shorter than its count says, under a right checksum."""
    good = written(200)
    data = changed(good[:-cut], 8, ">i", len(good) - cut - 12)

    assert one_by_one(data) == by_column(data)
