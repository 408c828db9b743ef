"""Our own consumers take apart what they fetched in two ways other than aiokafka's.

**What cannot be parsed reads as empty records**, so that no writer can stop a reader. Kafka's
brokers take a record whose header has a name that is not UTF-8; aiokafka raises at it, each time it
is fetched, and gets no further. Here the rest of such a batch (which one producer wrote, in one
piece) reads as records without key and value. Every reader refuses and counts those like any other
nonsense, at the same offsets: the auditor sees what the stage saw. A batch that was damaged on the
way is not meant: its checksum is looked at before.

**A consumer with `value_bytes` gets blocks** of the batches that can be read by column (see
`record_batches.block`), and of all others records with offset, timestamp, key and value.

aiokafka has no hook for either. It takes records apart in one method of its fetcher, which finds
two classes by their names in its module. Each consumer of ours has its own copy of that method, in
which the two names mean the classes below. The module and its classes stay as they are: a product
that embeds our client, and reads topics of its own in the same process, gets aiokafka's errors.
What is private to aiokafka and used here is named by tests/kafka/test_private_parts.py.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from struct import Struct
from types import FunctionType, MethodType
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.consumer import fetcher
from aiokafka.errors import KafkaError

from stream_app.kafka.record_batches import LikeRecord, RecordBlock, block

_START = Struct(">qi")  # of a batch: its first offset, and how many bytes follow


class PatchedConsumer(AIOKafkaConsumer):  # type: ignore[misc]
    """aiokafka's consumer, with its own way to take records apart.

    With `value_bytes`, values of this length are read by column.
    """

    def __init__(self, *, value_bytes: int | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._value_bytes = value_bytes

    async def start(self) -> None:
        """Connect. Partitions are assigned after this, so nothing has been fetched before."""
        await super().start()
        patched = MethodType(_proc_fetch_request(self._value_bytes), self._fetcher)
        self._fetcher._proc_fetch_request = patched

    async def getmany(self, *partitions: Any, **options: Any) -> dict[Any, list[Any]]:
        """What was fetched, by partition; by column, the records of a batch are one item first.

        So whoever has wrapped aiokafka's own method, as instrumentation does, sees one item a
        batch, which looks like a record.
        """
        fetched: dict[Any, list[Any]] = await super().getmany(*partitions, **options)
        if self._value_bytes is None:
            return fetched
        return {partition: _flat(items) for partition, items in fetched.items()}


def _proc_fetch_request(value_bytes: int | None) -> FunctionType:
    """The fetcher's method with our classes under the names of aiokafka's."""
    names = {
        **vars(fetcher),
        "MemoryRecords": BatchesOfFetch,
        "PartitionRecords": partial(PatchedPartitionRecords, value_bytes),
    }
    return FunctionType(fetcher.Fetcher._proc_fetch_request.__code__, names)


def _flat(items: list[Any]) -> list[Any]:
    """Blocks, and the records of the runs between them."""
    if all(type(item) is RecordBlock for item in items):
        return items
    flat: list[Any] = []
    for item in items:
        if type(item) is RecordRun:
            flat += item.records
        else:
            flat.append(item)
    return flat


@dataclass(frozen=True, slots=True)
class _Empty:
    """What stands for a record that cannot be read."""

    offset: int
    timestamp: int = 0
    timestamp_type: int = 0
    key: None = None
    value: None = None
    checksum: None = None
    headers: tuple[()] = ()


@dataclass(frozen=True, slots=True)
class RecordRun(LikeRecord):
    """The records of a batch that is not read by column; there is at least one."""

    records: list[Any]
    topic: str = ""
    partition: int = -1

    @property
    def offset(self) -> int:
        """Of the last record."""
        return int(self.records[-1].offset)

    def since(self, offset: int, topic: str, partition: int) -> "RecordRun":
        """Without the records before an offset."""
        left = [record for record in self.records if record.offset >= offset]
        return RecordRun(left, topic, partition)


class _Batch:
    """A batch that always has an end; aiokafka skips the offsets that it has given already."""

    def __init__(self, batch: Any, data: memoryview, value_bytes: int | None) -> None:
        self._batch = batch
        self._data = data
        self._value_bytes = value_bytes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __next__(self) -> Any:
        return next(self._batch)

    def __iter__(self) -> Iterator[Any]:
        if self._value_bytes is None:
            yield from self._readable()
            return
        whole = block(self._data, self._value_bytes)
        if whole is not None:
            yield whole
            return
        records = list(_rising(self._readable()))
        if records:
            yield RecordRun(records)

    def _readable(self) -> Iterator[Any]:
        try:
            yield from self._batch
        except (ValueError, ArithmeticError, KafkaError):
            yield from map(_Empty, range(self._batch.base_offset, self._batch.next_offset))


def _rising(records: Iterable[Any]) -> Iterator[Any]:
    """Without offsets that do not rise: aiokafka skips them in what it takes apart itself."""
    position = -1
    for record in records:
        if record.offset >= position:
            position = record.offset + 1
            yield record


class BatchesOfFetch:
    """The batches of one fetch of one partition, as aiokafka's `MemoryRecords`."""

    def __init__(self, data: bytes) -> None:
        self._records = records = fetcher.MemoryRecords(data)
        self.has_next = records.has_next
        self.size_in_bytes = records.size_in_bytes
        self._rest = memoryview(data)
        self.value_bytes: int | None = None

    def next_batch(self) -> _Batch:
        """The next one; there must be one."""
        _, length = _START.unpack_from(self._rest)
        end = _START.size + length
        data = self._rest[:end]
        self._rest = self._rest[end:]
        return _Batch(self._records.next_batch(), data, self.value_bytes)


class PatchedPartitionRecords(fetcher.PartitionRecords):  # type: ignore[misc]
    """The records of one fetch of one partition; by column if values have a known length."""

    def __init__(
        self, value_bytes: int | None, tp: Any, records: BatchesOfFetch, *options: Any
    ) -> None:
        super().__init__(tp, records, *options)
        records.value_bytes = value_bytes
        self._by_column = value_bytes is not None

    def _consumer_record(self, tp: Any, record: Any) -> Any:
        if self._by_column:
            return record.since(self.next_fetch_offset, tp.topic, tp.partition)
        return super()._consumer_record(tp, record)
