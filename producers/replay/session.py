"""A whole replay: read and check the log, play it, and gather what the report needs.

In memory all agents share one reading. Through Kafka a first reading checks the whole log and plays
the agents to compare with, so that a damaged log is refused before anything is sent; a second one
is sent.
"""

import hashlib
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from producers.replay import position
from producers.replay.compare import others
from producers.replay.files import fingerprint
from producers.replay.log import Floats, Skipped, TrafficLog
from producers.replay.log_format import LogFormat
from producers.replay.match import Matcher, Mode, RowPosition, RowsInOrder, make
from producers.replay.memory import Player, Run
from producers.replay.noise import fresh_key
from producers.replay.stream import Driver
from producers.replay.survey import Survey
from producers.transport import Transport
from stream_app.core.experiment import Experiment
from stream_app.errors import ConfigurationError
from stream_app.settings import Settings


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """What to play, and how."""

    experiment: Experiment
    mode: Mode = Mode.REJECTION
    seed: int = 1  # of `weighted`'s thinning; privacy noise has none
    min_propensity: float | None = None
    compare: bool = True


@dataclass(slots=True)
class Played:
    """What a replay gave: the log's own figures and each agent's run, the asked one first."""

    plan: ReplayPlan
    through: str
    files: list[str]
    form: LogFormat
    rows: int
    filtered: int
    skipped: dict[str, Skipped]
    survey: Survey
    runs: list[Run] = field(default_factory=list)
    kept: float | None = None  # `weighted`: the share of rows that survive
    capped: int = 0  # rows whose propensity is below --min-propensity


def look(log: TrafficLog) -> Survey:
    """The log's own figures, from one reading. Raises if anything in it is wrong."""
    survey = Survey()
    with closing(log.chunks()) as chunks:
        for chunk in chunks:
            survey.add(chunk, len(log.arms))
    return survey


def in_memory(log: TrafficLog, plan: ReplayPlan, *, _key: bytes | None = None) -> Played:
    """Play a log without Kafka. `_key` is for tests only: it fixes the noise."""
    key = _key or fresh_key()
    making = _matchers(log, plan)
    main = Player("replay", plan.experiment, making(), key)
    played = _first_reading(log, plan, making, [main], key, "memory")
    played.runs.insert(0, main.run)
    return played


async def through_kafka(
    settings: Settings,
    log: TrafficLog,
    plan: ReplayPlan,
    path: Path,
    *,
    speed: float | None = None,
    create: Callable[[], Awaitable[object]] | None = None,
    progress: Callable[[Run], None] = lambda _: None,
    transport: Transport | None = None,
    _key: bytes | None = None,
) -> Played:
    """Play a log through a running service. `_key` is for tests only: it fixes the noise.

    `create` defines the experiment, once the whole log was read and found good.
    """
    if speed is not None and log.columns.time is None:
        raise ConfigurationError(f"--speed {speed:g}: needs --time-column")
    known = position.load(path, plan.experiment.name, identity(log, plan))
    if _key is not None:
        known.key = _key
    making = _matchers(log, plan)
    # The agents to compare with get noise of their own: the key is for what is sent.
    played = _first_reading(log, plan, making, [], fresh_key(), "kafka")
    if create is not None:
        await create()
    begins = known.step.begins if known.step is not None else None
    matcher = making(begins)
    with closing(log.chunks()) as chunks:
        driver = Driver(
            settings, plan.experiment, chunks, matcher, known,
            speed=speed, progress=progress, transport=transport,
        )  # fmt: skip
        played.runs.insert(0, await driver.play())
    return played


def identity(log: TrafficLog, plan: ReplayPlan) -> str:
    """Tells this replay from another: the log's content and all that decides which rows count."""
    # To the letter what it was when formats were an enumeration: a position file that an older
    # version wrote must still be found to belong to its log.
    form = f"<Format.{log.form.name.upper()}: {log.form.name!r}>"
    mode = repr(plan.mode)
    chosen = f"({log.columns!r}, {form}, {mode}, {plan.seed!r}, {plan.min_propensity!r})"
    return hashlib.blake2b((fingerprint(log.sources) + chosen).encode(), digest_size=16).hexdigest()


def _first_reading(
    log: TrafficLog,
    plan: ReplayPlan,
    making: Callable[[], Matcher],
    players: list[Player],
    key: bytes,
    through: str,
) -> Played:
    compared = others(plan.experiment, making, key) if plan.compare else []
    survey = Survey()
    arms = len(plan.experiment.arms)
    thinned = making()
    thinning = thinned.thinning if isinstance(thinned, RowsInOrder) else None
    with closing(log.chunks()) as chunks:
        for chunk in chunks:
            survey.add(chunk, arms)
            for player in (*players, *compared):
                player.feed(chunk)
            if thinning is not None:
                thinning.keeps(chunk)
    played = Played(
        plan=plan,
        through=through,
        files=[source.name for source in log.sources],
        form=log.form,
        rows=log.rows,
        filtered=log.filtered,
        skipped=log.skipped,
        survey=survey,
        runs=[player.run for player in compared],
    )
    if thinning is not None:
        played.kept = thinning.kept / thinning.seen
        played.capped = thinning.capped
    return played


def _matchers(log: TrafficLog, plan: ReplayPlan) -> Callable[..., Matcher]:
    """Makes matchers; `weighted` reads the log once for each arm's least propensity."""
    arms = len(plan.experiment.arms)
    floors: Floats | None = None
    if plan.mode is Mode.WEIGHTED:
        if log.columns.propensity is None:
            raise ConfigurationError(
                "--mode weighted: needs --propensity-column, how likely the shown arm was"
            )
        floors = look(log).least
        if plan.min_propensity is not None:
            floors = np.maximum(floors, plan.min_propensity)

    def making(begins: RowPosition | None = None) -> Matcher:
        return make(plan.mode, arms, floors, plan.seed, begins or RowPosition(0, (0,) * arms))

    return making
