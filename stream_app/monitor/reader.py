"""The monitor: reads the public topics `assignments` and `sums` into the view.

It never reads `reports` or `windows`. Nothing depends on it: it may lose or repeat an event
without harm, and keeps no state outside its memory. What is known is in `view`, what is shown on
the web in `pages`.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import faust
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from stream_app import kafka
from stream_app.errors import Unavailable
from stream_app.logs import log
from stream_app.monitor.view import View
from stream_app.settings import KafkaSettings

# Records of one fetch: the agents hold the event loop for about 0.2 ms each.
_CHUNK = 100
# Quiet for so long, Kafka is asked whether it is there, and must answer in the same time.
_PROBE_S = 3.0


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
        """Read until `stop` is set; while Kafka is away, wait for it."""
        work = asyncio.ensure_future(self._work())
        halted = asyncio.ensure_future(stop.wait())
        await asyncio.wait({work, halted}, return_when=asyncio.FIRST_COMPLETED)
        halted.cancel()
        if work.done():
            work.result()
        work.cancel()
        await asyncio.wait({work})

    async def _work(self) -> None:
        known = True
        while True:
            try:
                partitions = await kafka.partition_count(self._settings, ("assignments", "sums"))
                async with kafka.consumer(self._settings) as client:
                    self._assign(client, partitions)
                    if not known:
                        log.info("monitor: Kafka is back")
                    self.connected = known = True
                    await self._follow(client)
            except (Unavailable, KafkaError, TimeoutError, OSError) as error:
                self.connected = False
                if known:
                    log.warning("monitor: Kafka is away (%s), waiting for it", type(error).__name__)
                known = False
            await asyncio.sleep(1)

    def _assign(self, client: AIOKafkaConsumer, partitions: int) -> None:
        places = [TopicPartition(t, n) for t in self._channels for n in range(partitions)]
        client.assign(places)
        for place in places:
            if place in self._positions:
                client.seek(place, self._positions[place])

    async def _follow(self, client: AIOKafkaConsumer) -> None:
        heard = time.monotonic()
        while True:
            chunks = await client.getmany(timeout_ms=200, max_records=_CHUNK)
            for place, records in chunks.items():
                await self._channels[place.topic].send(value=records)
                self._positions[place] = records[-1].offset + 1
            if not chunks and time.monotonic() - heard > _PROBE_S:
                async with asyncio.timeout(_PROBE_S):
                    await client.end_offsets(client.assignment())
                heard = time.monotonic()


def attach(app: faust.App, settings: KafkaSettings, view: View) -> Reader:
    """Give the application the agents that keep the view; returns the reader to run."""
    channels = {"assignments": app.channel(), "sums": app.channel()}
    reader = Reader(settings, channels)

    @app.agent(channels["assignments"], name="assignments")
    async def take_assignments(stream: Any) -> None:
        async for records in stream:
            for record in records:
                view.assignment(record.value)

    @app.agent(channels["sums"], name="sums")
    async def take_sums(stream: Any) -> None:
        async for records in stream:
            for record in records:
                view.sum(record.value, record.timestamp)

    return reader
