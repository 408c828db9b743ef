"""How aiokafka's consumers take apart what they fetched: in two ways other than it does itself.

**What it cannot parse reads as empty records**, so that no writer can stop a reader. Kafka's
brokers take a record whose header has a name that is not UTF-8; aiokafka raises at it, each time it
is fetched, and gets no further. Here the rest of such a batch (which one producer wrote, in one
piece) reads as records without key and value. Every reader refuses and counts those like any other
nonsense, at the same offsets: the auditor sees what the stage saw. A batch that was damaged on the
way is not meant: its checksum is looked at before.

**A consumer with the deserializer `ByColumn` gets blocks** of the batches that can be read so (see
`records.block`), and of all others records with offset, timestamp, key and value.

aiokafka has no hook for either, so `install` replaces the classes that it takes records apart with.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Any

from aiokafka.consumer import fetcher
from aiokafka.errors import KafkaError

from stream_app.kafka.record_batches import Block, block

_ORIGINAL: Any = fetcher.PartitionRecords
_MEMORY_RECORDS: Any = fetcher.MemoryRecords
_START = Struct(">qi")  # of a batch: its first offset, and how many bytes follow


@dataclass(frozen=True, slots=True)
class ByColumn:
    """Given as a consumer's `value_deserializer`: values of this length are read by column."""

    length: int


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


class _Batch:
    """A batch that always has an end; aiokafka skips the offsets that it has given already."""

    def __init__(self, batch: Any, data: memoryview, by_column: ByColumn | None) -> None:
        self._batch = batch
        self._data = data
        self._by_column = by_column

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __next__(self) -> Any:
        return next(self._batch)

    def __iter__(self) -> Iterator[Any]:
        whole = block(self._data, self._by_column.length) if self._by_column else None
        if whole is not None:
            yield whole
            return
        try:
            yield from self._batch
        except (ValueError, ArithmeticError, KafkaError):
            yield from map(_Empty, range(self._batch.base_offset, self._batch.next_offset))


class _Batches:
    """The batches of one fetch."""

    def __init__(self, data: bytes) -> None:
        self._records = records = _MEMORY_RECORDS(data)
        self.has_next = records.has_next
        self.size_in_bytes = records.size_in_bytes
        self._rest = memoryview(data)
        self.by_column: ByColumn | None = None

    def next_batch(self) -> _Batch:
        _, length = _START.unpack_from(self._rest)
        end = _START.size + length
        data = self._rest[:end]
        self._rest = self._rest[end:]
        return _Batch(self._records.next_batch(), data, self.by_column)


class _PartitionRecords(_ORIGINAL):  # type: ignore[misc]
    def __init__(self, tp: Any, records: _Batches, *options: Any) -> None:
        super().__init__(tp, records, *options)
        if isinstance(self._value_deserializer, ByColumn):
            records.by_column = self._value_deserializer

    def _consumer_record(self, tp: Any, record: Any) -> Any:
        if isinstance(record, Block):
            return record.since(self.next_fetch_offset)
        if isinstance(self._value_deserializer, ByColumn):
            return record
        return super()._consumer_record(tp, record)


def install() -> None:
    """For all consumers of this process."""
    fetcher.PartitionRecords = _PartitionRecords
    fetcher.MemoryRecords = _Batches
