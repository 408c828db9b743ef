"""What the integration tests share: settings on one broker, experiments, users, checks.

Workers are those of `stream_app.local.stack`; tests find all of it here.
"""

import asyncio
import contextlib
import dataclasses
import secrets
from collections.abc import Sequence
from typing import Any

from producers.simulated_users import run_users
from stream_app import kafka, registry
from stream_app.audit.recount import audit
from stream_app.audit.verify import verify
from stream_app.core.experiment import Experiment
from stream_app.core.state import Status
from stream_app.definitions import resolve
from stream_app.kafka.reading import read_partition
from stream_app.local.stack import WorkerProcess, environment, workers
from stream_app.settings import Settings, load_settings
from stream_app.wire.assignment import Assignment
from stream_app.wire.report import MAX_REPORT_BYTES, decode_report
from stream_app.wire.sum import Sum

__all__ = [
    "WorkerProcess", "assigned", "check", "environment", "experiment", "last_assignment",
    "left_out", "play", "regret", "settings_for", "topics", "workers",
]  # fmt: skip


def settings_for(bootstrap: str, **shuffle: object) -> Settings:
    """Settings with topics and groups of their own on a shared broker; reports stay for `check`."""
    shuffle = {"retain_reports_for_audit": True, **shuffle}
    prefix = f"t{secrets.token_hex(4)}"
    settings = load_settings(None, {"SHUFFLEBANDIT_METRICS_PORT": "0"})
    return dataclasses.replace(
        settings,
        kafka=dataclasses.replace(settings.kafka, bootstrap=bootstrap, topic_prefix=prefix),
        shuffle=dataclasses.replace(settings.shuffle, group=f"{prefix}-shuffle", **shuffle),
        agent=dataclasses.replace(settings.agent, group=f"{prefix}-agent"),
    )


def experiment(name: str, **changes: Any) -> Experiment:
    """A short experiment: three arms, 3 000 users."""
    means = changes.pop("means", [0.9, 0.5, 0.4])
    raw = {
        "name": name,
        "arms": changes.pop("arms", ["a", "b", "c"]),
        "horizon": changes.pop("horizon", 3000),
        "attribution_s": 0,
        "privacy": {"epsilon": changes.pop("epsilon", 1), "delta": 1e-6},
        "agent": {"preset": changes.pop("preset", "optimal"), **changes},
        "simulation": {"means": means},
    }
    return resolve(raw, name)


async def play(
    settings: Settings, experiments: Sequence[Experiment], at_once: int = 20, limit_s: float = 120
) -> list[Assignment]:
    """Create experiments, send users until each ended, and return their last assignments."""
    slots = asyncio.Semaphore(at_once)

    async def one(number: int, definition: Experiment) -> Assignment:
        async with slots:
            await registry.create(settings.kafka, definition)
            outcome = await run_users(settings, definition.name, seed=number, experiment=definition)
            assert outcome.status is not Status.RUNNING
        return await last_assignment(settings, definition.name)

    async with asyncio.timeout(limit_s):
        return await asyncio.gather(*(one(i, e) for i, e in enumerate(experiments)))


async def last_assignment(settings: Settings, name: str) -> Assignment:
    entry = await registry.find(settings.kafka, name)
    assert entry.assignment is not None
    return entry.assignment


async def assigned(settings: Settings, name: str) -> None:
    """Wait for an experiment's first assignment: a crowded machine starts workers slowly."""
    async with asyncio.timeout(60):
        while (await registry.find(settings.kafka, name)).assignment is None:  # noqa: ASYNC110
            await asyncio.sleep(0.2)


async def check(settings: Settings, names: Sequence[str]) -> tuple[int, int]:
    """Verify and audit; returns batches and reports. Any difference fails."""
    slots = asyncio.Semaphore(8)

    async def one(name: str) -> tuple[int, int]:
        async with slots:
            verified = await verify(settings.kafka, name)
            audited = await audit(settings.kafka, name)
        found = [*verified.differences, *audited.differences, *audited.unchecked]
        found += await left_out(settings, name, audited.sums)
        assert not found, f"{name}: {found[:20]}"  # a helper's assert says no more by itself
        return audited.batches, audited.reports

    counted = await asyncio.gather(*(one(name) for name in names))
    return sum(batches for batches, _ in counted), sum(reports for _, reports in counted)


async def left_out(settings: Settings, name: str, sums: Sequence[Sum]) -> list[str]:
    """Where counting began behind a batch's first report: a restart would have lost that one.

    `audit` cannot say so, as a sender could guess at a batch that is not open yet. No test does.
    """
    key = name.encode()
    missing = {one.batch_id: one for one in sums}
    partition = kafka.partition_of(name, await kafka.partition_count(settings.kafka))
    found = []
    reading = read_partition(settings.kafka, "reports", partition, committed=False)
    async with contextlib.aclosing(reading) as chunks:
        async for record in (record async for records in chunks for record in records):
            if len(record.value or b"") > MAX_REPORT_BYTES:
                continue  # refused as oversized, whatever it says
            with contextlib.suppress(ValueError, KeyError, TypeError):
                batch_id, _, ones = decode_report(record.value)
                one = missing.get(batch_id)
                if (
                    record.key == key
                    and one is not None
                    and 0 <= ones <= one.terms.mechanism.max_ones
                ):
                    del missing[batch_id]
                    if record.offset != one.first.offset:
                        found.append(
                            f"batch {batch_id}: counted from {one.first}, not from {record.offset}"
                        )
            if not missing:
                break
    return found


async def topics(settings: Settings, partitions: int) -> None:
    await kafka.create_topics(settings.kafka, partitions, 1)


def regret(assignment: Assignment) -> float:
    """True regret of the whole horizon: released users, and the rest on the served arm."""
    definition = assignment.experiment
    assert definition.simulation is not None
    assert assignment.state.serve is not None
    means = definition.simulation.means
    gaps = [max(means) - mean for mean in means]
    spent = sum(arm.users * gap for arm, gap in zip(assignment.state.arms, gaps, strict=True))
    return spent + (definition.horizon - assignment.state.users) * gaps[assignment.state.serve]
