"""The monitor: reads the public topics `assignments` and `sums` into the view.

It never reads `reports` or `windows`. Nothing depends on it: it may lose or repeat an event
without harm, and keeps no state outside its memory. What is known is in `view`, what is shown on
the web in `pages`.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from stream_app import kafka
from stream_app.kafka import TopicPartition
from stream_app.kafka.reconnect import Backoff, Trouble, keep_connected
from stream_app.logs import log
from stream_app.monitor.view import View
from stream_app.settings import KafkaSettings

# Records of one fetch: the agents hold the event loop for about 0.2 ms each.
_CHUNK = 100
# Without a record for so long, Kafka is asked whether it is there; it must answer in that time.
_PROBE_S = 3.0
# Nothing depends on the monitor: there is no haste.
_BACKOFF = Backoff(1.0, 1.0)


class Reader:
    """Reads the public topics, whole and committed, and gives them to the agents' channels.

    By partition and without a group: every monitor sees everything, and leaves nothing behind.
    """

    def __init__(self, settings: KafkaSettings, channels: Mapping[str, Any]) -> None:
        self.connected = False
        self._settings = settings
        self._channels = {kafka.topic(settings, name): c for name, c in channels.items()}
        self._positions: dict[TopicPartition, int] = {}

    def unready(self) -> str:
        """What it waits for, in words; empty while it does its work."""
        return "" if self.connected else "monitor: a connection to Kafka"

    async def run(self, stop: asyncio.Event) -> None:
        """Read until `stop` is set; while Kafka is unreachable, wait for it."""
        work = asyncio.ensure_future(self._work())
        halted = asyncio.ensure_future(stop.wait())
        await asyncio.wait({work, halted}, return_when=asyncio.FIRST_COMPLETED)
        halted.cancel()
        if work.done():
            work.result()
        work.cancel()
        await asyncio.wait({work})

    async def _work(self) -> None:
        trouble = Trouble(log)

        def lost(error: BaseException) -> None:
            self.connected = False
            trouble.begins(f"monitor: Kafka is away ({type(error).__name__}), waiting for it")

        def back() -> None:
            self.connected = True
            trouble.over("monitor: Kafka is back")

        await keep_connected(self._live, lost, back, _BACKOFF)

    async def _live(self, connected: Callable[[], None]) -> None:
        partitions = await kafka.partition_count(self._settings, ("assignments", "sums"))
        async with kafka.consumer(self._settings) as client:
            self._assign(client, partitions)
            connected()
            await self._follow(client)

    def _assign(self, client: kafka.PartitionReader, partitions: int) -> None:
        sources = [TopicPartition(t, n) for t in self._channels for n in range(partitions)]
        client.assign(sources)
        for source in sources:
            if source in self._positions:
                client.seek(source, self._positions[source])

    async def _follow(self, client: kafka.PartitionReader) -> None:
        heard = time.monotonic()
        while True:
            chunks = await client.getmany(timeout_ms=200, max_records=_CHUNK)
            for source, records in chunks.items():
                await self._channels[source.topic].send(value=records)
                self._positions[source] = records[-1].offset + 1
            if not chunks and time.monotonic() - heard > _PROBE_S:
                async with asyncio.timeout(_PROBE_S):
                    await client.end_offsets(client.assignment())
                heard = time.monotonic()


@contextlib.asynccontextmanager
async def following(settings: KafkaSettings, view: View) -> AsyncIterator[None]:
    """Keep a view current from the public topics, without an application around it."""
    halt = asyncio.Event()
    reader = Reader(settings, {name: _Direct(take) for name, take in takers(view).items()})
    task = asyncio.ensure_future(reader.run(halt))
    try:
        yield
    finally:
        halt.set()
        await task


class _Direct:
    """A channel that gives its records to the view at once."""

    def __init__(self, take: Callable[[Sequence[Any]], None]) -> None:
        self._take = take

    async def send(self, value: Sequence[Any]) -> None:
        self._take(value)


def takers(view: View) -> dict[str, Callable[[Sequence[Any]], None]]:
    """What puts the records of each public topic into the view."""

    def assignments(records: Sequence[Any]) -> None:
        for record in records:
            view.assignment(record.value)

    def sums(records: Sequence[Any]) -> None:
        for record in records:
            view.sum(record.value, record.timestamp)

    return {"assignments": assignments, "sums": sums}
