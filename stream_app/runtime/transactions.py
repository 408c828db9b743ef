"""Writes what partitions put out: each chunk's outputs in one transaction of their partition.

The transaction makes the outputs visible together, and only if no other worker has taken the
partition: input offsets are not in it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from stream_app.kafka import topic
from stream_app.metrics.instruments import StageMetrics
from stream_app.runtime.kafka_health import KafkaHealth
from stream_app.runtime.open_partition import OpenPartition
from stream_app.runtime.stage import Output
from stream_app.settings import KafkaSettings

# Twice as long as the broker leaves a transaction open: then it is lost, and the session with it.
TRANSACTION_TIMEOUT_S = 20


class Transactions:
    """The transactions of one session."""

    def __init__(self, settings: KafkaSettings, metrics: StageMetrics, health: KafkaHealth) -> None:
        self._settings = settings
        self._metrics = metrics
        self._health = health

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Callable[[OpenPartition], None]]:
        """Begin to write the outputs of partitions, each once; all have ended when this is left."""
        begun: list[asyncio.Future[None]] = []

        def begin(partition: OpenPartition) -> None:
            outputs = partition.state.take()
            if outputs:
                begun.append(asyncio.ensure_future(self._write(partition, outputs)))

        try:
            yield begin
            await asyncio.gather(*begun)
        finally:
            await cancel(begun)

    async def _write(self, partition: OpenPartition, outputs: Sequence[Output]) -> None:
        """Write outputs in one transaction; every send is awaited before the commit."""
        writer = partition.writer
        started = time.monotonic()
        self._health.begun.append(started)
        # Given here: of several records in a batch Kafka's library would tell only the first's.
        now_ms = time.time_ns() // 1_000_000
        async with asyncio.timeout(TRANSACTION_TIMEOUT_S):
            await writer.begin_transaction()
            sent = [
                await writer.send(
                    topic(self._settings, output.topic),
                    output.value,
                    key=output.key,
                    partition=partition.number,
                    timestamp_ms=now_ms,
                )
                for output in outputs
            ]
            # A commit succeeds although a send failed: nothing would be written (RULES 3).
            written = await asyncio.gather(*sent)
            await writer.commit_transaction()
        offsets = [metadata.offset for metadata in written]
        # Below 0: one was sent twice, and Kafka did not remember where it is.
        if partition.restartable is not None and min(offsets) >= 0:
            ends = zip(outputs, offsets, strict=True)
            partition.restartable.wrote({output.topic: offset + 1 for output, offset in ends})
        self._health.wrote(started)
        self._metrics.committed(time.monotonic() - started)
        for output in outputs:
            self._metrics.wrote(output.times, output.topic, len(output.value or b""), now_ms)


async def cancel(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Cancel tasks and wait until they have ended; what they raise no longer matters."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
