"""Simulated users: they see what the client chooses, and click with the arm's true mean.

Open loop: at a steady rate, whatever the pipeline does. Closed loop: as many as the open batches
still need, then wait for the next assignment; if a batch stays open (some reports did not count),
a few more. Rewards come from a seeded generator; choices, ids and noise from the client, so from
the operating system, as in a product.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from producers.batches import PendingReport
from producers.client import Client
from producers.store import MemoryStore
from producers.transport import Transport
from stream_app import kafka
from stream_app.core.experiment import Experiment
from stream_app.core.state import Status
from stream_app.errors import ConfigurationError
from stream_app.kafka.reading import read_partition
from stream_app.settings import Settings
from stream_app.wire.definition import decode_definition

# Users between two looks at the clock and the assignments: milliseconds.
_CHUNK = 2_000
# A wait for users who are due, or for Kafka to take reports: far below what a batch takes.
_TICK_S = 0.01
# A batch that is still open so long after its last report gets a few more. Its release takes a
# fraction of this; a few in a hundred reports may have been refused.
_TOP_UP_S = 0.3
_TOP_UP = 0.02
# Open loop: more than this late is said; a pause of the machine is not worth it.
_BEHIND_S = 1.0
# No new users while so many reports leave: a slow Kafka must not fill this machine's memory.
_MOST_LEAVING = 50_000
# How often `progress` is called: fast enough to be watched.
_PROGRESS_S = 0.2


@dataclass(frozen=True, slots=True)
class Drift:
    """All means move together: mean + amplitude sin(2 pi n / period), n the user's number."""

    amplitude: float
    period: float

    def at(self, number: int) -> float:
        """What is added to every mean for user `number`."""
        return self.amplitude * math.sin(2 * math.pi * number / self.period)


@dataclass(slots=True)
class UsersOutcome:
    """What the simulated users did."""

    status: Status | None = None
    serve: str | None = None
    users: int = 0
    reports: int = 0  # acknowledged by Kafka
    shown: Counter[str] = field(default_factory=Counter)  # users by arm
    regret: float = 0.0  # sum over users of the best mean less the shown arm's
    seconds: float = 0.0
    most_behind: int = 0  # open loop: users who were late at one time, if it was worth saying


class NewUsers(MemoryStore):
    """A store for users who are all new. Never for real people: it remembers nobody."""

    def tag(self, user: str) -> bytes:
        """Nobody."""
        return b""

    def chosen(self, report: PendingReport) -> None:
        """Not kept."""


class Crowd:
    """Users who come in chunks: choose, click or not, report."""

    def __init__(
        self, client: Client, arms: Sequence[str], means: Sequence[float], drift: Drift, seed: int
    ) -> None:
        self.outcome = UsersOutcome()
        self.reports: Counter[str] = Counter()  # by batch
        self._client = client
        self._drift = drift
        self._means = dict(zip(arms, means, strict=True))
        self._best = max(means)
        self._random = np.random.default_rng(seed)

    def come(self, users: int) -> None:
        """Some more users."""
        client = self._client
        outcome = self.outcome
        means = self._means
        moved = self._drift.at(outcome.users)
        draws = self._random.random(users).tolist()
        arms: list[str] = []
        batches: list[str] = []
        for draw in draws:
            shown = client.choose("")
            arms.append(shown.arm)
            if shown.batch_id:
                batches.append(shown.batch_id)
                client.report(shown, int(draw < means[shown.arm] + moved))
        counted = Counter(arms)
        outcome.users += users
        outcome.shown.update(counted)
        outcome.regret += sum(n * (self._best - means[arm]) for arm, n in counted.items())
        self.reports.update(batches)


async def run_users(
    settings: Settings,
    name: str,
    means: Sequence[float] | None = None,
    *,
    rate: float | None = None,
    users: int | None = None,
    drift: Drift | None = None,
    seed: int = 1,
    say: Callable[[str], None] = lambda _: None,
    progress: Callable[[UsersOutcome], None] = lambda _: None,
    transport: Transport | None = None,
    experiment: Experiment | None = None,
) -> UsersOutcome:
    """Send users until the experiment ends or `users` have come; the rate is in users a second.

    `say` gets a line when the users fall behind their rate; `progress` is called several times a
    second with the counts so far. `experiment` saves reading its definition from Kafka.
    """
    experiment = experiment or await definition(settings, name)
    true_means = _true_means(experiment, means)
    most = math.inf if users is None else users
    started = time.monotonic()
    async with Client(
        settings,
        name,
        store=NewUsers(),
        # Clicks come at once here; with a window they wait, as a product's would.
        window_s=experiment.attribution_ms / 1000 or None,
        immediate=not experiment.attribution_ms,
        transport=transport,
    ) as client:
        crowd = Crowd(client, experiment.arms, true_means, drift or Drift(0, 1), seed)
        reporting = asyncio.create_task(_report(client, crowd.outcome, progress))
        try:
            if rate is None:
                await _closed(client, crowd, most)
            else:
                await _open(client, crowd, most, rate, say)
            if client.status is Status.RUNNING:
                await client.drain()
        finally:
            reporting.cancel()
    outcome = crowd.outcome
    _take_counts(client, outcome)
    outcome.serve = client.serve
    outcome.seconds = time.monotonic() - started
    return outcome


async def _closed(client: Client, crowd: Crowd, most: float) -> None:
    """As many users as the open batches still need."""
    spare: Counter[str] = Counter()
    while client.status is Status.RUNNING and crowd.outcome.users < most:
        needed = [
            batch.size + spare[batch_id] - crowd.reports[batch_id]
            for batch_id, batch in client.open.items()
        ]
        missing = sum(n for n in needed if n > 0)
        if missing and client.leaving < _MOST_LEAVING:
            crowd.come(int(min(missing, _CHUNK, most - crowd.outcome.users)))
            await asyncio.sleep(0)
            continue
        window_s = max((b.attribution_ms for b in client.open.values()), default=0) / 1000
        if missing:
            await asyncio.sleep(_TICK_S)
        elif not await client.changed(window_s + _TOP_UP_S):
            for batch_id, batch in client.open.items():
                spare[batch_id] = max(spare[batch_id], crowd.reports[batch_id] - batch.size)
                spare[batch_id] += math.ceil(_TOP_UP * batch.size)


async def _open(
    client: Client, crowd: Crowd, most: float, rate: float, say: Callable[[str], None]
) -> None:
    """Users at a steady rate; late ones come as soon as they can, and that is said."""
    started = time.monotonic()
    outcome = crowd.outcome
    while client.status is Status.RUNNING and outcome.users < most:
        wanted = int(min(most, rate * (time.monotonic() - started)))
        late = wanted - outcome.users + client.leaving
        if late > rate * _BEHIND_S + _CHUNK:
            if not outcome.most_behind:
                say(f"{late} are late; Kafka or this machine takes fewer than {rate:g} a second")
            outcome.most_behind = max(outcome.most_behind, late)
        due = wanted - outcome.users if client.leaving < _MOST_LEAVING else 0
        if due > 0:
            crowd.come(min(due, _CHUNK))
        await asyncio.sleep(0 if due > _CHUNK else _TICK_S)


async def _report(
    client: Client, outcome: UsersOutcome, progress: Callable[[UsersOutcome], None]
) -> None:
    while True:
        _take_counts(client, outcome)
        progress(outcome)
        await asyncio.sleep(_PROGRESS_S)


def _take_counts(client: Client, outcome: UsersOutcome) -> None:
    outcome.reports = client.counts.sent
    outcome.status = client.status


async def definition(settings: Settings, name: str) -> Experiment:
    """The experiment's definition from its topic. Raises ConfigurationError, Unavailable."""
    partition = kafka.partition_of(name, await kafka.partition_count(settings.kafka))
    found: bytes | None = None
    async for records in read_partition(settings.kafka, "experiments", partition):
        for record in records:
            if record.key == name.encode():
                found = record.value
    if found is None:
        raise ConfigurationError(
            f"experiment {name!r}: not on {settings.kafka.bootstrap}; "
            "see shufflebandit experiment list"
        )
    return decode_definition(found).experiment


def _true_means(experiment: Experiment, means: Sequence[float] | None) -> Sequence[float]:
    if means is None:
        if experiment.simulation is None:
            raise ConfigurationError(
                f"--means: experiment {experiment.name!r} has no [simulation] means; give one mean "
                "per arm, as in --means 0.75,0.7"
            )
        return experiment.simulation.means
    if len(means) != len(experiment.arms) or not all(0 <= mean <= 1 for mean in means):
        listed = ",".join(f"{mean:g}" for mean in means)
        raise ConfigurationError(
            f"--means {listed}: must be {len(experiment.arms)} numbers from 0 to 1, one for each "
            f"of {', '.join(experiment.arms)}"
        )
    return means
