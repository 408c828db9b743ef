"""Topics, and reading a partition to its end whatever the end is."""

import asyncio
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaTimeoutError

from stream_app import kafka
from stream_app.errors import ConfigurationError, Unavailable
from stream_app.kafka.reading import read_partition, read_to_end
from stream_app.local.broker import LocalBroker
from stream_app.settings import KafkaSettings
from tests.support.transcripts import PARTITIONS, Writer, fresh_settings, make_topics, spring

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


async def existing(settings: KafkaSettings, counts: dict[str, int]) -> None:
    """Topics with these partition counts, made by someone else."""
    wanted = [NewTopic(kafka.topic(settings, name), n, 1) for name, n in counts.items()]
    async with kafka.admin(settings) as admin, asyncio.timeout(20):
        await admin.create_topics(wanted)
        while not {topic.name for topic in wanted} <= set(await admin.list_topics()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_create_is_idempotent(broker: LocalBroker) -> None:
    """Only what is missing is created; the second call creates nothing."""
    settings = fresh_settings(broker)
    full = {name: kafka.topic(settings, name) for name in kafka.TOPICS}
    await existing(settings, {"sums": PARTITIONS})
    created = await kafka.create_topics(settings, PARTITIONS, 1)
    await make_topics(settings)
    again = await kafka.create_topics(settings, PARTITIONS, 1)

    assert [full[name] for name in kafka.TOPICS if name != "sums"] == created
    assert [] == again


async def test_topics_have_their_clean_up(writer: Writer) -> None:
    """Sums are kept for ever, reports deleted after a while, the others compacted."""
    names = {kafka.topic(writer.settings, name): name for name in kafka.TOPICS}
    async with kafka.admin(writer.settings) as admin:
        found = await admin.describe_configs(
            [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
        )
    policies = {}
    for response in found:
        for *_, full_name, entries in response.resources:
            settings = {entry[0]: entry[1] for entry in entries}
            policies[names[full_name]] = (settings["cleanup.policy"], settings["retention.ms"])

    assert ("delete", "-1") == policies["sums"]
    assert ("delete", str(7 * 24 * 3600 * 1000)) == policies["reports"]
    assert {"compact"} == {policies[n][0] for n in ("experiments", "assignments", "windows")}


async def test_another_partition_count_is_refused(writer: Writer) -> None:
    with pytest.raises(ConfigurationError, match=r"--partitions 5: the topics exist with 2"):
        await kafka.create_topics(writer.settings, 5, 1)


async def test_mixed_partition_counts_are_refused(broker: LocalBroker) -> None:
    settings = fresh_settings(broker)
    await existing(settings, {name: 1 + (name == "sums") for name in kafka.TOPICS})
    with pytest.raises(ConfigurationError, match="different partition counts"):
        await kafka.partition_count(settings)
    with pytest.raises(ConfigurationError, match="different partition counts"):
        await kafka.create_topics(settings, 1, 1)


async def test_missing_topics_are_named(broker: LocalBroker) -> None:
    with pytest.raises(Unavailable, match="topics create"):
        await kafka.partition_count(fresh_settings(broker))


async def test_an_experiment_has_kafkas_own_partition(writer: Writer) -> None:
    """A client of another language finds it with its default partitioner."""
    async with kafka.producer(writer.settings) as producer:
        topic = kafka.topic(writer.settings, "sums")
        for name in ("spring", "five-arms", "x", "a-longer.name_0"):
            sent = await producer.send_and_wait(topic, b"x", key=name.encode())

            assert kafka.partition_of(name, PARTITIONS) == sent.partition


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
    place = TopicPartition(kafka.topic(writer.settings, "sums"), writer.partition)
    async with kafka.admin(writer.settings) as admin:
        await admin.delete_records({place: RecordsToDelete(before_offset=3)})
        some = await values(writer, start=0)
        await admin.delete_records({place: RecordsToDelete(before_offset=5)})
        none = await values(writer, start=0)

    assert [b"3", b"4"] == some
    assert [] == none


async def test_a_consumer_goes_on_after_the_end(writer: Writer) -> None:
    """What comes later is read next, nothing twice; and again from the start on request."""
    place = TopicPartition(kafka.topic(writer.settings, "sums"), writer.partition)
    async with kafka.consumer(writer.settings) as consumer:
        consumer.assign([place])

        async def read(start: int | None) -> list[bytes | None]:
            return [r.value async for rs in read_to_end(consumer, place, start) for r in rs]

        await writer.transaction("sums", b"one")
        first = await read(None)
        await writer.transaction("sums", b"two")
        second = await read(await consumer.position(place))
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

    async def beginning_offsets(self, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(places, 0)

    async def end_offsets(self, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(places, 5)

    def seek(self, place: TopicPartition, offset: int) -> None:
        assert 0 == offset

    async def position(self, place: TopicPartition) -> int:
        return self._position

    def last_poll_timestamp(self, place: TopicPartition) -> int | None:
        return self._answers or None

    async def getmany(self, place: TopicPartition, timeout_ms: int) -> dict[Any, Any]:
        await asyncio.sleep(0.001)
        poll = next(self._polls, "silent")
        self._answers += poll == "answered"
        if poll != "record":
            return {}
        self._position = 5
        return {place: ["the record"]}


async def _read(consumer: Scripted, *, compacted: bool) -> list[Any]:
    place = TopicPartition("t", 0)
    chunks = read_to_end(consumer, place, compacted=compacted, silent_s=0.1)
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


@pytest.fixture
def mute() -> Iterator[str]:
    """An address that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


async def test_a_mute_address_is_given_up(mute: str) -> None:
    """In one line, by the deadline, whatever the client."""
    settings = replace(KafkaSettings(), bootstrap=mute, connect_timeout_s=1)
    started = time.monotonic()
    for client in (kafka.admin(settings), kafka.consumer(settings), kafka.producer(settings)):
        with pytest.raises(Unavailable, match="no Kafka answers there"):
            await client.__aenter__()

    assert time.monotonic() - started < 9


@pytest.mark.slow
async def test_a_producer_that_cannot_stop_is_ended(caplog: pytest.LogCaptureFixture) -> None:
    """Kafka goes away within a transaction: it ends in bounded time, and tries no connection."""
    with LocalBroker() as own:
        settings = fresh_settings(own)
        await make_topics(settings)
        producer = AIOKafkaProducer(
            **kafka.client_options(settings), transactional_id="test", retry_backoff_ms=10
        )
        await producer.start()
        await producer.begin_transaction()
        own.kill()
        sent = await producer.send(kafka.topic(settings, "sums"), b"{}", partition=0)
        async with asyncio.timeout(10):
            await kafka.stop(producer)
        sent.cancel()
        tried = "Unable connect" in caplog.text
        caplog.clear()
        await asyncio.sleep(1)

        assert tried
        assert caplog.text == ""
