"""The shuffle stage, from broker to committed sums, against a bare loop that keeps no promise."""

from collections.abc import Iterator
from time import perf_counter

import orjson
import uvloop
from aiokafka import TopicPartition

from stream_app import kafka
from stream_app.broker import LocalBroker
from stream_app.config import Settings
from tests.benchmarks.harness import Outcome, compare
from tests.benchmarks.traffic import drained, waiting

_REPORTS = 300_000


def outcomes() -> Iterator[Outcome]:
    """All comparisons of this module."""
    with LocalBroker() as broker:
        for size in (1_000, 100_000):
            yield _against_bare(broker.bootstrap, size)


def _against_bare(bootstrap: str, size: int) -> Outcome:
    count = _REPORTS // size

    async def ours() -> float:
        return await drained(await waiting(bootstrap, count, size), sums=count)

    async def peer() -> float:
        return await _bare(await waiting(bootstrap, count, size))

    return compare(
        f"shuffle stage, broker to committed sums, {count} batches of {size}, seconds",
        "getmany + orjson.loads + sum: no check, no dedupe, no transaction",
        lambda: uvloop.run(peer()),
        lambda: uvloop.run(ours()),
        target=1 / 0.8,
    )


async def _bare(settings: Settings) -> float:
    place = TopicPartition(kafka.topic(settings.kafka, "reports"), 0)
    async with kafka.consumer(settings.kafka, committed=False) as consumer:
        consumer.assign([place])
        await consumer.seek_to_beginning(place)
        start, count, total = perf_counter(), 0, 0
        while count < _REPORTS:
            for records in (await consumer.getmany(timeout_ms=100)).values():
                for record in records:
                    total += orjson.loads(record.value)["ones"]
                count += len(records)
        return perf_counter() - start
