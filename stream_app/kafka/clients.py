"""What the rest of the program knows of a Kafka client: these types, and no library behind them.

aiokafka's clients have these methods, so they are given out as they are; what was fetched is passed
on as the list that it came in, without an object of ours for each record. Whoever puts another
library in its place gives its clients these methods, here and in `connection`.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from aiokafka import ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import RecordsToDelete

__all__ = [
    "GroupReader",
    "PartitionReader",
    "PreparedBatch",
    "RebalanceListener",
    "Record",
    "Startable",
    "TopicPartition",
    "TransactionalWriter",
    "Writer",
    "Written",
    "delete_before",
    "subscribe",
]

# With offset, timestamp (ms), key and value; by column, a `record_batches.RecordBlock`.
Record = Any


class Startable(Protocol):
    """What is started; `connection.stop` ends it."""

    async def start(self) -> None:
        """Connect."""


class PartitionReader(Startable, Protocol):
    """Reads the partitions that it is told to."""

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Read these, and no others."""

    def assignment(self) -> Collection[TopicPartition]:
        """What it reads."""

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on from there."""

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[Record]]:
        """What was fetched of these partitions, or of all; waits so long for something."""

    async def position(self, partition: TopicPartition) -> int:
        """The offset that it reads next."""

    async def beginning_offsets(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """The oldest offsets that are left."""

    async def end_offsets(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Behind the newest records; the last stable offsets if it reads committed records."""

    def last_poll_timestamp(self, partition: TopicPartition) -> int | None:
        """When Kafka last answered a fetch of it (ms); None if it has not yet."""


class GroupReader(PartitionReader, Protocol):
    """Reads the partitions that its group gives it, and commits offsets for the group."""

    def pause(self, *partitions: TopicPartition) -> None:
        """Fetch nothing from them for now."""

    def resume(self, *partitions: TopicPartition) -> None:
        """Fetch from them again."""

    def highwater(self, partition: TopicPartition) -> int | None:
        """The end of the partition as of the last fetch."""

    async def committed(self, partition: TopicPartition) -> int | None:
        """The offset that the group has committed."""

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets. Raises one of `errors.NOT_COMMITTED` while partitions change hands."""


class PreparedBatch(Protocol):
    """Records that leave together."""

    def append(self, *, timestamp: int, key: bytes, value: bytes) -> object | None:
        """Add a record; None if there is no room for it."""

    def close(self) -> None:
        """Nothing more is added."""


class Written(Protocol):
    """Where a record stands."""

    offset: int  # -1 if Kafka did not remember it


class Writer(Startable, Protocol):
    """Writes records; what it sends again is not written twice."""

    def create_batch(self) -> PreparedBatch:
        """An empty one."""

    async def send_batch(self, batch: Any, topic: str, *, partition: int) -> asyncio.Future[Any]:
        """Send a batch; the future ends once Kafka has it."""


class TransactionalWriter(Startable, Protocol):
    """Writes records in transactions; starting one fences all others with its id."""

    async def begin_transaction(self) -> None:
        """What is sent from now on becomes visible together."""

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes,
        partition: int,
        timestamp_ms: int | None = None,
    ) -> asyncio.Future[Written]:
        """Send a record; the future ends once Kafka has it. It must be awaited before the commit,
        which succeeds although a send failed (RULES 3).
        """

    async def commit_transaction(self) -> None:
        """Make it visible."""


class RebalanceListener(Protocol):
    """Is told which partitions of a topic the group gives and takes."""

    async def revoke(self, partitions: set[int]) -> None:
        """They are another's now. Until this returns, no one else gets them."""

    def assign(self, partitions: set[int]) -> None:
        """They are ours now. Nothing long may happen here: no heartbeats run (RULES 1)."""


def subscribe(reader: GroupReader, topic: str, listener: RebalanceListener) -> None:
    """Read what the group gives of one topic: the usual assignor cannot pair two (RULES 11)."""
    aiokafka_consumer: Any = reader
    aiokafka_consumer.subscribe([topic], listener=_Listener(listener))


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Passes on the partitions' numbers."""

    def __init__(self, listener: RebalanceListener) -> None:
        self._listener = listener

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        await self._listener.revoke({partition.partition for partition in revoked})

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        self._listener.assign({partition.partition for partition in assigned})


async def delete_before(admin: Any, topic: str, offsets: Mapping[int, int]) -> None:
    """Delete a topic's records below these offsets, by partition."""
    await admin.delete_records(
        {
            TopicPartition(topic, number): RecordsToDelete(offset)
            for number, offset in offsets.items()
        }
    )
