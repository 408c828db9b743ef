"""Reports that wait on a broker, for benchmarks that read them; and a clock on a stage's work."""

import asyncio
import gc
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

from aiokafka import AIOKafkaConsumer

from stream_app import kafka, shuffler
from stream_app.app import collect_rarely
from stream_app.core.terms import Terms
from stream_app.kafka import connection
from stream_app.kafka.record_batches import BATCH_BYTES, Rows
from stream_app.metrics.instruments import Counted, Metrics, StageMetrics, Times
from stream_app.settings import Settings
from stream_app.wire.report import encode_report
from stream_app.wire.report_columns import encode_reports
from tests.integration.service import settings_for, topics
from tests.support.partition_log import assignment, terms

Record = tuple[bytes, bytes]  # key, value


async def send(settings: Settings, topic: str, partition: int, records: Iterable[Record]) -> float:
    """Write records to one partition, in order, as fast as it goes; seconds without connecting."""
    name = kafka.topic(settings.kafka, topic)
    async with kafka.producer(settings.kafka, max_batch_size=BATCH_BYTES) as producer:
        start = time.perf_counter()
        sent = []
        batch = producer.create_batch()
        for key, value in records:
            if batch.append(timestamp=None, key=key, value=value) is None:
                sent.append(await producer.send_batch(batch, name, partition=partition))
                batch = producer.create_batch()
                batch.append(timestamp=None, key=key, value=value)
        sent.append(await producer.send_batch(batch, name, partition=partition))
        await asyncio.gather(*sent)
        return time.perf_counter() - start


def reports(batch: Terms, count: int) -> list[Record]:
    """So many distinct reports to a batch."""
    key = batch.experiment.encode()
    noise = os.urandom(16 * count)
    return [
        (key, encode_report(batch.batch_id, noise[16 * i : 16 * i + 16], i % 2))
        for i in range(count)
    ]


def rows(batch: Terms, count: int) -> Rows:
    """The same by column, for a client's transport."""
    return encode_reports(batch.batch_id, os.urandom(16 * count), [i % 2 for i in range(count)])


def opening(batches: Sequence[Terms]) -> Record:
    """The assignment of an experiment's open batches."""
    name = batches[0].experiment
    return name.encode(), assignment(*batches, experiment=name)


@contextmanager
def plain_aiokafka() -> Iterator[None]:
    """Consumers that are made here take records apart as aiokafka does without this project."""
    with patch.object(connection, "PatchedConsumer", AIOKafkaConsumer):
        yield


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Python looks for dead objects as rarely as in a worker."""
    thresholds = gc.get_threshold()
    collect_rarely()
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


async def waiting(bootstrap: str, count: int, size: int, **shuffle: object) -> Settings:
    """A partition of its own with `count` open batches and the `size` reports of each."""
    settings = settings_for(bootstrap, **shuffle)
    await topics(settings, 1)
    batches = [terms(number + 1, size) for number in range(count)]
    await send(settings, "assignments", 0, [opening(batches)])
    await send(settings, "reports", 0, (r for batch in batches for r in reports(batch, size)))
    return settings


class Watched(Metrics):
    """The usual metrics, which also tell when a stage took up its work and wrote its last sum."""

    def __init__(self, partitions: int, sums: int) -> None:
        super().__init__()
        self._partitions = partitions
        self._sums = sums
        self.assigned = self.began = self.ended = 0.0
        self._open: list[Counted] = []
        self.ready = asyncio.Event()
        self.done = asyncio.Event()

    def stage(self, name: str) -> StageMetrics:
        stage = super().stage(name)
        opened = stage.opened
        wrote = stage.wrote
        rebalanced = stage.rebalanced

        def watch_rebalanced() -> None:
            rebalanced()
            self.assigned = time.perf_counter()

        def watch_opened(number: int, partition: Counted) -> None:
            opened(number, partition)
            self._open.append(partition)
            self._partitions -= 1
            if not self._partitions:
                self.began = time.perf_counter()
                self.ready.set()

        def watch_wrote(times: Times | None, topic: str, size: int, at_ms: int) -> None:
            wrote(times, topic, size, at_ms)
            self._sums -= topic == "sums"
            if not self._sums:
                self.ended = time.perf_counter()
                self.done.set()

        vars(stage).update(opened=watch_opened, wrote=watch_wrote, rebalanced=watch_rebalanced)
        return stage

    def filled(self) -> int:
        """Reports in the open windows."""
        return sum(partition.levels()["filled"] for partition in self._open)


async def drained(settings: Settings, sums: int, partitions: int = 1) -> float:
    """Seconds in which the shuffle stage, as a worker runs it, turns what waits into sums."""
    metrics = Watched(partitions, sums)
    halt = asyncio.Event()
    with collecting_rarely():
        running = asyncio.ensure_future(shuffler.make_runner(settings, metrics).run(halt))
        async with asyncio.timeout(300):
            await metrics.done.wait()
            halt.set()
            await running
    return metrics.ended - metrics.began
