"""Records that aiokafka cannot parse read as empty ones, so that no writer can stop a reader.

Kafka's brokers take a record whose header has a name that is not UTF-8; aiokafka raises at it,
each time it is fetched, and gets no further. Here the rest of such a batch (which one producer
wrote, in one piece) reads as records without key and value. Every reader refuses and counts those
like any other nonsense, at the same offsets: the auditor sees what the stage saw. A batch that was
damaged on the way is not meant: its checksum is looked at before.

aiokafka has no hook for it, so `install` replaces the class that it takes records apart with.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from aiokafka.consumer import fetcher
from aiokafka.errors import KafkaError

_ORIGINAL: Any = fetcher.PartitionRecords


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

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __next__(self) -> Any:
        return next(self._batch)

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._batch
        except (ValueError, ArithmeticError, KafkaError):
            yield from map(_Empty, range(self._batch.base_offset, self._batch.next_offset))


class _Batches:
    """The batches of one fetch."""

    def __init__(self, records: Any) -> None:
        self._records = records
        self.has_next = records.has_next

    def next_batch(self) -> _Batch:
        return _Batch(self._records.next_batch())


class _PartitionRecords(_ORIGINAL):  # type: ignore[misc]
    def __init__(self, tp: Any, records: Any, *options: Any) -> None:
        super().__init__(tp, _Batches(records), *options)


def install() -> None:
    """For all consumers of this process."""
    fetcher.PartitionRecords = _PartitionRecords
