"""Reading a partition to its end, whatever the end is."""

import asyncio
import time
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import RecordsToDelete
from aiokafka.errors import KafkaTimeoutError

from stream_app import kafka
from stream_app.kafka.reading import read_partition, read_to_end
from stream_app.local.broker import LocalBroker
from tests.support.transcripts import Writer, fresh_settings, make_topics, spring

pytestmark = pytest.mark.kafka


@pytest.fixture
async def writer(broker: LocalBroker) -> Writer:
    settings = fresh_settings(broker)
    await make_topics(settings)
    return Writer(settings, spring())


async def values(
    writer: Writer, *, committed: bool = True, start: int | None = None
) -> list[bytes | None]:
    """All values of the writer's partition of `sums`; fails if reading takes long."""
    async with asyncio.timeout(8):
        return [
            record.value
            async for records in read_partition(
                writer.settings, "sums", writer.partition, committed=committed, start=start
            )
            for record in records
        ]


async def test_an_empty_partition_ends_at_once(writer: Writer) -> None:
    assert [] == await values(writer)


async def test_the_end_may_be_a_marker(writer: Writer) -> None:
    """Committed last: its marker follows it, and no record comes after."""
    await writer.plain("sums", [(b"k", b"plain")])
    await writer.transaction("sums", b"committed")

    assert [b"plain", b"committed"] == await values(writer)
    assert [b"plain", b"committed"] == await values(writer, committed=False)
    assert [b"committed"] == await values(writer, start=1)


async def test_the_end_may_be_aborted(writer: Writer) -> None:
    """A reader of committed records passes over it; the other sees it."""
    await writer.transaction("sums", b"committed")
    await writer.transaction("sums", b"aborted", commit=False)

    assert [b"committed"] == await values(writer)
    assert [b"committed", b"aborted"] == await values(writer, committed=False)


async def test_only_markers_may_be_left(writer: Writer) -> None:
    """Starting at the last marker itself."""
    offset = await writer.transaction("sums", b"committed")

    assert [] == await values(writer, start=offset + 1)
    assert [] == await values(writer, start=offset + 2)


async def test_a_start_behind_the_end_reads_nothing(writer: Writer) -> None:
    """It must not begin again at the oldest record, as a consumer does by default."""
    await writer.plain("sums", [(b"k", b"v")])

    assert [] == await values(writer, start=100)


async def test_an_open_transaction_is_the_end(writer: Writer) -> None:
    """Read committed to the last stable offset, without waiting for the transaction."""
    await writer.plain("sums", [(b"k", b"before")])
    options = {"transactional_id": f"{writer.settings.topic_prefix}-open"}
    topic = kafka.topic(writer.settings, "sums")
    async with kafka.producer(writer.settings, **options) as producer:
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"open", partition=writer.partition)
        committed = await values(writer)
        uncommitted = await values(writer, committed=False)
        await producer.abort_transaction()

    assert [b"before"] == committed
    assert [b"before", b"open"] == uncommitted


async def test_deleted_records_are_passed_over(writer: Writer) -> None:
    """Reading begins at the oldest record that is left, even if there is none."""
    await writer.plain("sums", [(b"k", b"%d" % i) for i in range(5)])
    partition = TopicPartition(kafka.topic(writer.settings, "sums"), writer.partition)
    async with kafka.admin(writer.settings) as admin:
        await admin.delete_records({partition: RecordsToDelete(before_offset=3)})
        some = await values(writer, start=0)
        await admin.delete_records({partition: RecordsToDelete(before_offset=5)})
        none = await values(writer, start=0)

    assert [b"3", b"4"] == some
    assert [] == none


async def test_a_consumer_goes_on_after_the_end(writer: Writer) -> None:
    """What comes later is read next, nothing twice; and again from the start on request."""
    partition = TopicPartition(kafka.topic(writer.settings, "sums"), writer.partition)
    async with kafka.consumer(writer.settings) as consumer:
        consumer.assign([partition])

        async def read(start: int | None) -> list[bytes | None]:
            return [r.value async for rs in read_to_end(consumer, partition, start) for r in rs]

        await writer.transaction("sums", b"one")
        first = await read(None)
        await writer.transaction("sums", b"two")
        second = await read(await consumer.position(partition))
        whole = await read(None)

    assert ([b"one"], [b"two"], [b"one", b"two"]) == (first, second, whole)


async def test_a_large_partition_is_read_whole(writer: Writer) -> None:
    """More than one fetch, one consumer of both isolation levels, every record once."""
    await writer.plain("sums", [(b"k", b"%d" % i) for i in range(60_000)])
    started = time.monotonic()
    found = await values(writer)

    assert [b"%d" % i for i in range(60_000)] == found
    assert time.monotonic() - started < 5


class Scripted:
    """A consumer whose end is 5. A poll sees that a fetch was "answered", or gets the "record"."""

    def __init__(self, *polls: str) -> None:
        self._polls = iter(polls)
        self._answers = 0
        self._position = 0

    async def beginning_offsets(
        self, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    async def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 5)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        assert 0 == offset

    async def position(self, partition: TopicPartition) -> int:
        return self._position

    def last_poll_timestamp(self, partition: TopicPartition) -> int | None:
        return self._answers or None

    async def getmany(self, partition: TopicPartition, timeout_ms: int) -> dict[Any, Any]:
        await asyncio.sleep(0.001)
        poll = next(self._polls, "silent")
        self._answers += poll == "answered"
        if poll != "record":
            return {}
        self._position = 5
        return {partition: ["the record"]}


async def _read(consumer: Scripted, *, compacted: bool) -> list[Any]:
    partition = TopicPartition("t", 0)
    chunks = read_to_end(consumer, partition, compacted=compacted, silent_s=0.1)
    return [record async for records in chunks for record in records]


async def test_compaction_may_leave_nothing_at_the_end() -> None:
    """Answers without a record end the reading of a compacted topic; silence is an error."""
    empty = ["answered"] * 3

    assert [] == await _read(Scripted(*empty), compacted=True)
    for consumer, compacted in ((Scripted(), True), (Scripted(*empty), False)):
        with pytest.raises(KafkaTimeoutError):
            await _read(consumer, compacted=compacted)


async def test_an_answer_is_seen_before_its_records() -> None:
    """An answer may be older than the end, the next one's records still be on their way."""
    polls = ["silent"] * 20 + ["answered", "answered", "silent", "record"]

    assert ["the record"] == await _read(Scripted(*polls), compacted=True)
