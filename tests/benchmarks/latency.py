"""From a batch's last acknowledged report to the next assignment in a client's hands.

Two transactions are in the way, the shuffle stage's and the agent's; the peer is one transaction of
one record and its read by a consumer of committed records. Also what the wait wastes: users who
come meanwhile report to a batch that is closed.
"""

import asyncio
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from time import perf_counter

import uvloop
from aiokafka import TopicPartition

from producers.simulated_users import run_users
from producers.transport import KafkaTransport
from stream_app import kafka, registry
from stream_app.core.experiment import Experiment
from stream_app.core.terms import Terms, parse
from stream_app.local.broker import LocalBroker
from stream_app.settings import Settings
from stream_app.wire.assignment import decode_offer
from tests.benchmarks.harness import Outcome, compare
from tests.benchmarks.traffic import rows
from tests.integration.service import environment, experiment, settings_for, topics, workers

_ROUNDS = 300
_SIZE = 60
_USERS_A_SECOND = 10_000
_numbers = count()
_ARMS = 10  # interleaved order wastes (1 + 1/2 + ... + 1/k) / k of what sequential order does


def outcomes() -> Iterator[Outcome]:
    """All comparisons of this module."""
    with LocalBroker() as broker, tempfile.TemporaryDirectory() as folder:
        settings = settings_for(broker.bootstrap)
        uvloop.run(topics(settings, 2))
        with workers(settings, Path(folder), "shuffle,agent"):
            for load, rate in (("idle", 0), ("at half load", _half_load(settings))):
                with _crowd(settings, rate):
                    peer, ours = uvloop.run(_interleaved(settings, load))
                for name, share, target in (("p50", 50, 2.5), ("p99", 99, 3.0)):
                    yield Outcome(
                        f"last report acknowledged to next assignment seen, {load}, {name}",
                        "a transaction of one record and its committed read",
                        _percentile(peer, share), _percentile(ours, share), target,
                    )  # fmt: skip
            yield _waste(settings, _USERS_A_SECOND * _percentile(ours, 50))  # at half load


def _percentile(values: list[float], share: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[share - 1]


# -- latency ------------------------------------------------------------------------------------


async def _interleaved(settings: Settings, load: str) -> tuple[list[float], list[float]]:
    """Both sides in turn, so that both meet the same moments."""
    name = f"latency-{load.rsplit(maxsplit=1)[-1]}"
    definition = experiment(name, preset="vb-sdp-ae", epsilon=0.9, horizon=10**9,
                            means=[0.5, 0.5, 0.5], schedule="fixed", batch_size=_SIZE)  # fmt: skip
    await registry.create(settings.kafka, definition)
    transport = KafkaTransport(settings.kafka, name)
    await transport.open()
    offers = transport.follow()
    peer = []
    ours = []
    try:
        async with kafka.producer(settings.kafka, transactional_id=f"peer-{name}") as producer:
            place = TopicPartition(kafka.topic(settings.kafka, "windows"), 0)
            async with kafka.consumer(settings.kafka) as reader:
                reader.assign([place])
                await reader.seek_to_end(place)
                batch = await _next_batch(offers)
                for _ in range(_ROUNDS):
                    start = perf_counter()
                    async with producer.transaction():
                        await producer.send_and_wait(place.topic, b"{}", b"peer", partition=0)
                    await reader.getone()
                    peer.append(perf_counter() - start)
                    await transport.send([rows(batch, _SIZE)])
                    start = perf_counter()
                    batch = await _next_batch(offers)
                    ours.append(perf_counter() - start)
    finally:
        await offers.aclose()
        await transport.close()
    await registry.stop(settings.kafka, name)
    return peer[10:], ours[10:]


async def _next_batch(offers: AsyncIterator[bytes | None]) -> Terms:
    async with asyncio.timeout(60):
        async for value in offers:
            offer = decode_offer(value)
            if offer.open:
                return parse(offer.open[0][1])
    raise AssertionError("the assignments ended")


# -- load ---------------------------------------------------------------------------------------


def _half_load(settings: Settings) -> int:
    """Half of the users a second that the service takes when a client sends what it can."""
    definition = _busy("capacity", 200_000)
    uvloop.run(registry.create(settings.kafka, definition))
    outcome = uvloop.run(run_users(settings, "capacity", seed=1, experiment=definition))
    return int(outcome.users / outcome.seconds / 2)


def _busy(name: str, horizon: int) -> Experiment:
    return experiment(name, horizon=horizon, means=[0.5, 0.5, 0.5])


@contextmanager
def _crowd(settings: Settings, rate: int) -> Iterator[None]:
    """Users of another experiment at a steady rate, from a process of their own."""
    if not rate:
        yield
        return
    uvloop.run(registry.create(settings.kafka, _busy("crowd", 10**9)))
    command = [sys.executable, "-m", "stream_app", "users", "crowd", "--rate", str(rate)]
    with subprocess.Popen(command, env=environment(settings), stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL) as users:  # fmt: skip
        try:
            yield
        finally:
            users.kill()
    uvloop.run(registry.stop(settings.kafka, "crowd"))


# -- waste --------------------------------------------------------------------------------------


def _waste(settings: Settings, expected: float) -> Outcome:
    """Users lost to closed batches, at a steady rate: interleaved against sequential order."""
    return compare(
        f"late reports a batch at {_USERS_A_SECOND} users/s, {_ARMS} arms, interleaved order",
        f"sequential order (arrival rate times p50 latency at half load: {expected:.0f})",
        lambda: uvloop.run(_late(settings, "sequential")),
        lambda: uvloop.run(_late(settings, "interleaved")),
        target=1 / 3,
        rounds=3,
    )


async def _late(settings: Settings, order: str) -> float:
    """Late reports per released batch."""
    arms = {"arms": [f"arm {i}" for i in range(_ARMS)], "means": [0.5] * _ARMS}
    definition = experiment(f"waste-{next(_numbers)}", order=order, horizon=60_000, **arms)
    name = definition.name
    await registry.create(settings.kafka, definition)
    outcome = await run_users(settings, name, seed=2, rate=_USERS_A_SECOND, experiment=definition)
    entry = await registry.find(settings.kafka, name)
    assert entry.assignment is not None
    state = entry.assignment.state
    return (outcome.reports - state.users) / sum(arm.batches for arm in state.arms)
