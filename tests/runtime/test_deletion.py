"""Reports leave the log once a committed offset says that no open window needs them."""

import asyncio
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from stream_app import kafka, shuffler
from stream_app.local.broker import LocalBroker
from stream_app.metrics.instruments import Metrics
from tests.runtime.site import Site, opened, site, until
from tests.support.partition_log import assignment, terms

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


async def bounds(here: Site) -> tuple[int, int]:
    """First offset and end of `reports`, partition 0."""
    place = TopicPartition(kafka.topic(here.settings.kafka, "reports"), 0)
    async with kafka.consumer(here.settings.kafka, committed=False) as reader:
        first = await reader.beginning_offsets([place])
        end = await reader.end_offsets([place])
    return first[place], end[place]


async def deleted(here: Site, first: int, end: int) -> None:
    async def gone() -> bool:
        return await bounds(here) == (first, end)

    await until(gone)


async def test_only_what_no_open_window_needs(broker: LocalBroker) -> None:
    """Below the offset all goes, above it nothing; after the release the rest goes too."""
    async with site(broker, retain_reports_for_audit=False) as here:
        worker = here.shuffle()
        await opened(worker)
        batch = terms(size=3)
        await here.send("assignments", b"demo", assignment(batch))
        for _ in range(4):
            await here.send("reports", b"demo", b"junk")
        for _ in range(2):
            await here.report("demo", batch.batch_id, 7)
        await deleted(here, 4, 6)
        await asyncio.sleep(2.5)
        assert await bounds(here) == (4, 6)

        await here.stop(worker)
        await opened(here.shuffle())
        await here.report("demo", batch.batch_id, 7)
        (total,) = await until(lambda: here.read("sums"))
        await deleted(here, 7, 7)

        assert b'"total":21' in total.value


async def test_a_stale_worker_deletes_nothing_that_the_new_one_needs(broker: LocalBroker) -> None:
    """It stood still while another took over, and its deletions go on: up to its last offset."""
    async with site(broker, instance_id="one", retain_reports_for_audit=False) as here:
        stale = here.shuffle()
        await opened(stale)
        batch = terms(size=3)
        await here.send("assignments", b"demo", assignment(batch))
        await here.send("reports", b"demo", b"junk")
        await here.report("demo", batch.batch_id, 5)
        await deleted(here, 1, 2)
        session: Any = stale.session
        await session.lock.acquire()
        fresh = here.shuffle()
        await opened(fresh)
        await here.report("demo", batch.batch_id, 5)
        session.deletion.repeat()  # so that it asks again, as it does every minute
        await asyncio.sleep(2.5)
        assert await bounds(here) == (1, 3)
        await here.report("demo", batch.batch_id, 5)
        (total,) = await until(lambda: here.read("sums", committed=False))
        session.lock.release()

        assert b'"total":15' in total.value


async def test_a_failure_is_said_once_and_stops_nothing(
    broker: LocalBroker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka deletes nothing on demand from a compacted topic: sums come all the same."""
    monkeypatch.setattr("stream_app.runtime.deletion._AFTER_FAILURE_S", 1.0)
    async with site(broker, retain_reports_for_audit=False) as here:
        name = kafka.topic(here.settings.kafka, "reports")
        compacted = ConfigResource(ConfigResourceType.TOPIC, name, {"cleanup.policy": "compact"})
        async with kafka.admin(here.settings.kafka) as admin:
            await admin.alter_configs([compacted])
        metrics = Metrics()
        worker = here.start(shuffler.make_runner(here.settings, metrics))
        await opened(worker)
        batch = terms(size=1)
        await here.send("assignments", b"demo", assignment(batch))
        await here.report("demo", batch.batch_id, 1)
        await until(lambda: here.read("sums"))
        await until(lambda: counted(metrics, "failed") >= 3)

        assert 1 == caplog.text.count("cannot be deleted (PolicyViolationError)")
        assert (0, 0) == (counted(metrics, "done"), worker.restarts)


def counted(metrics: Metrics, outcome: str) -> int:
    name = "shufflebandit_report_deletions_total"
    return int(metrics.registry.get_sample_value(name, {"outcome": outcome}) or 0)
