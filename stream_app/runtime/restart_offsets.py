"""Commits, about once a second, the first input offset that each partition's restart needs.

It is a lower bound: once true, it stays true, so a commit that is lost, or that a worker makes
which has been fenced meanwhile, only costs rereading (RULES 6 and 10). Therefore it is outside the
transactions. What it rests on (sums, checkpoints) must be committed before it: all transactions of
a round have ended when the offsets are asked for.
"""

import asyncio
import logging
import time

from stream_app.kafka import GroupReader, TopicPartition
from stream_app.kafka.errors import NOT_COMMITTED
from stream_app.metrics.instruments import StageMetrics
from stream_app.runtime.deletion import Deletion
from stream_app.runtime.open_partition import RecordSource
from stream_app.runtime.partitions import Partitions
from stream_app.runtime.stage import Stage
from stream_app.runtime.transactions import TRANSACTION_TIMEOUT_S, Transactions
from stream_app.settings import KafkaSettings

log = logging.getLogger("shufflebandit")

# A restart reads a second's input again; more often would be a request for each chunk.
_EVERY_S = 1.0


class RestartOffsets:
    """The restart offsets of one session's partitions."""

    def __init__(
        self,
        settings: KafkaSettings,
        stage: Stage,
        reader: GroupReader,
        partitions: Partitions,
        transactions: Transactions,
        metrics: StageMetrics,
        deletion: Deletion | None,
    ) -> None:
        self._name = stage.name
        self._source = RecordSource.of(settings, stage)
        self._reader = reader
        self._partitions = partitions
        self._transactions = transactions
        self._metrics = metrics
        self._deletion = deletion
        self._next = 0.0

    async def commit_if_due(self) -> None:
        """Once a second: let states save what is old, commit, and measure how far behind we are."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _EVERY_S
        async with self._transactions.writing() as begin:
            for partition in self._partitions.open.values():
                if partition.restartable is not None:
                    partition.restartable.tick(time.time_ns() // 1_000_000)
                begin(partition)
        await self.commit()
        await self._measure_lag()

    async def commit(self) -> None:
        """Commit the first offset that a restart needs; losing a commit only costs rereading."""
        offsets: dict[TopicPartition, int] = {}
        for partition in self._partitions.open.values():
            if partition.restartable is None:
                continue
            offset = partition.restartable.restart_offset()
            if offset != partition.committed:
                partition.committed = offset
                offsets[self._source.partition(partition.number)] = offset
        if not offsets:
            return
        try:
            async with asyncio.timeout(TRANSACTION_TIMEOUT_S):
                await self._reader.commit(offsets)
        except NOT_COMMITTED:
            log.debug("%s: offsets not committed: rebalancing", self._name)
            return
        if self._deletion is not None:
            for source, offset in offsets.items():
                self._deletion.allow(source.partition, offset)

    async def _measure_lag(self) -> None:
        """By the reader's own position, which is also behind the marker of a transaction."""
        assigned = self._reader.assignment()
        for number in self._partitions.open:
            source = self._source.partition(number)
            end = self._reader.highwater(source) if source in assigned else None
            if end is not None:
                position = await self._reader.position(source)
                self._metrics.lag(number, max(0, end - position))
