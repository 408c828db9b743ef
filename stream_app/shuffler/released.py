"""Which batches of a partition have a sum: read from the log, and saved so that starts stay short.

A sum that stands in the log, committed or aborted, is its batch's only value, ever. So a start
reads `sums` both ways: what is committed is released, what was only aborted is released again as
it is.
"""

import sys
from contextlib import aclosing
from dataclasses import dataclass, field

from stream_app.errors import InvalidInput
from stream_app.runtime.stage import Log, Record
from stream_app.wire.checkpoint import decode_released, encode_released
from stream_app.wire.sum import peek_sequence

# The key of the list of releases in `windows`; a checkpoint's begins with an experiment's name.
SAVED = b"/released"

_NEAR = 5_000  # offsets
# Kafka takes records of 1 MB: this is room for tens of thousands of experiments in a partition.
_MOST_BYTES = 700_000


@dataclass(slots=True)
class ReleasedBatches:
    """The sequence numbers of all sums of a partition below an offset, and of some after it.

    Saved now and then, so that a start need not read all sums that there ever were.
    """

    reached: int = 0  # the offset after the last committed sum that is surely among them
    through: dict[bytes, int] = field(default_factory=dict)  # of each key, all numbers up to this
    beyond: set[tuple[bytes, int]] = field(default_factory=set)  # and those after a missing one
    unsaved: int = 0  # how many were added since they were saved

    def __contains__(self, number: tuple[bytes, int]) -> bool:
        key, sequence = number
        return sequence <= self.through.get(key, 0) or number in self.beyond

    def add(self, key: bytes, sequence: int) -> None:
        """Note a sum's number; most come in their order."""
        self.unsaved += 1
        through = self.through.get(key, 0)
        if sequence > through + 1:
            self.beyond.add((key, sequence))
        elif sequence == through + 1:
            while (key, sequence + 1) in self.beyond:
                sequence += 1
                self.beyond.remove((key, sequence))
            self.through[key] = sequence

    def save(self) -> bytes | None:
        """Its record, for a transaction that has every sum in it or behind it; None if too long."""
        self.unsaved = 0
        value = encode_released(self.reached, self.through, self.beyond)
        return value if len(value) <= _MOST_BYTES else None

    @classmethod
    def saved(cls, value: bytes | None) -> "ReleasedBatches":
        """What `save` wrote; nothing of None. Raises InvalidInput."""
        return cls() if value is None else cls(*decode_released(value))


async def read_released(log: Log, found: ReleasedBatches) -> list[tuple[int, int]]:
    """Add all committed sums that are not in what was saved.

    Returns where aborted records may be: from an offset to the next committed record, or to the
    end. Between two committed sums one offset may be missing, the marker that ends a transaction;
    where more is missing, records were aborted (`sums` is neither compacted nor deleted from).
    Below `reached` there is nothing to look for: whoever saved it had released those again.
    """
    gaps = []
    last = found.reached - 1 if found.reached else -2
    known = 1 if found.reached else 0  # the first record is the last one that was saved
    async for records in log.read("sums", start=max(0, last)):
        if known:
            _check(records[0], found)
        for record in records[known:]:
            found.add(record.key, _sequence(record))
            if record.offset > last + 2:
                gaps.append((last + 1, record.offset))
            last = record.offset
        known = 0
    if known:
        _check(None, found)
    found.reached = max(0, last + 1)
    gaps.append((last + 1, sys.maxsize))
    return gaps


def _check(record: Record | None, found: ReleasedBatches) -> None:
    """The last sum that was saved must stand where it stood. If sums are lost, there is no way on.

    Raises InvalidInput.
    """
    last = found.reached - 1
    if record is None or record.offset != last or (record.key, _sequence(record)) not in found:
        raise InvalidInput(
            f"sums, offset {last}: the sum that `windows` remembers is not there; partition not "
            "opened. Restore the topic, or, if it was made anew, use another kafka.topic_prefix"
        )


async def aborted_sums(
    log: Log, committed: ReleasedBatches, gaps: list[tuple[int, int]]
) -> dict[tuple[bytes, int], bytes]:
    """The sums that only readers of uncommitted records have seen, by key and sequence: few."""
    found: dict[tuple[bytes, int], bytes] = {}
    for start, stop in _joined(gaps):
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
