"""Logs through a real broker: the decisions of memory, and no row twice after kill -9."""

import asyncio
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from producers.replay import session
from producers.replay.columns import Columns
from producers.replay.match import Mode
from producers.replay.session import ReplayPlan
from stream_app import kafka, registry
from stream_app.cli import cli
from stream_app.core.state import Status
from stream_app.kafka.reading import read_partition
from stream_app.local.broker import LocalBroker
from stream_app.settings import Settings
from tests.integration.service import (
    assigned,
    check,
    environment,
    last_assignment,
    settings_for,
    topics,
    workers,
)
from tests.producers.replay.build import KEY, drawn, experiment, log, write, write_drawn

pytestmark = [pytest.mark.slow]
MEANS = (0.30, 0.25, 0.15)
DEFINITION = """
name = "killed"
arms = ["a", "b", "c"]
horizon = 15_000
attribution_s = 0
[privacy]
epsilon = 1
delta = 1e-6
[agent]
preset = "optimal"
"""


def write_timed(path: Path, rows: int, step_s: float) -> Path:
    """Rows a fixed time apart, with propensities that say nothing of the reward."""
    lines = [
        ("abc"[arm], int(reward), (0.2, 0.5)[i % 2], f"{1_700_000_000 + i * step_s:.4f}")
        for chunk in drawn(1, rows, MEANS, rows)
        for i, (arm, reward) in enumerate(zip(chunk.arms, chunk.rewards, strict=True))
    ]
    return write(path, ("arm", "reward", "p", "time"), lines)


@pytest.mark.kafka
async def test_decisions_are_those_of_memory(broker: LocalBroker, tmp_path: Path) -> None:
    """Every mode and order, the same noise: equal states, rows and moments; the audit agrees."""
    settings = settings_for(broker.bootstrap)
    await topics(settings, 4)
    path = write_timed(tmp_path / "log.csv", 40_000, 1)
    columns = Columns(propensity="p")
    names = []
    with workers(settings, tmp_path, "shuffle,agent"):
        for mode in Mode:
            for order in ("sequential", "interleaved"):
                definition = experiment(name=f"{mode}.{order}", order=order, horizon=10_000)
                plan = ReplayPlan(definition, mode, compare=False)
                await registry.create(settings.kafka, definition)
                await assigned(settings, definition.name)
                streamed = await session.through_kafka(
                    settings, log(path, columns=columns), plan, tmp_path / definition.name, _key=KEY
                )
                direct = session.in_memory(log(path, columns=columns), plan, _key=KEY)
                assert direct.runs[0] == streamed.runs[0]
                assert direct.kept == streamed.kept
                assert (await last_assignment(settings, definition.name)).state == direct.runs[
                    0
                ].state
                names.append(definition.name)

    batches, reports = await check(settings, names)
    assert batches > 30
    assert reports > 6_000


@pytest.mark.kafka
async def test_the_pace_is_the_log_s_own(broker: LocalBroker, tmp_path: Path) -> None:
    """Kafka's times of the reports: none before its row is due, at --speed 1 and at 8; memory's
    decisions. A row that falls due while the agent is deciding goes out after its assignment.
    """
    settings = settings_for(broker.bootstrap)
    await topics(settings, 4)
    columns = Columns(time="time")

    async def replayed(speed: float) -> None:
        """3 000 rows in 3 s."""
        path = write_timed(tmp_path / f"{speed:g}.csv", 3_000, speed / 1000)
        definition = experiment(name=f"speed-{speed:g}")
        plan = ReplayPlan(definition, compare=False)
        await registry.create(settings.kafka, definition)
        await assigned(settings, definition.name)
        at = tmp_path / definition.name
        paced = await session.through_kafka(
            settings, log(path, columns=columns), plan, at, speed=speed, _key=KEY
        )
        direct = session.in_memory(log(path, columns=columns), plan, _key=KEY)
        times = await _times(settings, "reports", definition.name)
        answers = await _times(settings, "assignments", definition.name)
        run = direct.runs[0]

        assert run == paced.runs[0]
        assert sum(run.taken) == len(times)
        assert len(run.moments) > 3
        for moment in run.moments:
            assert moment.time_s is not None
            sent = times[moment.users - 1]  # the last report of its phase
            due = times[0] + (moment.time_s - 1_700_000_000) / speed
            answered = max(time for time in answers if time <= sent)
            assert -0.05 < sent - due
            assert sent - max(due, answered) < 5

    with workers(settings, tmp_path, "shuffle,agent"):
        await asyncio.gather(replayed(1), replayed(8))


async def _times(settings: Settings, topic: str, name: str) -> list[float]:
    """When each of an experiment's records was written."""
    place = kafka.partition_of(name, 4)
    return [
        record.timestamp / 1000
        async for records in read_partition(settings.kafka, topic, place, committed=False)
        for record in records
        if record.key == name.encode()
    ]


@pytest.mark.kafka
async def test_a_killed_replay_goes_on(broker: LocalBroker, tmp_path: Path) -> None:
    """kill -9 of the command, twice: the end is that of memory with the same key."""
    settings = settings_for(broker.bootstrap)
    await topics(settings, 2)
    path = write_drawn(tmp_path / "log.csv", 2, 60_000, (0.3, 0.29, 0.29))
    (tmp_path / "killed.toml").write_text(DEFINITION)
    position = tmp_path / "at"
    key = ""
    command = [
        sys.executable, "-m", "stream_app", "replay", str(path), "--json",
        "-e", str(tmp_path / "killed.toml"), "--position", str(position),
    ]  # fmt: skip
    with workers(settings, tmp_path, "shuffle,agent"):
        for steps in (2, 7):
            process = await asyncio.create_subprocess_exec(
                *command, env=environment(settings), stdout=asyncio.subprocess.DEVNULL
            )
            await _has_sent(position, steps)
            process.kill()
            await process.wait()
            key = key or json.loads(position.read_bytes())["key"]
        process = await asyncio.create_subprocess_exec(
            *command, env=environment(settings), stdout=asyncio.subprocess.PIPE
        )
        out, _ = await asyncio.wait_for(process.communicate(), 60)

    definition = (await last_assignment(settings, "killed")).experiment
    direct = session.in_memory(
        log(path), ReplayPlan(definition, compare=False), _key=bytes.fromhex(key)
    )
    assert 0 == process.returncode
    assert (await last_assignment(settings, "killed")).state == direct.runs[0].state
    assert json.loads(out)["verdict"]["row"] == direct.runs[0].row
    await check(settings, ["killed"])


async def _has_sent(position: Path, batches: int) -> None:
    """Until the replay is at its so many-th batch."""
    async with asyncio.timeout(60):
        while _newest(position) < batches:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def _newest(position: Path) -> int:
    """The batch that the position file is at."""
    step = json.loads(position.read_bytes())["step"] if position.exists() else None
    return int(next(iter(step["batches"])).split(".")[0]) if step else 0


@pytest.mark.kafka
def test_no_agent_answers(broker: LocalBroker, tmp_path: Path) -> None:
    """A broker without a service: one line, exit code 3."""
    settings = settings_for(broker.bootstrap)
    asyncio.run(topics(settings, 1))
    path = write_drawn(tmp_path / "log.csv", 2, 300, MEANS)
    (tmp_path / "killed.toml").write_text(DEFINITION)
    found = CliRunner().invoke(
        cli,
        ["replay", str(path), "-e", str(tmp_path / "killed.toml"), "--position",
         str(tmp_path / "at")],
        env={**environment(settings), "SHUFFLEBANDIT_KAFKA_CONNECT_TIMEOUT_S": "3"},
    )  # fmt: skip

    assert "no agent answers: start one with shufflebandit run" in str(found.exception)
    assert 3 == found.exception.exit_code  # type: ignore[union-attr]


def test_two_million_rows_with_known_means(tmp_path: Path) -> None:
    """.050 against .040 and .035 at (1, 1e-6): the right arm, and rates near the truth.

    All of 1 000 simulated runs decide; a wrong winner has probability 1/T. The log's rates lie
    within 5 standard errors of the truth (false-failure probability 2e-6), and the truth lies
    within the private estimates' intervals (1/T).
    """
    import pyarrow as pa
    from pyarrow import csv

    rng = np.random.default_rng(21)
    rows = 2_000_000
    means = np.array([0.050, 0.040, 0.035])
    arms = rng.integers(0, 3, rows)
    columns = {
        "arm": pa.DictionaryArray.from_arrays(arms, ["a", "b", "c"]).cast(pa.string()),
        "reward": (rng.random(rows) < means[arms]).astype(int),
        "time": 1_700_000_000 + np.arange(rows),
    }
    csv.write_csv(pa.table(columns), tmp_path / "log.csv")
    (tmp_path / "log.toml").write_text(
        DEFINITION.replace("15_000", "600_000") + 'guarantee = "high-probability"\n'
    )
    found = CliRunner().invoke(
        cli,
        ["replay", str(tmp_path / "log.csv"), "-e", str(tmp_path / "log.toml"), "--through",
         "memory", "--time-column", "time", "--json", "--html", str(tmp_path / "r.html")],
    )  # fmt: skip
    report = json.loads(found.output)

    assert ("decided", "a") == (report["verdict"]["outcome"], report["verdict"]["arm"])
    assert 2_000_000 == report["rows"]["read"] == report["rows"]["usable"]
    for arm, mean in zip(report["arms"], means.tolist(), strict=True):
        assert abs(arm["rate"] - mean) < 5 * np.sqrt(mean * (1 - mean) / arm["rows"])
        assert arm["interval"][0] < mean < arm["interval"][1]
    assert [] == report["warnings"]
    # 6 400 s of the first day, 23 whole ones, and as much of the last.
    assert 25 == len(report["days"])
    assert re.search("<svg", (tmp_path / "r.html").read_text())
    assert Status.DECIDED == report["verdict"]["status"]
