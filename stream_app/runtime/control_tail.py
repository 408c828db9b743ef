"""Follows the control topic of the open partitions, and reads it to its end when input is ahead.

A state is told each control record once, in the log's order, by whichever comes first: the tail,
which follows all partitions with one reader, or a refresh, which reads one partition on demand.
Only the consumer group's topic is assigned; this one is read by partition number (RULES 11).
"""

import asyncio
from collections.abc import Sequence

from stream_app.kafka import PartitionReader, TopicPartition, topic
from stream_app.kafka.reading import read_to_end
from stream_app.runtime.open_partition import OpenPartition
from stream_app.runtime.partitions import Partitions
from stream_app.runtime.stage import Record, Stage
from stream_app.runtime.transactions import TRANSACTION_TIMEOUT_S, Transactions
from stream_app.settings import KafkaSettings

# How long a poll waits for records, and so how late a newly opened partition is followed.
_POLL_MS = 100
# Without an open partition, how often to look for one.
_IDLE_S = 0.05


class ControlTail:
    """The control records of one session's partitions."""

    def __init__(
        self,
        settings: KafkaSettings,
        stage: Stage,
        reader: PartitionReader,
        refresher: PartitionReader,
        partitions: Partitions,
        transactions: Transactions,
        lock: asyncio.Lock,
    ) -> None:
        self._topic = topic(settings, stage.control)
        self._reader = reader
        self._refresher = refresher
        self._partitions = partitions
        self._transactions = transactions
        self._lock = lock
        self._followed: frozenset[int] = frozenset()

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            if self._followed != frozenset(self._partitions.open):
                async with self._lock:
                    self._follow()
            if not self._followed:
                await asyncio.sleep(_IDLE_S)
                continue
            chunks = await self._reader.getmany(timeout_ms=_POLL_MS)
            async with self._lock, self._transactions.writing() as begin:
                for source, records in chunks.items():
                    partition = self._partitions.open.get(source.partition)
                    if partition is not None:
                        await _take(partition, records)
                        begin(partition)

    def _follow(self) -> None:
        """Of the partitions that are open now, each from what its state has been told."""
        opened = self._partitions.open
        self._followed = frozenset(opened)
        self._reader.assign(
            [TopicPartition(self._topic, number) for number in sorted(self._followed)]
        )
        for partition in opened.values():
            source = TopicPartition(self._topic, partition.number)
            self._reader.seek(source, partition.control_position)

    async def refresh(self, partition: OpenPartition) -> None:
        """Read the control topic to its end: the input may be ahead of what was followed."""
        source = TopicPartition(self._topic, partition.number)
        self._refresher.assign([source])
        start = partition.control_position
        async with asyncio.timeout(TRANSACTION_TIMEOUT_S):
            async for records in read_to_end(self._refresher, source, start, compacted=True):
                await _take(partition, records)


async def _take(partition: OpenPartition, records: Sequence[Record]) -> None:
    """Tell the state what it has not been told yet, one by one.

    A record may take milliseconds to check, and whoever writes it is not trusted: heartbeats have
    their turn after each, so that the worker stays in its group.
    """
    for record in records:
        if record.offset >= partition.control_position:
            partition.state.control([record])
            partition.control_position = record.offset + 1
            await asyncio.sleep(0)
