"""Which partitions the group has given to a session: noted, opened, given up.

The group's calls only note partitions or drop them (RULES 1). They are opened in the session's main
loop, where heartbeats go on: fence first, then read the log, then consume (RULES 2).
"""

import asyncio
import logging

from stream_app.kafka import GroupReader, TransactionalWriter, stop
from stream_app.kafka.connection import make_transactional_writer
from stream_app.metrics.instruments import StageMetrics
from stream_app.runtime.deletion import Deletion
from stream_app.runtime.open_partition import OpenPartition, RecordSource
from stream_app.runtime.stage import Log, Readers, Stage
from stream_app.runtime.transactions import Transactions
from stream_app.settings import KafkaSettings

log = logging.getLogger("shufflebandit")

# To fence, and to read what a partition recovers from: minutes for a log of millions of sums.
_OPEN_TIMEOUT_S = 300


class Partitions:
    """The partitions that are to be opened, and those that are open, by number."""

    def __init__(
        self,
        settings: KafkaSettings,
        stage: Stage,
        reader: GroupReader,
        readers: Readers,
        transactions: Transactions,
        metrics: StageMetrics,
        deletion: Deletion | None,
        lock: asyncio.Lock,
    ) -> None:
        self._settings = settings
        self._stage = stage
        self._source = RecordSource.of(settings, stage)
        self._reader = reader
        self._readers = readers
        self._transactions = transactions
        self._metrics = metrics
        self._deletion = deletion
        self._lock = lock
        self.open: dict[int, OpenPartition] = {}
        self.assigned: set[int] = set()  # noted, to be opened
        self.joined = False  # the group has given out partitions, perhaps none to us

    def assign(self, partitions: set[int]) -> None:
        """Note partitions to open; nothing is fetched from them until then."""
        self._reader.pause(*map(self._source.partition, partitions))
        self.assigned |= partitions
        self.joined = True
        self._metrics.rebalanced()

    async def revoke(self, partitions: set[int]) -> None:
        """Give partitions up: drop their state, stop their writers."""
        async with self._lock:
            self.assigned -= partitions
            dropped = [self.open.pop(number) for number in partitions & set(self.open)]
            for partition in dropped:
                self._metrics.closed(partition.number)
                if self._deletion is not None:
                    self._deletion.forget(partition.number)
            await asyncio.gather(*(stop(partition.writer) for partition in dropped))

    async def open_assigned(self) -> None:
        """Take over what was noted."""
        if self.assigned:
            async with self._lock:
                while self.assigned:
                    await self._open(min(self.assigned))

    async def _open(self, number: int) -> None:
        writer = make_transactional_writer(self._settings, self._source.transactional_id(number))
        source = self._source.partition(number)
        history = Log(self._settings, number, self._readers)
        partition = OpenPartition(number, self._stage.make(), writer)
        try:
            async with asyncio.timeout(_OPEN_TIMEOUT_S):
                # Fences the owner before: from here on nobody else writes what is read below.
                await writer.start()
                committed = await self._reader.committed(source)
                needed = await partition.state.recover(history, committed)
                partition.control_position = history.ends.get(self._stage.control, 0)
                first = (await self._reader.beginning_offsets([source]))[source]
        except BaseException:
            await stop(writer)
            raise
        self.assigned.discard(number)
        self.open[number] = partition
        position = max(needed, first)
        self._metrics.opened(number, partition.state)
        if self._deletion is not None and committed is not None:
            self._deletion.allow(number, committed)
        # Sums that an aborted transaction left, before anything new is consumed.
        async with self._transactions.writing() as begin:
            begin(partition)
        self._reader.seek(source, position)
        self._reader.resume(source)
        log.info("%s: partition %d opened at offset %d", self._stage.name, number, position)

    async def drop_all(self) -> list[TransactionalWriter]:
        """Forget all; the log has all that matters. Their writers are to be stopped."""
        async with self._lock:
            writers = [partition.writer for partition in self.open.values()]
            for number in self.open:
                self._metrics.closed(number)
            self.open.clear()
        return writers
