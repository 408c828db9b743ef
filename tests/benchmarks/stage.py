"""The shuffle stage, from broker to committed sums, against a bare loop and other frameworks."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter

import orjson
import uvloop
from aiokafka import TopicPartition

from stream_app import kafka
from stream_app.local.broker import LocalBroker
from stream_app.settings import Settings
from tests.benchmarks.harness import Outcome, compare
from tests.benchmarks.traffic import collecting_rarely, drained, plain_aiokafka, waiting

_REPORTS = 300_000
_RARELY = "; Python's garbage collected as rarely as in a worker"
# Program, what it is, reports (it should take seconds), how many times faster we should be.
_PEERS = (
    ("faust_agent", "a faust agent, the same window, at least once", 30_000, 50),
    ("quix", "Quix Streams, tumbling_count_window, exactly once", 30_000, 5),
    ("bytewax_flow", "bytewax, the same window, without recovery", 300_000, 1),
)


def outcomes() -> Iterator[Outcome]:
    """All comparisons of this module."""
    with LocalBroker() as broker:
        for size in (1_000, 100_000):
            for setting, words in ((nullcontext, ""), (collecting_rarely, _RARELY)):
                yield compare(
                    f"shuffle stage, broker to committed sums, batches of {size}: seconds a report",
                    f"getmany + orjson.loads + sum: no check, no dedupe, no transaction{words}",
                    lambda size=size, gc=setting: _bare(broker.bootstrap, size, gc()),
                    lambda size=size: uvloop.run(_ours(broker.bootstrap, size)),
                    target=1 / 0.8,
                )
        for program, description, reports, times in _PEERS:
            yield compare(
                "shuffle stage, broker to committed sums, batches of 1000: seconds a report",
                description,
                lambda program=program, reports=reports: _peer(broker.bootstrap, program, reports),
                lambda: uvloop.run(_ours(broker.bootstrap, 1_000)),
                target=1 / times,
                rounds=3,
            )


async def _ours(bootstrap: str, size: int) -> float:
    count = _REPORTS // size
    return await drained(await waiting(bootstrap, count, size), sums=count) / _REPORTS


def _bare(bootstrap: str, size: int, collecting: AbstractContextManager[None]) -> float:
    settings = uvloop.run(waiting(bootstrap, _REPORTS // size, size))
    with plain_aiokafka(), collecting:
        return uvloop.run(_summed(settings))


async def _summed(settings: Settings) -> float:
    place = TopicPartition(kafka.topic(settings.kafka, "reports"), 0)
    async with kafka.consumer(settings.kafka, committed=False) as consumer:
        consumer.assign([place])
        await consumer.seek_to_beginning(place)
        start = perf_counter()
        count = 0
        total = 0
        while count < _REPORTS:
            for records in (await consumer.getmany(timeout_ms=100)).values():
                for record in records:
                    total += orjson.loads(record.value)["ones"]
                count += len(records)
        return (perf_counter() - start) / count


def _peer(bootstrap: str, program: str, reports: int) -> float:
    size = 1_000
    settings: Settings = uvloop.run(waiting(bootstrap, reports // size, size))
    topics = [kafka.topic(settings.kafka, name) for name in ("reports", "sums")]
    module = f"tests.benchmarks.peers.{program}"
    command = [sys.executable, "-m", module, bootstrap, *topics, str(reports), str(size)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return float(json.loads(done.stdout.splitlines()[-1])["seconds"]) / reports
