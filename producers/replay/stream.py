"""Replay through Kafka: the topics and stages of live traffic, fed from a log.

Closed loop: when the open batches have all their rows, the log waits for the agent's next
assignment, at whatever pace. So no row is lost to a batch that has just closed, and the decisions
are those of `memory`. Nothing in an assignment is trusted: terms are checked as the client does.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from producers.replay.follower import Follower
from producers.replay.log import Floats, LoggedRows
from producers.replay.match import Matcher, Taken
from producers.replay.memory import Run
from producers.replay.noise import BatchNoise
from producers.replay.position import PositionFile, Step
from producers.transport import KafkaTransport, Transport
from stream_app.core.agents import State, Status
from stream_app.core.experiment import Experiment
from stream_app.errors import ConfigurationError, Unavailable
from stream_app.kafka.record_batches import Rows
from stream_app.settings import Settings
from stream_app.wire.report_columns import encode_reports

# Reports in one sending; one is on its way while the next is made.
MOST_AT_ONCE = 20_000
# How long a full batch may wait for its sum: a second as a rule, but a stage that was killed has to
# be missed by Kafka and to read again first.
_PATIENCE_S = 60.0
# The longest sleep before a row that is not due, so that the pace follows the clock, not a guess.
_TICK_S = 0.5
# With the pauses between, 15 s: by then a partition that lost its leader has another.
ATTEMPTS = 5
_BACKOFF_S = 0.5  # doubled before it is used: 1, 2, 4 and 8 s


@dataclass(slots=True)
class _OutgoingBatch:
    """A batch on its way: how many rows it still needs, and whether reports are still sent."""

    batch_id: str
    need: int
    noise: BatchNoise | None  # None: released already, its rows only pass


class Pace:
    """When a row is due: at once, or at its own time, `speed` times as fast."""

    def __init__(self, speed: float | None) -> None:
        self._speed = speed
        self._origin: tuple[float, float] | None = None  # a log time and our clock at it

    @property
    def paced(self) -> bool:
        """Whether rows have to wait."""
        return self._speed is not None

    def wait_s(self, time_s: float) -> float:
        """How long until a row of this time is due; the clock starts with the first one."""
        now = time.monotonic()
        if self._speed is None or np.isnan(time_s):
            return 0.0
        if self._origin is None:
            self._origin = (time_s, now)
        start, began = self._origin
        return (time_s - start) / self._speed - (now - began)


class Driver:
    """Plays one experiment's log through Kafka."""

    def __init__(
        self,
        settings: Settings,
        experiment: Experiment,
        chunks: Iterator[LoggedRows],
        matcher: Matcher,
        position: PositionFile,
        *,
        speed: float | None = None,
        progress: Callable[[Run], None] = lambda _: None,
        transport: Transport | None = None,
    ) -> None:
        self._settings = settings
        self._experiment = experiment
        self._chunks = chunks
        self._matcher = matcher
        self._position = position
        self._pace = Pace(speed)
        self._progress = progress
        self._transport = transport or KafkaTransport(settings.kafka, experiment.name)
        self._follower = Follower(settings, experiment, self._transport)
        self._on_its_way: asyncio.Task[None] | None = None

    async def play(self) -> Run:
        """Until the experiment ends or the log does. Raises Unavailable; play again to go on."""
        async with self._connected():
            state = await self._follower.until(
                lambda _: True,
                self._settings.kafka.connect_timeout_s,
                f"experiment {self._experiment.name!r}: no agent answers: start one with "
                "shufflebandit run",
            )
            run = self._begun(state)
            while (step := self._next_step(run)) is not None:
                short = await self._collect(step, run)
                state = await self._released(set(step.batches) - short)
                if short:
                    run.state = state
                    break
                run.note(state, self._matcher.position)
                self._progress(run)
                self._position.step = None
                self._position.moments = run.moments
            self._position.save(ended=True)
            return run

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[None]:
        await self._transport.open()
        following = asyncio.create_task(self._follower.follow())
        try:
            yield
        finally:
            tasks = [task for task in (following, self._on_its_way) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._transport.close()

    def _begun(self, state: State) -> Run:
        """The run so far; a new one must have the experiment to itself."""
        step = self._position.step
        if step is None:
            if state.users or state.status is Status.STOPPED:
                raise ConfigurationError(
                    f"experiment {self._experiment.name!r} has begun already ({state.users:,} "
                    "users); a replay needs a name of its own, or the position file that it had"
                )
            taken: tuple[int, ...] = (0,) * len(state.arms)
            return Run("replay", self._experiment, state, taken=taken)
        return Run(
            "replay",
            self._experiment,
            replace(state, phase=step.phase),
            self._position.moments,
            step.begins.taken,
            step.row,
            step.time_s,
        )

    def _next_step(self, run: Run) -> Step | None:
        """The step to collect: the one that was interrupted, or what is open now."""
        if self._position.step is not None:
            return self._position.step
        assert self._follower.state is not None
        if self._follower.state.status is not Status.RUNNING:
            run.state = self._follower.state
            return None
        arms = self._experiment.arms
        batches = {
            batch_id: (arms.index(batch.arm), batch.size)
            for batch_id, batch in self._follower.batches.open.items()
        }
        self._position.step = Step(
            self._matcher.position, run.state.phase, batches, run.row, run.time_s
        )
        self._position.moments = run.moments
        self._position.save()
        return self._position.step

    async def _collect(self, step: Step, run: Run) -> set[str]:
        """Send the step's reports; returns the batches that the log had too few rows for."""
        offered = self._follower.batches.open
        batches = {
            arm: _OutgoingBatch(
                batch_id, size, self._noise(batch_id) if batch_id in offered else None
            )
            for batch_id, (arm, size) in step.batches.items()
        }
        while needs := {arm: batch.need for arm, batch in batches.items() if batch.need}:
            given = self._matcher.take(needs)
            for arm, taken in given.items():
                batches[arm].need -= len(taken.rows)
            run.used(list(given.values()))
            run.taken = self._matcher.position.taken
            await self._send([(batches[arm], taken) for arm, taken in given.items()])
            self._progress(run)
            if not any(batch.need for batch in batches.values()):
                break
            chunk = await asyncio.to_thread(next, self._chunks, None)
            if chunk is None or self._stopped:
                break
            self._matcher.feed(chunk)
        return {batch.batch_id for batch in batches.values() if batch.need}

    @property
    def _stopped(self) -> bool:
        state = self._follower.state
        return state is not None and state.status is Status.STOPPED

    def _noise(self, batch_id: str) -> BatchNoise:
        mechanism = self._follower.batches.open[batch_id].terms.mechanism
        return BatchNoise(mechanism, self._position.key, batch_id)

    async def _send(self, given: list[tuple[_OutgoingBatch, Taken]]) -> None:
        """Send rows as reports, when they are due."""
        open_ones = [(batch, taken) for batch, taken in given if batch.noise is not None]
        if not open_ones:
            return
        reports = np.concatenate([_encoded(batch, taken) for batch, taken in open_ones])
        rows = np.concatenate([taken.rows for _, taken in open_ones])
        order = np.argsort(rows, kind="stable")
        times = np.concatenate([taken.times for _, taken in open_ones])[order]
        due = np.maximum.accumulate(times) if self._pace.paced else times
        first = 0
        while first < len(order):
            wait_s = self._pace.wait_s(float(due[first]))
            if wait_s > 0:
                await asyncio.sleep(min(wait_s, _TICK_S))
                continue
            last = min(len(order), first + MOST_AT_ONCE)
            if self._pace.paced:
                last = min(last, first + self._due_by_now(due[first:last]))
            await self._put(reports[order[first:last]])
            first = last

    def _due_by_now(self, due: Floats) -> int:
        low = 1
        high = len(due)
        while low < high:
            middle = (low + high + 1) // 2
            if self._pace.wait_s(float(due[middle - 1])) <= 0:
                low = middle
            else:
                high = middle - 1
        return low

    async def _put(self, reports: Rows) -> None:
        """Hand reports over; returns while they are on their way, if none was before."""
        if self._on_its_way is not None:
            await self._on_its_way
        self._on_its_way = asyncio.create_task(self._deliver(reports))
        await asyncio.sleep(0)

    async def _deliver(self, reports: Rows) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                await self._transport.send([reports])
                return
            except Unavailable:
                if attempt == ATTEMPTS:
                    raise
                await asyncio.sleep(_BACKOFF_S * 2**attempt)

    async def _released(self, full: set[str]) -> State:
        """Wait until the agent has these batches' sums, and return its state."""
        if self._on_its_way is not None:
            await self._on_its_way
        opened = self._follower.batches
        return await self._follower.until(
            lambda state: state.status is Status.STOPPED or not full & set(opened.open),
            _PATIENCE_S,
            f"experiment {self._experiment.name!r}: a full batch has waited {_PATIENCE_S:.0f} s "
            "for its sum; is shufflebandit run still there? The same command goes on from here",
        )


def _encoded(batch: _OutgoingBatch, taken: Taken) -> Rows:
    assert batch.noise is not None
    ones = batch.noise.encode(taken.rewards).tolist()
    return encode_reports(batch.batch_id, batch.noise.ids(len(ones)), ones)
