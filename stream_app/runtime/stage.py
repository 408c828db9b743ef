"""What a stage is made of: its topics, the state of a partition, the log it recovers from."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from stream_app.kafka import TOPICS, PartitionReader, Record, TopicPartition, topic
from stream_app.kafka.reading import read_to_end
from stream_app.metrics.instruments import Times
from stream_app.settings import KafkaSettings

__all__ = ["Log", "Output", "Partition", "Readers", "Record", "Restartable", "Stage", "newest"]


@dataclass(frozen=True, slots=True)
class Output:
    """A record to write, to the same partition number as the input's."""

    topic: str
    key: bytes
    value: bytes | None
    times: Times | None = field(default=None, compare=False)  # for the metrics only


@dataclass(slots=True)
class Readers:
    """Consumers without a group, for recovery and refreshes; used under the session's lock."""

    committed: PartitionReader
    uncommitted: PartitionReader


class Log:
    """What a partition reads to recover: this partition of any topic, from its beginning."""

    def __init__(self, settings: KafkaSettings, partition: int, readers: Readers) -> None:
        self._settings = settings
        self._readers = readers
        self.partition = partition
        self.ends: dict[str, int] = {}

    async def read(
        self, name: str, *, committed: bool = True, start: int = 0
    ) -> AsyncGenerator[Sequence[Record], None]:
        """All records of a topic's partition up to its end as of now; `ends` remembers the end."""
        reader = self._readers.committed if committed else self._readers.uncommitted
        source = TopicPartition(topic(self._settings, name), self.partition)
        reader.assign([source])
        self.ends[name] = start
        compacted = TOPICS[name]["cleanup.policy"] == "compact"
        async for records in read_to_end(reader, source, start, compacted=compacted):
            self.ends[name] = records[-1].offset + 1
            yield records


async def newest(log: Log, topic: str) -> dict[bytes, bytes | None]:
    """The last value of each key of a compacted topic; None where it is a tombstone."""
    found: dict[bytes, bytes | None] = {}
    async for records in log.read(topic):
        found.update((record.key, record.value) for record in records if record.key is not None)
    return found


class Partition(Protocol):
    """A stage's state for one input partition. Only `recover` waits for anything."""

    async def recover(self, log: Log, restart_offset: int | None) -> int:
        """Build the state from the log; returns the input offset to begin at."""

    def feed(self, records: Any, *, refreshed: bool) -> Any:
        """Take input records; returns those for which the control topic must be read first."""

    def control(self, records: Sequence[Record]) -> None:
        """Take records of the control topic."""

    def take(self) -> list[Output]:
        """The outputs since the last call, for one transaction."""

    def counts(self) -> Mapping[str, int]:
        """Totals since it was made; see `metrics.instruments.Counted`."""


@runtime_checkable
class Restartable(Protocol):
    """A partition that needs a restart offset: part of its state is nowhere but in its input.

    Without it a partition's position stands in its own outputs.
    """

    def restart_offset(self) -> int:
        """The first input offset that a restart needs."""

    def tick(self, now_ms: int) -> None:
        """Time has passed, about a second: what has been unsaved for long may be saved now."""

    def wrote(self, ends: Mapping[str, int]) -> None:
        """What was taken is committed; of each topic in it, the offset after its last record."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What makes a stage: its topics, its group, its partitions' state."""

    name: str
    input: str
    control: str
    input_committed: bool
    group: str
    instance_id: str
    make: Callable[[], Partition]
    delete_input: bool = False  # once a committed offset says that no restart needs it
    value_bytes: int | None = None  # if the input's values have one length: they come by column
