"""The whole pipeline on a real broker, recomputed by the auditor."""

import asyncio
import contextlib
import math
import random
import sys
from pathlib import Path

import pytest

from stream_app import registry
from stream_app.core import simulation
from stream_app.core.experiment import Experiment
from stream_app.core.state import Status
from stream_app.local.broker import LocalBroker
from stream_app.settings import Settings
from tests.integration.service import (
    check,
    environment,
    experiment,
    play,
    regret,
    settings_for,
    topics,
    workers,
)

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SEED = 31415  # of the kills


async def test_every_preset_in_both_orders(broker: LocalBroker, tmp_path: Path) -> None:
    """sdp-ae, vb-sdp-ae, optimal and kl-ucb, sequential and interleaved: nothing differs."""
    settings = settings_for(broker.bootstrap)
    await topics(settings, 4)
    experiments = [
        experiment(f"{preset}.{order}", preset=preset, order=order, epsilon=epsilon, horizon=users)
        for preset, epsilon, users in (
            ("sdp-ae", 0.9, 20_000),
            ("vb-sdp-ae", 0.9, 6_000),
            ("optimal", 1, 3_000),
            ("kl-ucb", 1, 3_000),
        )
        for order in ("sequential", "interleaved")
    ]
    with workers(settings, tmp_path, "shuffle,agent"):
        ended = await play(settings, experiments)

    batches, _ = await check(settings, [e.name for e in experiments])
    assert batches > 0
    for assignment in ended:
        assert assignment.state.status in (Status.DECIDED, Status.EXHAUSTED)
        assert min(arm.batches for arm in assignment.state.arms) > 0


async def test_many_experiments_while_workers_come_and_go(
    broker: LocalBroker, tmp_path: Path
) -> None:
    """200 experiments over 8 partitions; of three workers one joins and one leaves on the way."""
    settings = settings_for(broker.bootstrap)
    await topics(settings, 8)
    experiments = [
        experiment(f"many-{i}", order="interleaved" if i % 2 else "sequential", horizon=1000)
        for i in range(200)
    ]
    third = tmp_path / "third"
    third.mkdir()
    with workers(settings, tmp_path, "shuffle,agent", "shuffle,agent") as running:
        users = asyncio.ensure_future(play(settings, experiments, limit_s=240))
        await asyncio.sleep(8)
        with workers(settings, third, "shuffle,agent"):
            await asyncio.sleep(8)
            took = await asyncio.to_thread(running[0].stop)
            await users

    assert took < 5
    batches, _ = await check(settings, [e.name for e in experiments])
    assert batches >= 600


async def test_regret_agrees_with_simulation(broker: LocalBroker, tmp_path: Path) -> None:
    """40 runs through Kafka against 400 simulated: within 3 standard errors.

    False-failure probability .003 (two-sided normal).
    """
    settings = settings_for(broker.bootstrap)
    await topics(settings, 4)
    experiments = [experiment(f"run-{i}", horizon=2000) for i in range(40)]
    with workers(settings, tmp_path, "shuffle,agent"):
        ended = await play(settings, experiments)

    job = simulation.Job("x", experiments[0], simulation.private_runs)
    expected = simulation.summarise(
        job, [job.block(11, i, n) for i, n in enumerate(simulation.blocks(400))]
    )
    regrets = [regret(assignment) for assignment in ended]
    mean = sum(regrets) / len(regrets)
    variance = sum((r - mean) ** 2 for r in regrets) / (len(regrets) - 1)
    error = math.hypot(math.sqrt(variance / len(regrets)), expected.regret_sem)
    assert abs(mean - expected.regret_mean) < 3 * error


async def test_kills_at_random_moments(broker: LocalBroker, tmp_path: Path) -> None:
    """kill -9 of shuffle worker, agent and producer, 24 times: nothing lost, nothing twice."""
    settings = settings_for(broker.bootstrap, max_reread_records=2_000)
    await topics(settings, 4)
    chance = random.Random(SEED)
    experiments = [
        experiment(
            f"kill-{i}",
            order="interleaved" if i % 2 else "sequential",
            horizon=15_000,
            means=[0.5, 0.5, 0.5],
        )
        for i in range(6)
    ]
    roles = ("shuffle", "agent", "shuffle,agent")
    with workers(settings, tmp_path, *roles) as running:
        users = asyncio.ensure_future(_users_that_die(settings, experiments, chance))
        for _ in range(16):
            await asyncio.sleep(chance.uniform(0.3, 2.5))
            victim = chance.choice(running)
            victim.kill()
            victim.start()
        killed = await asyncio.wait_for(users, 240)

    assert killed >= 8
    batches, reports = await check(settings, [e.name for e in experiments])
    assert reports > 50_000
    print(f"{16 + killed} kills, {batches} batches, {reports} reports")


async def _users_that_die(
    settings: Settings, experiments: list[Experiment], chance: random.Random
) -> int:
    """Users as processes of `shufflebandit users`; the first ones are killed on the way."""
    for definition in experiments:
        await registry.create(settings.kafka, definition)
    deaths = 0

    async def users(definition: Experiment, deadly: int) -> None:
        nonlocal deaths
        while True:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "stream_app", "users", definition.name, "--rate", "500",
                env=environment(settings), stdout=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            if deadly:
                deadly -= 1
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), chance.uniform(2, 5))
                    return
                process.kill()
                deaths += 1
            if await process.wait() == 0:
                return

    await asyncio.gather(*(users(definition, 2) for definition in experiments))
    return deaths
