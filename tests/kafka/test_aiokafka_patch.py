"""What consumers make of fetched bytes: empty records for what cannot be parsed; blocks."""

import asyncio
import random
import struct
from collections.abc import AsyncIterator
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.consumer import fetcher
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import calc_crc32c

from stream_app import kafka
from stream_app.kafka import aiokafka_patch
from stream_app.kafka.record_batches import RecordBlock, batches
from stream_app.local.broker import LocalBroker
from tests.support.transcripts import fresh_settings, make_topics

PARTITION = TopicPartition("reports", 0)


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


def taken_apart(
    data: bytes, start: int, value_bytes: int | None = None
) -> aiokafka_patch.PatchedPartitionRecords:
    given = aiokafka_patch.BatchesOfFetch(data)
    return aiokafka_patch.PatchedPartitionRecords(
        value_bytes, PARTITION, given, [], start, None, None, True, 0
    )


def read(data: bytes, start: int) -> list[tuple[int, bytes | None, bytes | None]]:
    records = taken_apart(data, start)
    found = [(record.offset, record.key, record.value) for record in records]
    assert records.next_fetch_offset == start + len(found)
    return found


def test_aiokafka_still_needs_it() -> None:
    """If this fails, aiokafka has learned to read such records: the module can go."""
    given = MemoryRecords(batch(0, 1))
    records = fetcher.PartitionRecords(PARTITION, given, [], 0, None, None, True, 0)

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


def fetched(data: bytes, start: int, value_bytes: int | None) -> list[Any]:
    records = taken_apart(data, start, value_bytes)
    found = list(records)
    assert not found or records.next_fetch_offset == found[-1].offset + 1
    return found


def one_by_one(data: bytes, start: int = 0) -> list[tuple[Any, ...]]:
    return [(r.offset, r.timestamp, r.key, r.value) for r in fetched(data, start, None)]


def by_column(data: bytes, start: int = 0) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for item in fetched(data, start, LENGTH):
        if isinstance(item, RecordBlock):
            values = [row.tobytes() for row in item.rows]
            offsets = range(item.first, item.first + len(values))
            found += zip(offsets, item.times.tolist(), item.keys, values, strict=True)
        else:
            found += [(r.offset, r.timestamp, r.key, r.value) for r in item.records]
    return found


def blocks(data: bytes) -> list[int]:
    """How many records each block has."""
    items = fetched(data, 0, LENGTH)
    return [len(item.rows) for item in items if isinstance(item, RecordBlock)]


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
    """Another byte anywhere, under a right checksum: nothing is read otherwise than alone.

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


@pytest.mark.parametrize("data", [written(128, 5), appended(3), batch(5, 1)])
def test_instrumentation_sees_a_record(data: bytes) -> None:
    """Whatever has wrapped aiokafka's consumer finds all that a record has, and no content.

    OpenTelemetry's wrapper reads topic, partition, offset, key and headers of each fetched item.
    """
    [item] = fetched(data, 0, LENGTH)

    for name in (field.name for field in fields(ConsumerRecord)):
        assert hasattr(item, name), name
    assert (item.topic, item.partition) == PARTITION
    assert item.offset == one_by_one(data)[-1][0]
    assert [*item.headers] == []
    assert (item.key, item.value) == (None, None)


# -- whom it concerns ----------------------------------------------------------------------------


@pytest.mark.kafka
async def test_only_our_own_consumers_are_patched(broker: LocalBroker) -> None:
    """A foreign consumer in this process gets aiokafka's error; ours reads past it."""
    before = {name: getattr(fetcher, name) for name in vars(fetcher)}
    methods = dict(vars(fetcher.Fetcher))
    settings = fresh_settings(broker)
    await make_topics(settings)
    partition = TopicPartition(kafka.topic(settings, "reports"), 0)
    async with kafka.producer(settings) as producer:
        await producer.send_and_wait(partition.topic, b"{}", partition=0)
        await send_as_it_is(producer, partition, batch(0, 1))

    async with kafka.consumer(settings, committed=False) as ours:
        foreign = AIOKafkaConsumer(**kafka.client_options(settings), auto_offset_reset="earliest")
        await foreign.start()
        try:
            for consumer in (ours, foreign):
                consumer.assign([partition])
            offsets: list[int] = []
            async with asyncio.timeout(10):
                while len(offsets) < 4:
                    fetched = await ours.getmany(timeout_ms=100)
                    offsets += [r.offset for records in fetched.values() for r in records]
                with pytest.raises(UnicodeDecodeError):
                    await anext(polled(foreign))
        finally:
            await foreign.stop()

    assert offsets == [0, 1, 2, 3]
    assert before == {name: getattr(fetcher, name) for name in vars(fetcher)}
    assert methods == dict(vars(fetcher.Fetcher))


async def polled(consumer: AIOKafkaConsumer) -> AsyncIterator[None]:
    """Polls until it fails."""
    while True:
        await consumer.getmany(timeout_ms=100)
    yield


async def send_as_it_is(producer: Any, partition: TopicPartition, data: bytes) -> None:
    """Past aiokafka, which would not write such a batch."""
    client = producer.client
    node = client.cluster.leader_for_partition(partition)
    request = ProduceRequest(None, 1, 5_000, [(partition.topic, [(partition.partition, data)])])
    answer = await client.send(node, request)
    assert answer.topics[0][1][0][1] == 0, answer


@pytest.mark.kafka
async def test_blocks_and_records_in_the_order_of_the_log(broker: LocalBroker) -> None:
    """By column a consumer gives blocks, and the records of other batches between them."""
    settings = fresh_settings(broker)
    await make_topics(settings)
    partition = TopicPartition(kafka.topic(settings, "reports"), 0)
    async with kafka.producer(settings) as producer:
        await producer.send_and_wait(partition.topic, b"{}", partition=0)
        for data in (written(128), sealed(appended(3), 0), batch(0, 1), written(150)):
            await send_as_it_is(producer, partition, data)

    found: list[Any] = []
    async with kafka.consumer(settings, committed=False, value_bytes=LENGTH) as consumer:
        consumer.assign([partition])
        async with asyncio.timeout(10):
            while not found or found[-1].offset < 284:
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    found += records

    assert [0, 128, 129, 130, 131, 132, 133, 134, 284] == [item.offset for item in found]
    assert [128, 150] == [len(item.rows) for item in found if isinstance(item, RecordBlock)]
