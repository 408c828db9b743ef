"""The two runners on a real broker, in this process: shared, stopped, cut off."""

import asyncio
from pathlib import Path

import pytest

from stream_app.local.broker import LocalBroker
from stream_app.runtime.runner import Runner
from tests.runtime.site import open_partitions, opened, site, small, until
from tests.support.partition_log import assignment, terms

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


def numbers(runner: Runner) -> set[int]:
    return set(open_partitions(runner))


def restart_offsets(runner: Runner) -> list[int | None]:
    return [
        partition.restartable and partition.restartable.restart_offset()
        for partition in open_partitions(runner).values()
    ]


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
        await until(lambda: numbers(one) and numbers(two) and len(numbers(one) | numbers(two)) == 4)
        assert not numbers(one) & numbers(two)
        gathering = asyncio.ensure_future(here.collect(names, 60))
        await asyncio.sleep(0.3)
        await here.stop(one)
        await gathering

        assert numbers(two) == {0, 1, 2, 3}
        for partition in range(4):
            await here.audit(partition)


async def test_stops_in_time(broker: LocalBroker) -> None:
    """Both stages end within 4 s of being told, in the middle of work, and leave their offset."""
    async with site(broker, partitions=4) as here:
        worker = here.shuffle()
        agent = here.agent()
        await opened(worker, 4)
        await opened(agent, 4)
        sending = [here.send("reports", b"demo", b"junk", n % 4) for n in range(200)]
        await asyncio.gather(*sending)
        await until(lambda: restart_offsets(worker) == [50] * 4)
        took = [await here.stop(worker), await here.stop(agent)]

        again = here.shuffle()
        await opened(again, 4)

        assert max(took) < 4
        assert restart_offsets(again) == [50] * 4


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
