"""Many experiments, long logs, a second worker, and a restart with full windows."""

import asyncio
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import uvloop

from stream_app import agent, kafka, shuffler
from stream_app.core.agents import agent_for
from stream_app.core.window import LogPosition, Release
from stream_app.kafka.reading import read_partition
from stream_app.local.broker import LocalBroker, free_port
from stream_app.runtime.runner import Runner
from stream_app.settings import Settings
from stream_app.shuffler.released import SAVED
from stream_app.wire.assignment import Assignment
from stream_app.wire.definition import Definition
from stream_app.wire.sum import encode_sum
from tests.benchmarks.harness import Outcome, compare, of_rounds
from tests.benchmarks.traffic import (
    Record,
    Watched,
    collecting_rarely,
    drained,
    opening,
    plain_aiokafka,
    reports,
    send,
    waiting,
)
from tests.integration.probes import busy_s, cpu_s, rss_mb, series
from tests.integration.service import WorkerProcess, experiment, settings_for, topics, workers
from tests.support.partition_log import terms

_PARTITIONS = 8
_EXPERIMENTS = 10_000
_SIZE = 30
_BATCH = 1_000
_SUMS = 1_000_000
_UNSAVED = 4  # sums of each experiment that came after the list of releases was saved
_OPEN = 1_000_000


def outcomes() -> Iterator[Outcome]:
    """All comparisons of this module."""
    with LocalBroker(heap="1g") as broker, tempfile.TemporaryDirectory() as name:
        bootstrap = broker.bootstrap
        folder = Path(name)
        yield compare(
            f"one worker, {_EXPERIMENTS} experiments in mixed order: seconds a report",
            "the same worker, 1 experiment",
            lambda: uvloop.run(_single(bootstrap)),
            lambda: uvloop.run(_mixed(bootstrap)),
            target=1 / 0.7,
            rounds=9,
        )
        yield _memory(bootstrap, folder)
        yield _start(bootstrap)
        yield _recovery(bootstrap, folder)
        yield _second_worker(bootstrap, folder)


async def _spread(
    settings: Settings, topic: str, entries: Sequence[Record], count: int = _PARTITIONS
) -> None:
    """Write records to the partitions of their experiments, which are their keys."""
    parts: dict[int, list[Record]] = {}
    for key, value in entries:
        parts.setdefault(kafka.partition_of(key.decode(), count), []).append((key, value))
    for number, records in parts.items():
        await send(settings, topic, number, records)


# -- rate with many experiments -----------------------------------------------------------------


async def _single(bootstrap: str) -> float:
    count = _EXPERIMENTS * _SIZE // _BATCH
    settings = await waiting(bootstrap, count, _BATCH)
    return await drained(settings, count) / (count * _BATCH)


async def _mixed(bootstrap: str) -> float:
    """As many reports and as many releases: most windows stay open, as they would at any time."""
    full = _EXPERIMENTS * _SIZE // _BATCH
    sizes = [_SIZE] * full + [_BATCH] * (_EXPERIMENTS - full)
    settings = await crowded(bootstrap, sizes, _SIZE)
    return await drained(settings, full, _PARTITIONS) / (_EXPERIMENTS * _SIZE)


async def crowded(
    bootstrap: str,
    sizes: Sequence[int],
    each: int,
    count: int = _PARTITIONS,
    together: int = _EXPERIMENTS,
) -> Settings:
    """Experiments with an open batch of each size, and `each` reports to all.

    The reports of so many experiments together are in random order.
    """
    settings = settings_for(bootstrap)
    await topics(settings, count)
    kinds = {size: terms(1, size) for size in set(sizes)}
    batches = [replace(kinds[size], experiment=f"e{i}") for i, size in enumerate(sizes)]
    await _spread(settings, "assignments", [opening([batch]) for batch in batches], count)
    random_order = random.Random(1)
    for first in range(0, len(batches), together):
        mixed = [r for batch in batches[first : first + together] for r in reports(batch, each)]
        random_order.shuffle(mixed)
        await _spread(settings, "reports", mixed, count)
    return settings


# -- memory and start ---------------------------------------------------------------------------


async def _idle(bootstrap: str, count: int, sums: int = 0) -> Settings:
    """Experiments as the operator and the agent write them, with so many sums behind each.

    A worker was there for all but the last few of the sums.
    """
    settings = settings_for(bootstrap)
    await topics(settings, _PARTITIONS)
    begun = experiment("e", horizon=100_000)
    state = agent_for(begun).begin()
    opened = tuple(replace(batch, sequence=sums + batch.sequence) for batch in state.open)
    state = replace(state, open=opened, sequence=sums + state.sequence)
    parts: dict[int, list[str]] = {}
    for name in (f"e{i}" for i in range(count)):
        parts.setdefault(kafka.partition_of(name, _PARTITIONS), []).append(name)
    old = max(0, sums - _UNSAVED)
    for number, names in parts.items():
        definitions = [Definition(replace(begun, name=name)) for name in names]
        records = ((d.experiment.name.encode(), d.encode()) for d in definitions)
        await send(settings, "experiments", number, records)
        await send(settings, "sums", number, _past_sums(names, range(1, old + 1)))
    if old:
        await _saved(settings)
    for number, names in parts.items():
        await send(settings, "sums", number, _past_sums(names, range(old + 1, sums + 1)))
        # Every sum is in the newest assignment of its experiment.
        newest = (
            Assignment(replace(begun, name=name), state, (sums - 1) * len(names) + i)
            for i, name in enumerate(names)
        )
        records = ((each.experiment.name.encode(), each.encode()) for each in newest)
        await send(settings, "assignments", number, records)
    return settings


def _past_sums(names: Sequence[str], numbers: Iterable[int]) -> Iterator[Record]:
    """The first sum of each experiment, then the second of each, and so on."""
    batch = terms(1, _SIZE)
    past = encode_sum(
        Release(batch.batch_id, batch, 15, "0" * 64, LogPosition(0, 0), LogPosition(1, 1))
    )
    head, tail = past.split(b'"batch":"1.')
    for sequence in numbers:
        value = head + b'"batch":"%d.' % sequence + tail
        for name in names:
            yield name.encode(), value


async def _saved(settings: Settings) -> None:
    """Let a worker read all sums, until it has saved which batches they released."""

    async def written() -> None:
        for partition in range(_PARTITIONS):
            while not [r async for r in read_partition(settings.kafka, "windows", partition)]:  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    await _while_running([shuffler.make_runner(settings)], written())


def _memory(bootstrap: str, folder: Path) -> Outcome:
    """What a worker's memory grows by for an experiment that nobody reports to."""
    sizes = {}
    for count in (1, _EXPERIMENTS):
        settings = uvloop.run(_idle(bootstrap, count))
        settings = replace(settings, metrics=replace(settings.metrics, port=free_port()))
        with workers(settings, folder, "shuffle,agent") as (worker,):
            _until(lambda s=settings, n=count: _open_windows(s) == n)
            time.sleep(2)
            sizes[count] = rss_mb(worker.pid)
    growth_kb = 1024 * (sizes[_EXPERIMENTS] - sizes[1]) / (_EXPERIMENTS - 1)
    return Outcome(
        f"memory of a worker for each of {_EXPERIMENTS} idle experiments: KB",
        f"1 KB (a worker with one experiment: {sizes[1]} MB)",
        1.0,
        growth_kb,
        20.0,
    )


def _open_windows(settings: Settings) -> int:
    return sum(series(settings.metrics.port, "shufflebandit_windows_open").values())


def _until(holds: Callable[[], bool], limit_s: float = 300) -> None:
    deadline = time.monotonic() + limit_s
    while True:
        try:
            if holds():
                return
        except OSError:
            pass
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.2)


def _start(bootstrap: str) -> Outcome:
    """With the list of releases that a worker left; at last once without it."""
    settings = uvloop.run(_idle(bootstrap, _EXPERIMENTS, _SUMS // _EXPERIMENTS))
    outcome = compare(
        "",
        "reading the same records bare",
        lambda: _read_bare(settings, ("sums", "assignments", "experiments")),
        lambda: uvloop.run(_started(settings)),
        target=2.0,
        rounds=3,
    )
    for partition in range(_PARTITIONS):
        uvloop.run(send(settings, "windows", partition, [(SAVED, b"?")]))
    without = uvloop.run(_started(settings))
    name = f"start with {_EXPERIMENTS} experiments and {_SUMS} sums in the log, both stages"
    return replace(outcome, name=f"{name} (all sums read again: {without:.2g} s)")


def _read_bare(settings: Settings, names: Sequence[str]) -> float:
    with plain_aiokafka(), collecting_rarely():
        return uvloop.run(_counted(settings, names))


async def _counted(settings: Settings, names: Sequence[str]) -> float:
    start = perf_counter()
    count = 0
    for name in names:
        for partition in range(await kafka.partition_count(settings.kafka)):
            async for records in read_partition(settings.kafka, name, partition):
                count += len(records)
    return perf_counter() - start


async def _started(settings: Settings) -> float:
    """Both stages of a worker, from nothing to all partitions open."""
    # Groups of their own: no member of an earlier round is waited for.
    fresh = f"{time.monotonic_ns()}"
    settings = replace(
        settings,
        shuffle=replace(settings.shuffle, group=f"shuffle-{fresh}"),
        agent=replace(settings.agent, group=f"agent-{fresh}"),
    )
    watched = [Watched(_PARTITIONS, 0), Watched(_PARTITIONS, 0)]
    runners = (
        shuffler.make_runner(settings, watched[0]),
        agent.make_runner(settings, watched[1]),
    )
    start = perf_counter()
    await _while_running(runners, asyncio.gather(*(each.ready.wait() for each in watched)))
    return max(each.began for each in watched) - start


async def _while_running(runners: Sequence[Runner], waiting_for: Any) -> None:
    halt = asyncio.Event()
    with collecting_rarely():
        tasks = [asyncio.ensure_future(runner.run(halt)) for runner in runners]
        async with asyncio.timeout(600):
            await waiting_for
            halt.set()
            await asyncio.gather(*tasks)


# -- a restart with a million reports in open windows -------------------------------------------


def _recovery(bootstrap: str, folder: Path) -> Outcome:
    """kill -9, then from the assignment of the partition to all windows as full as before."""
    settings = uvloop.run(_full_windows(bootstrap))
    settings = replace(settings, metrics=replace(settings.metrics, port=free_port()))

    def filled() -> int:
        return sum(series(settings.metrics.port, "shufflebandit_windows_filled_reports").values())

    worker = WorkerProcess(settings, "shuffle", folder / "recovery.log")
    try:
        _until(lambda: filled() == _OPEN)
        time.sleep(2)
    finally:
        worker.kill()
    costs = []
    for _ in range(3):
        bare = _read_bare(settings, ("reports",))
        costs.append((bare, uvloop.run(_recovered(settings))))
    return of_rounds(
        f"restart after kill -9 with {_OPEN} reports in open windows: seconds",
        "reading the same reports bare",
        costs,
        1.5,
    )


async def _full_windows(bootstrap: str) -> Settings:
    settings = settings_for(bootstrap)
    await topics(settings, 1)
    batches = [terms(number + 1, _OPEN) for number in range(10)]
    await send(settings, "assignments", 0, [opening(batches)])
    for batch in batches:
        await send(settings, "reports", 0, reports(batch, _OPEN // len(batches)))
    return settings


async def _recovered(settings: Settings) -> float:
    watched = Watched(1, 0)
    ended = 0.0

    async def full() -> None:
        nonlocal ended
        while watched.filled() < _OPEN:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        ended = perf_counter()

    await _while_running([shuffler.make_runner(settings, watched)], full())
    return ended - watched.assigned


# -- a second worker ----------------------------------------------------------------------------


def _second_worker(bootstrap: str, folder: Path) -> Outcome:
    """In turn, as `compare` does, but each run also tells who used the cores."""
    runs = [[_drained_by(bootstrap, folder, count) for count in (1, 2)] for _ in range(3)]
    cores = []
    for side in zip(*runs, strict=True):
        _, used, rest = (statistics.median(each) for each in zip(*side, strict=True))
        cores.append(f"{used:.2f} cores in workers, {rest:.2f} elsewhere")
    return of_rounds(
        f"two workers, many experiments: seconds for the same reports ({cores[1]})",
        f"one worker ({cores[0]}, mostly the broker)",
        [(one[0], two[0]) for one, two in runs],
        1 / 1.6,
    )


def _drained_by(bootstrap: str, folder: Path, count: int) -> tuple[float, float, float]:
    """Seconds from the first sum to the last, so that the start does not count; cores used then,
    by the workers and by all others.
    """
    size = 8 * _SIZE
    settings = uvloop.run(crowded(bootstrap, [size] * _EXPERIMENTS, size, together=500))
    samples: list[tuple[float, float, float]] = []  # time, and seconds of processors until then
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(0.05):
            used = sum(cpu_s(worker.pid) for worker in running)
            samples.append((time.time(), used, busy_s()))

    with workers(settings, folder, *["shuffle"] * count) as running:
        sampling = threading.Thread(target=sample)
        sampling.start()
        try:
            ends = uvloop.run(_ends(settings))
        finally:
            ended.set()
            sampling.join()
    begin, end = (min(samples, key=lambda each: abs(each[0] - at)) for at in ends)
    took, used, busy = (after - before for before, after in zip(begin, end, strict=True))
    return ends[1] - ends[0], used / took, (busy - used) / took


async def _ends(settings: Settings) -> tuple[float, float]:
    """When the first sum was written, and the last."""
    times: list[int] = []
    async with asyncio.timeout(300):
        while len(times) < _EXPERIMENTS:
            await asyncio.sleep(2)
            times = [
                record.timestamp
                for partition in range(_PARTITIONS)
                async for records in read_partition(settings.kafka, "sums", partition)
                for record in records
            ]
    return min(times) / 1000, max(times) / 1000
