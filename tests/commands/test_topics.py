"""`topics create`: once, and in one line where it cannot be."""

import asyncio
import time

import pytest
from aiokafka.admin import NewTopic

from stream_app import kafka
from stream_app.local.broker import LocalBroker
from stream_app.settings import KafkaSettings
from tests.commands.conftest import Run
from tests.support.transcripts import fresh_settings

pytestmark = pytest.mark.kafka


def test_topics_are_created_once(broker: LocalBroker, run: Run) -> None:
    """What was created is named; the second time, that all exist."""
    settings = fresh_settings(broker)
    first = run("topics", "create", "--partitions", 2, kafka=settings)
    deadline = time.monotonic() + 20
    while run("experiment", "list", kafka=settings).code and time.monotonic() < deadline:
        time.sleep(0.1)
    second = run("topics", "create", "--partitions", 2, kafka=settings)
    other = run("topics", "create", "--partitions", 3, kafka=settings)

    assert [
        f"created {settings.topic_prefix}.{name}" for name in kafka.TOPICS
    ] == first.out.splitlines()
    assert f"all topics of {settings.topic_prefix} exist already\n" == second.out
    assert 2 == other.code
    assert "--partitions 3: the topics exist with 2" in other.err


def test_mismatched_partitions_are_exit_code_2(broker: LocalBroker, run: Run) -> None:
    settings = fresh_settings(broker)
    asyncio.run(_mixed(settings))
    for arguments in (("experiment", "list"), ("verify", "x"), ("topics", "create")):
        found = run(*arguments, kafka=settings)

        assert 2 == found.code
        assert "topics have different partition counts" in found.err
        assert 1 == found.err.count("\n")


async def _mixed(settings: KafkaSettings) -> None:
    wanted = [NewTopic(kafka.topic(settings, n), 1 + (n == "sums"), 1) for n in kafka.TOPICS]
    async with kafka.admin(settings) as admin, asyncio.timeout(20):
        await admin.create_topics(wanted)
        while not {topic.name for topic in wanted} <= set(await admin.list_topics()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
