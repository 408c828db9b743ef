"""What a partition's state is rebuilt from: readings of its log that both stages share."""

import sys
from contextlib import aclosing
from dataclasses import dataclass, field

from stream_app.errors import InvalidInput
from stream_app.messages import peek_sequence
from stream_app.stages.partition import Log, Record

_NEAR = 5_000  # offsets


async def newest(log: Log, topic: str) -> dict[bytes, bytes | None]:
    """The last value of each key of a compacted topic; None where it is a tombstone."""
    found: dict[bytes, bytes | None] = {}
    async for records in log.read(topic):
        found.update((record.key, record.value) for record in records if record.key is not None)
    return found


@dataclass(slots=True)
class Released:
    """The committed sums of a partition."""

    through: dict[bytes, int] = field(default_factory=dict)  # of each key, all numbers up to this
    beyond: set[tuple[bytes, int]] = field(default_factory=set)  # and those after a missing one
    # Where aborted records may be: from an offset to the next committed record, or to the end.
    gaps: list[tuple[int, int]] = field(default_factory=list)

    def __contains__(self, number: tuple[bytes, int]) -> bool:
        key, sequence = number
        return sequence <= self.through.get(key, 0) or number in self.beyond

    def add(self, key: bytes, sequence: int) -> None:
        """Note a sum's number; most come in their order."""
        through = self.through.get(key, 0)
        if sequence > through + 1:
            self.beyond.add((key, sequence))
        elif sequence == through + 1:
            while (key, sequence + 1) in self.beyond:
                sequence += 1
                self.beyond.remove((key, sequence))
            self.through[key] = sequence


async def released(log: Log) -> Released:
    """All committed sums.

    Between two of them one offset may be missing, the marker that ends a transaction; where more
    is missing, records were aborted (`sums` is neither compacted nor deleted from).
    """
    found, last = Released(), -2
    async for records in log.read("sums"):
        for record in records:
            found.add(record.key, _sequence(record))
            if record.offset > last + 2:
                found.gaps.append((last + 1, record.offset))
            last = record.offset
    found.gaps.append((last + 1, sys.maxsize))
    return found


async def aborted(log: Log, committed: Released) -> dict[tuple[bytes, int], bytes]:
    """The sums that only readers of uncommitted records have seen, by key and sequence: few."""
    found: dict[tuple[bytes, int], bytes] = {}
    for start, stop in _joined(committed.gaps):
        async with aclosing(log.read("sums", committed=False, start=max(0, start))) as chunks:
            async for records in chunks:
                for record in records:
                    number = (record.key, _sequence(record))
                    if number not in committed:
                        found.setdefault(number, record.value)
                if records[-1].offset >= stop:
                    break
    return found


def _joined(gaps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Gaps that are near each other as one: a reading costs more than a few thousand records."""
    joined: list[tuple[int, int]] = []
    for start, stop in gaps:
        if joined and start - joined[-1][1] < _NEAR:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return joined


def _sequence(record: Record) -> int:
    """The sequence number of a sum. What cannot be read could hide a release: no way on."""
    try:
        if record.key is None:
            raise InvalidInput("no key")
        return peek_sequence(record.value)
    except InvalidInput as error:
        raise InvalidInput(f"sums, offset {record.offset}: {error}; partition not opened") from None
