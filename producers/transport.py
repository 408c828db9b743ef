"""A client's connection to Kafka: follows one experiment's assignments, sends its reports.

Knows topics, partitions and retries of the connection; not what the records say. The experiment's
partition is the same in both topics. Reports go as prepared record batches: one future for
thousands of them, no compression (sizes must not show content), and aiokafka's `send` is avoided
because it logs values at level debug.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Protocol

from stream_app import kafka
from stream_app.errors import ConfigurationError, Unavailable
from stream_app.kafka import KafkaError, PartitionReader, Record, TopicPartition, Writer
from stream_app.kafka.reading import read_to_end
from stream_app.kafka.record_batches import BATCH_BYTES, Rows, batches
from stream_app.kafka.topics import partition_counts_seen
from stream_app.settings import KafkaSettings

# Without an acknowledgement for this long, the producer is replaced and the same bytes sent again.
_ACKNOWLEDGE_S = 15.0
# A fetch that brings something ends a poll at once; this is how often an idle loop turns.
_POLL_MS = 500

# Told how many more reports, in the order in which they were given, are acknowledged.
Acknowledged = Callable[[int], None]


def _nobody_asks(count: int) -> None:
    pass


class Transport(Protocol):
    """What a client needs of the world outside."""

    async def open(self) -> None:
        """Connect. Raises Unavailable or ConfigurationError."""

    def follow(self) -> AsyncIterator[bytes | None]:
        """The newest assignment record, then each newer one. Raises Unavailable."""

    async def send(self, parts: Iterable[Rows], acknowledged: Acknowledged = _nobody_asks) -> None:
        """Send reports, in order; return once all are acknowledged. Raises Unavailable.

        A part is taken while the one before is on its way.
        """

    async def close(self) -> None:
        """Disconnect."""


class KafkaTransport:
    """The transport of one experiment."""

    def __init__(self, settings: KafkaSettings, experiment: str) -> None:
        self._settings = settings
        self._experiment = experiment
        self._key = experiment.encode()
        self._assignments = kafka.topic(settings, "assignments")
        self._reports = kafka.topic(settings, "reports")
        self._partition = -1
        self._stack = AsyncExitStack()
        self._producer: Writer | None = None

    async def open(self) -> None:
        """Connect, and find the experiment's partition."""
        producer = await self._connected()
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s):
                counts = await partition_counts_seen(producer, (self._assignments, self._reports))
        except (KafkaError, TimeoutError) as error:
            await self._disconnect()
            raise kafka.unreachable(self._settings, error) from None
        for name, count in counts.items():
            if not count:
                raise Unavailable(
                    f"topic {name}: missing on {self._settings.bootstrap}, or not for this user; "
                    "create it with: shufflebandit topics create"
                )
        if len(set(counts.values())) > 1:
            raise ConfigurationError(
                f"topics have different partition counts ({counts}): an experiment must have the "
                "same partition in each; recreate them with: shufflebandit topics create"
            )
        self._partition = kafka.partition_of(self._experiment, counts[self._reports])

    async def follow(self) -> AsyncIterator[bytes | None]:
        """The newest assignment record, then each newer one."""
        source = TopicPartition(self._assignments, self._partition)
        async with kafka.consumer(self._settings) as consumer:
            consumer.assign([source])
            try:
                newest: list[Record] = []
                async for records in read_to_end(consumer, source):
                    newest = self._own(records) or newest
                while True:
                    if newest:
                        yield newest[0].value
                    newest = self._own(await self._poll(consumer, source))
            except KafkaError as error:
                raise kafka.unreachable(self._settings, error) from None

    async def _poll(self, consumer: PartitionReader, partition: TopicPartition) -> Any:
        return (await consumer.getmany(partition, timeout_ms=_POLL_MS)).get(partition, [])

    def _own(self, records: Sequence[Record]) -> list[Record]:
        """The last of the experiment's records, if there is one."""
        return [record for record in records if record.key == self._key][-1:]

    async def send(self, parts: Iterable[Rows], acknowledged: Acknowledged = _nobody_asks) -> None:
        """Send reports, in order; return once all are acknowledged."""
        try:
            producer = await self._connected()
            async with asyncio.timeout(_ACKNOWLEDGE_S) as limit:
                under_way: deque[tuple[asyncio.Future[Any], int]] = deque()

                async def go_on() -> None:
                    sent, count = under_way.popleft()
                    await sent
                    limit.reschedule(asyncio.get_running_loop().time() + _ACKNOWLEDGE_S)
                    acknowledged(count)

                for batch in batches(self._key, parts, int(time.time() * 1000)):
                    sent = await producer.send_batch(
                        batch, self._reports, partition=self._partition
                    )
                    sent.add_done_callback(_seen)
                    under_way.append((sent, batch.record_count()))
                    while under_way and under_way[0][0].done():
                        await go_on()
                while under_way:
                    await go_on()
        except (KafkaError, TimeoutError) as error:
            await self._disconnect()
            raise kafka.unreachable(self._settings, error) from None

    async def close(self) -> None:
        """Disconnect."""
        await self._disconnect()

    async def _connected(self) -> Writer:
        if self._producer is None:
            self._producer = await self._stack.enter_async_context(
                kafka.producer(
                    self._settings,
                    compression_type=None,
                    max_batch_size=BATCH_BYTES,
                    retry_backoff_ms=50,
                )
            )
        return self._producer

    async def _disconnect(self) -> None:
        self._producer = None
        await self._stack.aclose()


def _seen(sent: "asyncio.Future[Any]") -> None:
    """Mark a failure as seen: the first one is raised, the rest say the same."""
    if not sent.cancelled():
        sent.exception()
