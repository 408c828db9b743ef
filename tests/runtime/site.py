"""Topics of their own on a real broker, and the runners of both stages that live there."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from aiokafka import AIOKafkaProducer

from stream_app import agent, kafka, shuffler
from stream_app.core.experiment import Experiment
from stream_app.core.state import Status
from stream_app.core.terms import Limits
from stream_app.kafka.reading import read_partition
from stream_app.local.broker import LocalBroker
from stream_app.runtime.open_partition import OpenPartition
from stream_app.runtime.runner import Runner
from stream_app.settings import Settings
from stream_app.wire.assignment import Assignment, decode_assignment
from stream_app.wire.definition import Definition
from stream_app.wire.report import encode_report
from tests.core.build import experiment
from tests.support.partition_log import Kafka, Record, audit, report_id

COUNTER = itertools.count()


async def until(
    holds: Callable[[], Any] | Callable[[], Awaitable[Any]], within_s: float = 15
) -> Any:
    deadline = time.monotonic() + within_s
    while True:
        value = holds()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.05)


@dataclass
class Site:
    """Topics of its own on a broker, a producer for all roles, and the runners that live there."""

    settings: Settings
    producer: AIOKafkaProducer
    partitions: int
    running: dict[int, tuple[asyncio.Task[None], asyncio.Event]] = field(default_factory=dict)
    next_id: int = 0

    async def send(
        self, topic: str, key: bytes, value: bytes, partition: int = 0, **more: Any
    ) -> None:
        name = kafka.topic(self.settings.kafka, topic)
        await self.producer.send_and_wait(name, value, key=key, partition=partition, **more)

    def start(self, runner: Runner) -> Runner:
        halt = asyncio.Event()
        self.running[id(runner)] = (asyncio.ensure_future(runner.run(halt)), halt)
        return runner

    def shuffle(self) -> Runner:
        return self.start(shuffler.make_runner(self.settings))

    def agent(self) -> Runner:
        return self.start(agent.make_runner(self.settings))

    async def stop(self, runner: Runner) -> float:
        task, halt = self.running.pop(id(runner))
        began = time.monotonic()
        halt.set()
        await task
        return time.monotonic() - began

    async def read(self, topic: str, partition: int = 0, *, committed: bool = True) -> list[Any]:
        return [
            record
            async for records in read_partition(
                self.settings.kafka, topic, partition, committed=committed
            )
            for record in records
        ]

    async def assignments(self) -> dict[str, Assignment]:
        return {
            record.key.decode(): decode_assignment(record.value)
            for partition in range(self.partitions)
            for record in await self.read("assignments", partition)
        }

    async def audit(self, partition: int = 0) -> dict[str, dict[str, Any]]:
        """The naive auditor over what stands on the broker, aborted sums too."""
        copy = Kafka()
        for topic in ("reports", "sums"):
            copy.topics[topic] = [
                (Record(r.offset, r.key, r.value, r.timestamp), True)
                for r in await self.read(topic, partition, committed=False)
            ]
        return audit(copy)

    async def define(self, definition: Experiment) -> None:
        partition = kafka.partition_of(definition.name, self.partitions)
        await self.send(
            "experiments", definition.name.encode(), Definition(definition).encode(), partition
        )

    async def report(self, name: str, batch_id: str, ones: int, partition: int = 0) -> None:
        self.next_id += 1
        value = encode_report(batch_id, report_id(self.next_id), ones)
        await self.send("reports", name.encode(), value, partition)

    async def collect(self, names: Sequence[str], within_s: float = 30) -> None:
        """Clients fill every open batch until all experiments have ended."""
        filled: set[str] = set()

        async def ended() -> bool:
            known = await self.assignments()
            for name in names:
                if name not in known:
                    return False
                state = known[name].state
                for batch in state.open:
                    await self.fill(name, known[name].terms(batch), filled)
            return all(known[name].state.status is not Status.RUNNING for name in names)

        await until(ended, within_s)

    async def fill(self, name: str, batch: Any, filled: set[str]) -> None:
        if batch.batch_id in filled:
            return
        filled.add(batch.batch_id)
        partition = kafka.partition_of(name, self.partitions)
        middle = batch.mechanism.max_ones // 2
        topic = kafka.topic(self.settings.kafka, "reports")
        for number in range(batch.mechanism.promise.batch_size + 1):
            self.next_id += 1
            ones = middle + (number % 10 < 8 if batch.arm == "arm-0" else number % 10 < 2)
            value = encode_report(batch.batch_id, report_id(self.next_id), ones)
            await self.producer.send(topic, value, key=name.encode(), partition=partition)
        await self.producer.flush()


@asynccontextmanager
async def site(
    broker: LocalBroker, partitions: int = 1, **shuffle_options: Any
) -> AsyncIterator[Site]:
    name = f"runner-{next(COUNTER)}"
    base = Settings(limits=Limits(min_batch_size=1))  # one report fills a window
    shuffle_options = {"retain_reports_for_audit": True, **shuffle_options}
    settings = replace(
        base,
        kafka=replace(base.kafka, bootstrap=broker.bootstrap, topic_prefix=name),
        shuffle=replace(base.shuffle, group=f"{name}-shuffle", **shuffle_options),
        agent=replace(base.agent, group=f"{name}-agent"),
    )
    await kafka.create_topics(settings.kafka, partitions, 1)
    async with kafka.producer(settings.kafka) as producer:
        here = Site(settings, producer, partitions)
        try:
            yield here
        finally:
            for task, halt in here.running.values():
                halt.set()
                await asyncio.wait({task}, timeout=10)
                task.cancel()


def small(name: str, **changes: Any) -> Experiment:
    return replace(experiment(honest="0.9", horizon=300, arms=2, **changes), name=name)


def open_partitions(runner: Runner) -> Mapping[int, OpenPartition]:
    return {} if runner.session is None else runner.session.partitions.open


async def opened(runner: Runner, count: int = 1) -> None:
    await until(lambda: len(open_partitions(runner)) >= count)
