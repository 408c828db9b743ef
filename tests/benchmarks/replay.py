"""Replay: a log through memory against pandas, through Kafka against the bare pipeline."""

import asyncio
import dataclasses
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pandas as pd

from producers.batches import CheckedBatch
from producers.replay import session
from producers.replay.columns import Columns
from producers.replay.files import Source
from producers.replay.follower import Follower
from producers.replay.log import TrafficLog
from producers.replay.match import Mode
from producers.replay.report import report
from producers.transport import KafkaTransport
from stream_app import registry
from stream_app.core.experiment import Experiment
from stream_app.core.state import Status
from stream_app.definitions import resolve
from stream_app.kafka.record_batches import Rows
from stream_app.local.broker import LocalBroker
from stream_app.settings import Settings
from stream_app.wire.report_columns import encode_reports
from tests.benchmarks.harness import Outcome, compare, seconds
from tests.integration.service import settings_for, topics, workers

_ROWS = 1_000_000  # some seconds of reading, so that starting up does not count
_ARMS = ("a", "b", "c", "d")
_numbers = count()  # of experiments: each round needs a name of its own


def outcomes() -> Iterator[Outcome]:
    """All comparisons of this module."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = _log(folder)
        yield compare(
            "replay --through memory, 1e6 CSV rows, three agents, report",
            "pandas.read_csv of the same file",
            seconds(lambda: pd.read_csv(path)),
            seconds(
                lambda: report(session.in_memory(_read(path), session.ReplayPlan(_experiment())))
            ),
            target=3.0,
        )
        with LocalBroker() as broker:
            settings = settings_for(broker.bootstrap)
            asyncio.run(topics(settings, 1))
            with workers(settings, folder, "shuffle,agent"):
                yield compare(
                    "replay --through kafka, seconds per report",
                    "the pipeline fed with ready reports, the same experiment",
                    lambda: asyncio.run(_bare(settings)),
                    lambda: asyncio.run(_replayed(settings, path, folder)),
                    target=2.0,
                    rounds=3,
                )


def _log(folder: Path) -> Path:
    """Arms that are all alike, so that every agent goes to its horizon."""
    rng = np.random.default_rng(1)
    path = folder / "log.csv"
    began = np.datetime64("2024-01-01T00:00:00")
    frame = pd.DataFrame(
        {
            "time": began + np.arange(_ROWS).astype("timedelta64[s]"),
            "arm": np.array(_ARMS)[rng.integers(0, len(_ARMS), _ROWS)],
            "reward": (rng.random(_ROWS) < 0.1).astype(int),
            "user": np.arange(_ROWS),
        }
    )
    frame.to_csv(path, index=False)
    return path


def _read(path: Path) -> TrafficLog:
    return TrafficLog([Source(path, path.name)], Columns(), arms=_ARMS)


def _experiment() -> Experiment:
    """Few, large batches: what is measured is reports, not round trips."""
    return resolve(
        {
            "name": f"b{next(_numbers)}",
            "arms": list(_ARMS),
            "horizon": 400_000,
            "attribution_s": 0,
            "privacy": {"epsilon": 1, "delta": 1e-6},
            "agent": {"preset": "optimal", "order": "interleaved", "batch_size": 20_000},
        },
        "benchmark",
    )


async def _bare(settings: Settings) -> float:
    """The pipeline's own rate: reports that were made beforehand, as fast as Kafka takes them."""
    experiment = _experiment()
    await registry.create(settings.kafka, experiment)
    transport = KafkaTransport(settings.kafka, experiment.name)
    await transport.open()
    follower = Follower(settings, experiment, transport)
    following = asyncio.create_task(follower.follow())
    spent = 0.0
    reports = 0
    state = await follower.until(lambda _: True, 20, "no agent")
    while state.status is Status.RUNNING:
        opened = dict(follower.batches.open)
        ready = [_reports(batch) for batch in opened.values()]
        began = time.monotonic()
        await transport.send(ready)
        state = await follower.until(
            lambda _, ids=set(opened): not ids & set(follower.batches.open), 60, ""
        )
        spent += time.monotonic() - began
        reports += sum(map(len, ready))
    following.cancel()
    await transport.close()
    return spent / reports


def _reports(batch: CheckedBatch) -> Rows:
    encode = batch.sampler.encode
    numbers = range(batch.size)
    ids = b"".join(i.to_bytes(16) for i in numbers)
    return encode_reports(batch.batch_id, ids, [encode(i % 10 == 0) for i in numbers])


async def _replayed(settings: Settings, path: Path, folder: Path) -> float:
    """Reading, checking and sending; the agents to compare with are not of this measure."""
    experiment = _experiment()
    await registry.create(settings.kafka, experiment)
    plan = dataclasses.replace(session.ReplayPlan(experiment, Mode.QUEUE), compare=False)
    began = time.monotonic()
    played = await session.through_kafka(settings, _read(path), plan, folder / experiment.name)
    return (time.monotonic() - began) / sum(played.runs[0].taken)
