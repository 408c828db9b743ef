"""Replay without Kafka: the service's agents and noise, on rows in memory.

A player is fed the log's chunks and collects what its agent asks for, step by step. A step is what
begins at once: one batch in sequential order, a phase in interleaved order. The next step begins
with the row behind the last one used, as through Kafka, so both come to the same sums.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from producers.replay.log import LoggedRows
from producers.replay.match import Matcher, RowPosition, Taken
from producers.replay.noise import BatchNoise
from stream_app.core.agents import agent_for
from stream_app.core.experiment import Experiment
from stream_app.core.schedules import Noises
from stream_app.core.state import ArmState, OpenBatch, State, Status
from stream_app.wire.assignment import terms_of

# Moments are kept when an arm is dropped, and else when users have grown by this ratio: a few
# hundred up to ten million users, as fine as a picture shows.
_MOMENT_RATIO = 1.05


@dataclass(frozen=True, slots=True)
class Moment:
    """Where an agent stood after a phase."""

    row: int  # the last one that it used, among all usable ones, from 1
    time_s: float | None
    users: int
    taken: tuple[int, ...]  # users by arm
    epoch: int
    arms: tuple[ArmState, ...]

    @property
    def viable(self) -> tuple[bool, ...]:
        """Which arms were left."""
        return tuple(arm.viable for arm in self.arms)


@dataclass(slots=True)
class Run:
    """One agent's way through the log."""

    name: str
    experiment: Experiment
    state: State
    moments: list[Moment] = field(default_factory=list)
    taken: tuple[int, ...] = ()
    row: int = 0
    time_s: float | None = None

    def used(self, rows: Sequence[Taken]) -> None:
        """Some more rows were used."""
        for taken in rows:
            last = int(taken.rows[-1]) + 1
            if last > self.row:
                self.row = last
                time_s = float(taken.times[-1])
                self.time_s = None if math.isnan(time_s) else time_s

    def note(self, state: State, position: RowPosition) -> None:
        """The agent's state after a step."""
        before = self.state
        self.state = state
        self.taken = position.taken
        users = sum(position.taken)
        viable = tuple(arm.viable for arm in state.arms)
        if state.status is Status.RUNNING and state.phase == before.phase:
            return
        changed = not self.moments or viable != self.moments[-1].viable
        if (
            changed
            or state.status is not Status.RUNNING
            or users >= _MOMENT_RATIO * self.moments[-1].users
        ):
            self.moments.append(
                Moment(self.row, self.time_s, users, position.taken, state.epoch, state.arms)
            )


class _Collected:
    """A batch on its way."""

    __slots__ = ("batch", "need", "noise", "total")

    def __init__(self, batch: OpenBatch, noise: BatchNoise | None) -> None:
        self.batch = batch
        self.noise = noise
        self.need = batch.size
        self.total = 0.0

    def add(self, taken: Taken) -> None:
        """Some more users."""
        values = taken.rewards if self.noise is None else self.noise.encode(taken.rewards)
        self.total += float(values.sum())
        self.need -= len(values)


class Player:
    """One agent that is fed a log. Without a key it runs without privacy."""

    def __init__(
        self,
        name: str,
        experiment: Experiment,
        matcher: Matcher,
        key: bytes | None,
        noises: Noises | None = None,
    ) -> None:
        self._agent = agent_for(experiment, noises)
        self._matcher = matcher
        self._key = key
        self._experiment = experiment
        self.run = Run(name, experiment, self._agent.begin(), taken=(0,) * len(experiment.arms))
        self._step = self._begin(self.run.state)

    def _begin(self, state: State) -> dict[int, _Collected]:
        """The open batches by arm, all empty."""
        return {batch.arm: _Collected(batch, self._noise(batch)) for batch in state.open}

    def _noise(self, batch: OpenBatch) -> BatchNoise | None:
        if self._key is None:
            return None
        terms = terms_of(self._experiment, batch)
        return BatchNoise(terms.mechanism, self._key, terms.batch_id)

    def feed(self, chunk: LoggedRows) -> None:
        """The log's next rows."""
        if self.run.state.status is not Status.RUNNING:
            return
        self._matcher.feed(chunk)
        state = self.run.state
        while state.status is Status.RUNNING:
            state = self._collect(state)
            if any(collected.need for collected in self._step.values()):
                self.run.state = state
                self.run.taken = self._matcher.position.taken
                return
            if self._agent.due(state):
                state = self._agent.decide(state)
            self.run.note(state, self._matcher.position)
            self._step = self._begin(state)

    def _collect(self, state: State) -> State:
        """What the log has now for the open batches; a batch that is full is recorded."""
        needs = {arm: c.need for arm, c in self._step.items() if c.need}
        given = self._matcher.take(needs)
        for arm, taken in given.items():
            collected = self._step[arm]
            collected.add(taken)
            if not collected.need:
                state = self._agent.record(state, collected.batch.sequence, self._value(collected))
        self.run.used(list(given.values()))
        return state

    def _value(self, collected: _Collected) -> float:
        if self._key is None:
            return collected.total
        mechanism = self._experiment.privacy.for_batch(collected.batch.size)
        return mechanism.debias(int(collected.total))
