"""The two runners on a real broker, in this process: shared, fenced, stopped, cut off."""

import asyncio
import itertools
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import InvalidProducerEpoch, ProducerFenced
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c

from stream_app import agent, kafka, shuffler
from stream_app.core.agents import Status
from stream_app.core.experiment import Experiment
from stream_app.kafka.reading import read_partition
from stream_app.local.broker import LocalBroker
from stream_app.runtime.runner import Runner
from stream_app.runtime.stage import Output, Stage
from stream_app.settings import Settings
from stream_app.wire.assignment import Assignment, decode_assignment
from stream_app.wire.definition import Definition
from stream_app.wire.report import encode_report
from tests.core.build import experiment
from tests.support.partition_log import Kafka, Record, assignment, audit, report_id, terms

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
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
        place = kafka.partition_of(definition.name, self.partitions)
        await self.send(
            "experiments", definition.name.encode(), Definition(definition).encode(), place
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
        place = kafka.partition_of(name, self.partitions)
        middle = batch.mechanism.max_ones // 2
        topic = kafka.topic(self.settings.kafka, "reports")
        for number in range(batch.mechanism.promise.batch_size + 1):
            self.next_id += 1
            ones = middle + (number % 10 < 8 if batch.arm == "arm-0" else number % 10 < 2)
            value = encode_report(batch.batch_id, report_id(self.next_id), ones)
            await self.producer.send(topic, value, key=name.encode(), partition=place)
        await self.producer.flush()


@asynccontextmanager
async def site(
    broker: LocalBroker, partitions: int = 1, **shuffle_options: Any
) -> AsyncIterator[Site]:
    name = f"runner-{next(COUNTER)}"
    base = Settings()
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
    return replace(experiment(horizon=300, arms=2, **changes), name=name)


def slots(runner: Runner) -> set[int]:
    return set() if runner.session is None else set(runner.session._slots)


async def opened(runner: Runner, count: int = 1) -> None:
    await until(lambda: len(slots(runner)) >= count)


async def test_end_to_end(broker: LocalBroker) -> None:
    """Definitions in, reports in, decisions out; the auditor recomputes every sum."""
    async with site(broker) as here:
        here.agent()
        worker = here.shuffle()
        await here.send("reports", b"one", b"junk")
        await here.define(small("one"))
        await here.define(small("two", order="interleaved"))
        await here.collect(["one", "two"])
        released = await here.audit()
        final = await here.assignments()

        assert {a.state.serve for a in final.values()} == {0}
        assert len(released) == sum(arm.batches for a in final.values() for arm in a.state.arms)
        assert worker.restarts == 0


async def test_shared_and_left(broker: LocalBroker) -> None:
    """Two workers share the partitions; when one leaves, the other takes over its windows."""
    async with site(broker, partitions=4) as here:
        here.agent()
        one = here.shuffle()
        await opened(one, 4)
        names = [f"e{i}" for i in range(6)]
        for name in names:
            await here.define(small(name))
        await until(here.assignments)
        two = here.shuffle()
        await until(lambda: slots(one) and slots(two) and len(slots(one) | slots(two)) == 4)
        assert not slots(one) & slots(two)
        gathering = asyncio.ensure_future(here.collect(names, 60))
        await asyncio.sleep(0.3)
        await here.stop(one)
        await gathering

        assert slots(two) == {0, 1, 2, 3}
        for partition in range(4):
            await here.audit(partition)


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
        slot = session._slots[0]
        await until(lambda: slot.state.counts()["accepted"] == 1)
        await session._lock.acquire()
        fresh = here.shuffle()
        await opened(fresh)
        await here.report("demo", batch.batch_id, 1)
        await until(lambda: here.read("sums"))
        late = encode_report(batch.batch_id, report_id(99), 9)

        slot.state.feed([Record(1, b"demo", late, 0)], refreshed=True)
        with pytest.raises((ProducerFenced, InvalidProducerEpoch)):
            async with session._writing() as begin:
                begin(slot)
        session._lock.release()

        assert len(await here.audit()) == 1
        assert len(await here.read("sums", committed=False)) == 1


async def test_stops_in_time(broker: LocalBroker) -> None:
    """Both stages end within 4 s of being told, in the middle of work, and leave their offset."""
    async with site(broker, partitions=4) as here:
        worker = here.shuffle()
        agent = here.agent()
        await opened(worker, 4)
        await opened(agent, 4)
        sending = [here.send("reports", b"demo", b"junk", n % 4) for n in range(200)]
        await asyncio.gather(*sending)
        slots = list(worker.session._slots.values())  # type: ignore[union-attr]
        await until(lambda: all(slot.state.restart_offset() == 50 for slot in slots))
        took = [await here.stop(worker), await here.stop(agent)]

        again = here.shuffle()
        await opened(again, 4)

        assert max(took) < 4
        assert all(s.state.restart_offset() == 50 for s in again.session._slots.values())  # type: ignore[union-attr]


async def test_stops_while_opening(broker: LocalBroker) -> None:
    """Being told to stop before the partitions are open is no different."""
    async with site(broker, partitions=8) as here:
        for pause in (0.0, 0.05, 0.2):
            worker = here.shuffle()
            await asyncio.sleep(pause)

            assert await here.stop(worker) < 4


async def test_broker_restarts(broker: LocalBroker, tmp_path: Path) -> None:
    """The broker goes away under half a window and comes back: the window is released."""
    local = LocalBroker(tmp_path)
    await asyncio.to_thread(local.start)
    try:
        async with site(local) as here:
            worker = here.shuffle()
            await opened(worker)
            batch = terms(size=4)
            await here.send("assignments", b"demo", assignment(batch))
            for _ in range(2):
                await here.report("demo", batch.batch_id, 1)
            await asyncio.to_thread(local.restart)
            for _ in range(2):
                await here.report("demo", batch.batch_id, 1)
            await until(lambda: here.read("sums"), 30)

            assert (await here.audit())[batch.batch_id]["total"] == 4
    finally:
        await asyncio.to_thread(local.stop)


async def test_stops_without_a_broker(broker: LocalBroker, tmp_path: Path) -> None:
    """A worker whose broker is gone still ends within 5 s of being told."""
    local = LocalBroker(tmp_path)
    await asyncio.to_thread(local.start)
    try:
        async with site(local) as here:
            worker = here.shuffle()
            await opened(worker)
            batch = terms(size=4)
            await here.send("assignments", b"demo", assignment(batch))
            await here.report("demo", batch.batch_id, 1)
            await asyncio.sleep(0.3)
            await asyncio.to_thread(local.kill)
            took = await here.stop(worker)
    finally:
        await asyncio.to_thread(local.stop)

    assert took < 5


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

    def counts(self) -> dict[str, int]:
        return {}

    levels = counts


async def test_failed_release_is_not_marked(broker: LocalBroker) -> None:
    """Told to stop while a transaction is about to fail: its reports are not marked as done."""
    async with site(broker) as here:
        halt = asyncio.Event()
        group = here.settings.shuffle.group
        stage = Stage("shuffle", "reports", "assignments", False, group, "", lambda: Failing(halt))
        runner = Runner(here.settings.kafka, stage)
        await here.send("reports", b"demo", b"x")
        await asyncio.wait_for(runner.run(halt), 30)
        place = TopicPartition(kafka.topic(here.settings.kafka, "reports"), 0)
        async with kafka.consumer(here.settings.kafka, group_id=group) as reader:
            committed = await reader.committed(place)

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


async def test_negative_timestamp(broker: LocalBroker) -> None:
    """A client chooses its records' time, the broker takes any before now: one value even so."""
    async with site(broker) as here:
        worker = here.shuffle()
        await opened(worker)
        batch = terms(size=1)
        await here.send("assignments", b"demo", assignment(batch))
        value = encode_report(batch.batch_id, report_id(1), 1)
        await here.send("reports", b"demo", value, timestamp_ms=-5)
        await until(lambda: here.read("sums"))
        await here.stop(worker)
        await here.report("demo", batch.batch_id, 9)
        again = here.shuffle()
        await until(lambda: slots(again) and again.session._slots[0].state._position == 2)  # type: ignore[union-attr]
        await asyncio.sleep(0.5)

        assert len(await here.audit()) == 1


def compressed(value: bytes) -> bytes:
    """A record batch in zstd, of a stored block: what any client library may send."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    builder.append(0, int(time.time() * 1000), b"demo", value, [])
    plain = bytes(builder.build())
    head = bytearray(plain[:61])
    body = plain[61:]
    block = (1 | len(body) << 3).to_bytes(3, "little") + body
    frame = b"\x28\xb5\x2f\xfd\x20" + bytes([len(body)]) + block
    struct.pack_into(">i", head, 8, 61 - 12 + len(frame))
    struct.pack_into(">h", head, 21, 4)
    whole = head + frame
    struct.pack_into(">I", whole, 17, calc_crc32c(bytes(whole[21:])))
    return bytes(whole)


async def test_compressed_report(broker: LocalBroker) -> None:
    """A client that compresses its batches does not stop the stage."""
    async with site(broker) as here:
        worker = here.shuffle()
        await opened(worker)
        name = kafka.topic(here.settings.kafka, "reports")
        await here.send("reports", b"demo", b"?")
        client = here.producer.client
        node = client.cluster.leader_for_partition(TopicPartition(name, 0))
        await client.send(node, ProduceRequest(None, 1, 5_000, [(name, [(0, compressed(b"?"))])]))
        batch = terms(size=1)
        await here.send("assignments", b"demo", assignment(batch))
        await here.report("demo", batch.batch_id, 1)

        assert await until(lambda: here.read("sums"), 6)
