"""The public transcript of one experiment, read from `sums` on demand.

Bounded: so many lines and so long at most; what is left begins at the offset that the last line
names. Reads nothing but `sums`.
"""

import time
from collections.abc import AsyncGenerator

import orjson

from stream_app import kafka
from stream_app.kafka.reading import read_partition
from stream_app.settings import KafkaSettings

# One answer: what a browser shows without trouble, and what it waits for before it gives up.
MAX_LINES = 10_000
_MAX_S = 20.0


class Transcript:
    """Reads released sums as JSON lines."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings

    async def lines(self, name: str, start: int | None) -> AsyncGenerator[bytes, None]:
        """Lines of an experiment from an offset on; perhaps empty. Raises Unavailable.

        Each is `{"offset":..,"time_ms":..,"sum":{..}}`; if not all fitted, the last one is
        `{"next":OFFSET}`.
        """
        count = await kafka.partition_count(self._settings, ("sums",))
        partition = kafka.partition_of(name, count)
        key = name.encode()
        left = MAX_LINES
        deadline = time.monotonic() + _MAX_S
        async for records in read_partition(self._settings, "sums", partition, start=start):
            chunk: list[bytes] = []
            for record in records:
                if not left or time.monotonic() > deadline:
                    yield b"".join(chunk) + orjson.dumps({"next": record.offset}) + b"\n"
                    return
                if record.key == key:
                    left -= 1
                    chunk.append(_line(record.offset, record.timestamp, record.value))
            yield b"".join(chunk)


def _line(offset: int, time_ms: int, value: bytes | None) -> bytes:
    try:
        released = orjson.loads(value or b"null")
    except orjson.JSONDecodeError:
        released = None
    return orjson.dumps({"offset": offset, "time_ms": time_ms, "sum": released}) + b"\n"
