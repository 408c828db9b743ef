"""What is written once, or not at all: by a stale worker, or when a send fails."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from aiokafka import TopicPartition

from stream_app import kafka
from stream_app.kafka.errors import FENCED
from stream_app.local.broker import LocalBroker
from stream_app.runtime.runner import Runner
from stream_app.runtime.stage import Output, Stage
from stream_app.wire.report import encode_report
from tests.core.build import experiment
from tests.runtime.site import opened, site, small, until
from tests.support.partition_log import Record, assignment, report_id, terms

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


async def test_zombie_is_fenced(broker: LocalBroker) -> None:
    """A worker that stood still while another took its partition writes nothing any more."""
    async with site(broker, instance_id="worker-1") as here:
        stale = here.shuffle()
        await opened(stale)
        batch = terms(size=2)
        await here.send("assignments", b"demo", assignment(batch))
        await here.report("demo", batch.batch_id, 1)
        session = stale.session
        assert session is not None
        partition = session.partitions.open[0]
        await until(lambda: partition.state.counts()["accepted"] == 1)
        await session.lock.acquire()
        fresh = here.shuffle()
        await opened(fresh)
        await here.report("demo", batch.batch_id, 1)
        await until(lambda: here.read("sums"))
        late = encode_report(batch.batch_id, report_id(99), 9)

        partition.state.feed([Record(1, b"demo", late, 0)], refreshed=True)
        with pytest.raises(FENCED):
            async with session.transactions.writing() as begin:
                begin(partition)
        session.lock.release()

        assert len(await here.audit()) == 1
        assert len(await here.read("sums", committed=False)) == 1


class Failing:
    """A partition whose outputs are too large for the broker; its offset says they are out."""

    def __init__(self, halt: asyncio.Event) -> None:
        self.halt = halt
        self.position = 0
        self.due = False

    async def recover(self, log: Any, restart_offset: int | None) -> int:
        return restart_offset or 0

    def feed(self, records: Sequence[Any], *, refreshed: bool) -> None:
        self.position = records[-1].offset + 1
        self.due = True
        self.halt.set()

    def control(self, records: Sequence[Any]) -> None:
        pass

    def take(self) -> list[Output]:
        due = self.due
        self.due = False
        return [Output("sums", b"demo", b"x" * (2 << 20))] if due else []

    def restart_offset(self) -> int:
        return self.position

    def tick(self, now_ms: int) -> None:
        pass

    def wrote(self, ends: Mapping[str, int]) -> None:
        pass

    def counts(self) -> dict[str, int]:
        return {}


async def test_failed_release_is_not_marked(broker: LocalBroker) -> None:
    """Told to stop while a transaction is about to fail: its reports are not marked as done."""
    async with site(broker) as here:
        halt = asyncio.Event()
        group = here.settings.shuffle.group
        stage = Stage("shuffle", "reports", "assignments", False, group, "", lambda: Failing(halt))
        runner = Runner(here.settings.kafka, stage)
        await here.send("reports", b"demo", b"x")
        await asyncio.wait_for(runner.run(halt), 30)
        source = TopicPartition(kafka.topic(here.settings.kafka, "reports"), 0)
        async with kafka.consumer(here.settings.kafka, group_id=group) as reader:
            committed = await reader.committed(source)

        assert await here.read("sums", committed=False) == []
        assert not committed


async def test_too_large_an_output(broker: LocalBroker) -> None:
    """An experiment whose assignment does not fit into a record does not hold up the others."""
    async with site(broker) as here:
        arms = tuple(f"{'𝔸' * 96}{i:04}" for i in range(1000))
        fat = replace(experiment(horizon=1_000_000, order="interleaved"), name="fat", arms=arms)
        await here.define(fat)
        await here.define(small("one"))
        here.agent()

        assert await until(here.assignments, 8)
