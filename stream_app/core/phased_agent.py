"""The agent that works in phases: from released sums to the batches to collect next.

`PhasedAgent.begin` gives the first state, `record` folds one sum, `decide` draws the conclusion
when no batch is open. What a phase proves and what is collected next are rules on `Arms`, with a
row for each run: the service has one row, a simulation has many. No I/O, no clock.

The horizon. An incomplete phase proves nothing, so a phase is opened only if all of its batches
fit into what is left of the horizon; otherwise the agent is exhausted and names the leader to
serve. With one arm left it has decided. Either way nobody reports any more (MATH 3, item 4).

Unknown horizon (the paper's footnote 2): when the guess T is reached without a decision, the agent
forgets everything and starts again with 2T, on fresh users only, so that each user still counts
in one batch and the promise holds unchanged. It costs what was learned before: at most a factor of
about 2 to 4 where regret grows as sqrt(T), and one more log2(T) where it grows as log(T). A
decision within a guess is final, with that guess's guarantee.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from stream_app.core.confidence import Bools, Confidence, Ints
from stream_app.core.experiment import MAX_HORIZON, Comparison, Experiment, Order
from stream_app.core.noise import Floats
from stream_app.core.schedules import Noises, Plan, mechanism_noise, plan
from stream_app.core.state import ArmState, OpenBatch, State, Status
from stream_app.errors import IllegalTransition


@dataclass(frozen=True, slots=True)
class Arms:
    """What is known of the arms of runs in one epoch: rows are runs, columns are arms."""

    viable: Bools
    batches: Ints
    weighted: Floats
    index: Floats  # kl-ucb's; nan until computed from the newest batch
    users: Ints  # of each run in this epoch

    @classmethod
    def fresh(cls, runs: int, arms: int) -> "Arms":
        """Runs at the beginning of an epoch."""
        shape = (runs, arms)
        viable = np.ones(shape, np.bool_)
        batches = np.zeros(shape, np.int64)
        users = np.zeros(runs, np.int64)
        return cls(viable, batches, np.zeros(shape), np.full(shape, np.nan), users)

    @classmethod
    def of(cls, state: State) -> "Arms":
        """A state's arms, in one row."""
        arms = state.arms
        return cls(
            np.array([[arm.viable for arm in arms]]),
            np.array([[arm.batches for arm in arms]]),
            np.array([[arm.weighted for arm in arms]]),
            np.array([[math.nan if arm.index is None else arm.index for arm in arms]]),
            np.array([state.users - state.spent]),
        )

    def rows(self, which: Bools) -> "Arms":
        """Some of the runs."""
        viable = self.viable[which]
        batches = self.batches[which]
        users = self.users[which]
        return Arms(viable, batches, self.weighted[which], self.index[which], users)


class Rules(NamedTuple):
    """What holds in one epoch: the batches that it can have, and what their sums prove."""

    plan: Plan
    confidence: Confidence


class PhasedAgent:
    """The state machine of one experiment: arm elimination, or `kl-ucb`."""

    def __init__(self, experiment: Experiment, noises: Noises | None = None) -> None:
        self.experiment = experiment
        self._noises = noises or mechanism_noise(experiment)
        # An epoch costs a calibration of every batch size; few are alive at one time.
        self.rules = lru_cache(maxsize=8)(self._rules)

    def _rules(self, epoch: int) -> Rules:
        """The plan and the tests of an epoch, whose horizon is the first guess doubled so often."""
        settings = self.experiment.agent
        horizon = self.experiment.horizon << epoch
        batches = plan(self.experiment, horizon, self._noises)
        arms = len(self.experiment.arms)
        return Rules(batches, Confidence(settings.test, settings.guarantee, batches, arms, horizon))

    def horizon(self, state: State) -> int:
        """T of the state's epoch."""
        return self.experiment.horizon << state.epoch

    def begin(self) -> State:
        """The first state: every arm viable, the first phase open."""
        arms = (ArmState(),) * len(self.experiment.arms)
        return self._open_phase(State(Status.RUNNING, 0, arms, (), 0), Arms.fresh(1, len(arms)))

    def fold(self, state: State, sequence: int, value: float) -> State:
        """The state after one released sum: record, and decide if the phase is complete."""
        state = self.record(state, sequence, value)
        return self.decide(state) if self.due(state) else state

    def record(self, state: State, sequence: int, value: float) -> State:
        """Add one batch's debiased sum. Raises IllegalTransition if that batch is not open."""
        batch = next((b for b in state.open if b.sequence == sequence), None)
        if batch is None or state.status is not Status.RUNNING:
            raise IllegalTransition(f"batch {sequence} of {self.experiment.name} is not open")
        before = state.arms[batch.arm]
        weight = self.rules(state.epoch).plan.weight(before.batches)
        after = ArmState(
            before.viable,
            before.batches + 1,
            before.users + batch.size,
            before.weighted + weight * value,
            before.total + value,
        )
        arms = (*state.arms[: batch.arm], after, *state.arms[batch.arm + 1 :])
        left = tuple(b for b in state.open if b is not batch)
        state = replace(state, arms=arms, open=left)
        return self._open_next(state) if self._sequential and not left else state

    def due(self, state: State) -> bool:
        """Whether the state waits for `decide`."""
        return state.status is Status.RUNNING and not state.open

    def stop(self, state: State) -> State:
        """The state after the operator stopped it: nothing is open, nothing more is learned."""
        if state.status is not Status.RUNNING:
            return state
        return replace(state, status=Status.STOPPED, open=(), serve=self.leader(state))

    def decide(self, state: State) -> State:
        """The state after its complete phase: decided if one arm is left, else the next is open."""
        row = Arms.of(state)
        found = self.judged(state.epoch, state.phase, row)
        arms = list(state.arms)
        for i in np.flatnonzero(row.viable & ~found.viable).tolist():
            arms[i] = replace(arms[i], viable=False)
        for i in np.flatnonzero(np.isnan(row.index) & ~np.isnan(found.index)).tolist():
            arms[i] = replace(arms[i], index=float(found.index[0, i]))
        state = replace(state, arms=tuple(arms))
        left = np.flatnonzero(found.viable)
        if len(left) == 1:
            return replace(state, status=Status.DECIDED, serve=int(left[0]))
        return self._open_phase(state, found)

    def opening(self, epoch: int, phase: int, arms: Arms) -> tuple[Bools, Ints]:
        """Which arms each run's phase collects from, and the size of its batches.

        The size is 0 where they do not all fit into what is left of the horizon.
        """
        chosen = arms.viable
        if self._by_index and phase > 1:
            chosen = np.arange(chosen.shape[1]) == np.argmax(arms.index, axis=1)[:, None]
        plan = self.rules(epoch).plan
        done = np.max(arms.batches, axis=1, where=chosen, initial=0)
        planned = done < len(plan.sizes)
        size = plan.users[plan.group[np.where(planned, done, 0)]].astype(np.int64)
        left = (self.experiment.horizon << epoch) - arms.users
        fits = planned & (size * np.sum(chosen, axis=1) <= left)
        return chosen, np.where(fits, size, 0)

    def recorded(self, epoch: int, arms: Arms, chosen: Bools, size: Ints, sums: Floats) -> Arms:
        """The arms after one more batch of each chosen one; `sums` are theirs, row by row."""
        plan = self.rules(epoch).plan
        weighted = arms.weighted.copy()
        index = arms.index.copy()
        weighted[chosen] += plan.weights[plan.group[arms.batches[chosen]]] * sums
        index[chosen] = np.nan
        users = arms.users + size * np.sum(chosen, axis=1)
        return Arms(arms.viable, arms.batches + chosen, weighted, index, users)

    def judged(self, epoch: int, phase: int, arms: Arms) -> Arms:
        """The arms after a complete phase: those left or, for kl-ucb, their new indices."""
        confidence = self.rules(epoch).confidence
        if not self._by_index:
            return replace(arms, viable=confidence.survivors(phase, arms.weighted, arms.viable))
        index = arms.index.copy()
        stale = np.isnan(arms.index)
        index[stale] = confidence.indices(arms.batches[stale], arms.weighted[stale])
        return replace(arms, index=index)

    def leaders(self, epoch: int, arms: Arms) -> Ints:
        """Each run's viable arm with the largest mean so far; the first one before any sum."""
        means = np.full(arms.viable.shape, -np.inf)
        known = arms.viable & (arms.batches > 0)
        means[known] = self.rules(epoch).confidence.means(arms.batches[known], arms.weighted[known])
        leaders: Ints = np.argmax(means, axis=1)
        return leaders

    def final(self, epoch: int) -> bool:
        """Whether the agent ends with this epoch's horizon; otherwise it doubles it."""
        known = self.experiment.agent.horizon_known
        return known or self.experiment.horizon << (epoch + 1) > MAX_HORIZON

    @property
    def _by_index(self) -> bool:
        return self.experiment.agent.test is Comparison.KL_UCB

    @property
    def _sequential(self) -> bool:
        return self.experiment.agent.order is Order.SEQUENTIAL

    def _open_phase(self, state: State, row: Arms) -> State:
        """Begin the next phase, or end if it does not fit into the horizon; `row` are its arms."""
        state = replace(state, phase=state.phase + 1)
        chosen, size = self.opening(state.epoch, state.phase, row)
        if not size[0]:
            return self._exhausted(state)
        opened = np.flatnonzero(chosen[0]).tolist()
        return self._with_open(state, opened[:1] if self._sequential else opened, int(size[0]))

    def _open_next(self, state: State) -> State:
        """Sequential order: the phase's next arm, if one has not had its batch yet."""
        if self._by_index:
            waiting = [
                i for i, arm in enumerate(state.arms) if state.phase == 1 and not arm.batches
            ]
        else:
            waiting = [i for i, a in enumerate(state.arms) if a.viable and a.batches < state.phase]
        if not waiting:
            return state
        sizes = self.rules(state.epoch).plan.sizes
        return self._with_open(state, waiting[:1], sizes[state.arms[waiting[0]].batches])

    def _with_open(self, state: State, arms: Sequence[int], size: int) -> State:
        first = state.sequence + 1
        opened = tuple(OpenBatch(first + i, arm, size) for i, arm in enumerate(arms))
        return replace(state, open=opened, sequence=state.sequence + len(opened))

    def _exhausted(self, state: State) -> State:
        if self.final(state.epoch):
            ended = replace(state, phase=state.phase - 1)
            return replace(ended, status=Status.EXHAUSTED, serve=self.leader(ended))
        arms = (ArmState(),) * len(state.arms)
        fresh = replace(state, arms=arms, phase=0, epoch=state.epoch + 1, spent=state.users)
        return self._open_phase(fresh, Arms.fresh(1, len(arms)))

    def leader(self, state: State) -> int:
        """The viable arm with the largest mean so far; the first one before any sum."""
        return int(self.leaders(state.epoch, Arms.of(state))[0])

    def means(self, state: State) -> list[float | None]:
        """Each arm's weighted mean; None before its first batch."""
        confidence = self.rules(state.epoch).confidence
        return [
            float(confidence.means(np.array(arm.batches), np.array(arm.weighted)))
            if arm.batches
            else None
            for arm in state.arms
        ]

    def intervals(self, state: State) -> list[tuple[float, float]]:
        """Each arm's confidence interval; all of [0, 1] before its first batch."""
        confidence = self.rules(state.epoch).confidence
        known = [i for i, arm in enumerate(state.arms) if arm.batches]
        result = [(0.0, 1.0)] * len(state.arms)
        if known:
            batches = np.array([state.arms[i].batches for i in known])
            sums = np.array([state.arms[i].weighted for i in known])
            lower, upper = confidence.intervals(batches, sums)
            for i, low, high in zip(known, lower.tolist(), upper.tolist(), strict=True):
                result[i] = (low, high)
        return result

    def estimates(
        self, epoch: int, batches: Sequence[int], weighted: Sequence[float]
    ) -> list[tuple[float, float, float]]:
        """Mean, lower and upper bound of arms with this evidence in an epoch; all at once."""
        confidence = self.rules(epoch).confidence
        counts = np.array(batches)
        sums = np.array(weighted)
        means = confidence.means(counts, sums).tolist()
        lower, upper = confidence.intervals(counts, sums)
        return list(zip(means, lower.tolist(), upper.tolist(), strict=True))
