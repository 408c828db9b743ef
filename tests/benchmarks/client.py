"""The client: `report()` calls until Kafka has acknowledged them all, against bare sending."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import uvloop

from producers.client import Client
from producers.file_store import FileStore
from producers.store import MemoryStore, Store
from stream_app.local.broker import LocalBroker
from stream_app.settings import Settings
from tests.benchmarks.harness import Outcome, compare
from tests.benchmarks.traffic import opening, reports, send
from tests.integration.service import settings_for, topics
from tests.support.partition_log import terms

_REPORTS = 200_000
_AT_ONCE = 5_000  # calls between two turns of the event loop


def outcomes() -> Iterator[Outcome]:
    """All comparisons of this module."""
    with LocalBroker() as broker:
        yield compare(
            f"client: {_REPORTS} calls of report(), noise drawn, all acknowledged: seconds",
            "aiokafka create_batch and send_batch of the same number of ready reports",
            lambda: uvloop.run(_bare(broker.bootstrap)),
            lambda: uvloop.run(_ours(broker.bootstrap, MemoryStore())),
            target=1 / 0.5,
            rounds=11,
        )
        yield compare(
            f"client: the same with a FileStore, all durable before they leave, {_REPORTS} calls",
            "aiokafka create_batch and send_batch of the same number of ready reports",
            lambda: uvloop.run(_bare(broker.bootstrap)),
            lambda: _with_file(broker.bootstrap),
            target=12,
            rounds=3,
        )


async def _opened(bootstrap: str) -> Settings:
    settings = settings_for(bootstrap)
    await topics(settings, 1)
    await send(settings, "assignments", 0, [opening([terms(1, 10 * _REPORTS)])])
    return settings


async def _bare(bootstrap: str) -> float:
    settings = await _opened(bootstrap)
    return await send(settings, "reports", 0, reports(terms(1, 10 * _REPORTS), _REPORTS))


def _with_file(bootstrap: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        store = FileStore(Path(folder) / "store")
        seconds = uvloop.run(_ours(bootstrap, store))
        store.close()
    return seconds


async def _ours(bootstrap: str, store: Store) -> float:
    settings = await _opened(bootstrap)
    async with Client(settings, "demo", store=store, immediate=True) as client:
        shown = [client.choose(f"user {number}") for number in range(_REPORTS)]
        await asyncio.to_thread(store.sync)
        start = perf_counter()
        for first in range(0, _REPORTS, _AT_ONCE):
            for each in shown[first : first + _AT_ONCE]:
                client.report(each, 1)
            await asyncio.sleep(0)
        await client.flush()
        assert client.counts.sent == _REPORTS
        return perf_counter() - start
