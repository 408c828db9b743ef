"""What a partition's state is rebuilt from: readings of its log that both stages share."""

from stream_app.errors import InvalidInput
from stream_app.messages import peek_batch
from stream_app.stages.partition import Log, Record


async def newest(log: Log, topic: str) -> dict[bytes, bytes | None]:
    """The last value of each key of a compacted topic; None where it is a tombstone."""
    found: dict[bytes, bytes | None] = {}
    async for records in log.read(topic):
        found.update((record.key, record.value) for record in records if record.key is not None)
    return found


async def released(log: Log) -> tuple[set[int], dict[bytes, int]]:
    """Hashes of (key, sequence) of all committed sums, and each key's highest sequence number."""
    found: set[int] = set()
    highest: dict[bytes, int] = {}
    async for records in log.read("sums"):
        for record in records:
            sequence = _sequence(record)
            found.add(hash((record.key, sequence)))
            highest[record.key] = max(sequence, highest.get(record.key, 0))
    return found, highest


async def aborted(log: Log, committed: set[int]) -> dict[tuple[bytes, int], bytes]:
    """The sums that only readers of uncommitted records have seen, by key and sequence: few."""
    found: dict[tuple[bytes, int], bytes] = {}
    async for records in log.read("sums", committed=False):
        for record in records:
            sequence = _sequence(record)
            if hash((record.key, sequence)) not in committed:
                found.setdefault((record.key, sequence), record.value)
    return found


def _sequence(record: Record) -> int:
    """The sequence number of a sum. What cannot be read could hide a release: no way on."""
    try:
        if record.key is None:
            raise InvalidInput("no key")
        return peek_batch(record.value)[0]
    except InvalidInput as error:
        raise InvalidInput(f"sums, offset {record.offset}: {error}; partition not opened") from None
