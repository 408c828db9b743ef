"""The agent: a state machine from released sums to the batches to collect next. No I/O, no clock.

`Agent.begin` gives the first state, `record` folds one sum, `decide` draws the conclusion when no
batch is open. States are frozen values of O(k) size; the service folds one experiment at a time,
a simulation records and decides for many runs at once through the same code.

The horizon. An incomplete phase proves nothing, so a phase is opened only if all of its batches
fit into what is left of the horizon; otherwise the agent is exhausted and names the leader to
serve. With one arm left it has decided. Either way nobody reports any more.

Unknown horizon (the paper's footnote 2): when the guess T is reached without a decision, the agent
forgets everything and starts again with 2T, on fresh users only, so that each user still counts
in one batch and the promise holds unchanged. It costs what was learned before: at most a factor of
about 2 to 4 where regret grows as sqrt(T), and one more log2(T) where it grows as log(T). A
decision within a guess is final, with that guess's guarantee.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

import numpy as np

from stream_app.core.confidence import Confidence
from stream_app.core.experiment import MAX_HORIZON, Experiment, Order, Test
from stream_app.core.schedules import Noises, Plan, mechanism_noise, plan
from stream_app.errors import IllegalTransition


class Status(StrEnum):
    """Where an experiment stands."""

    RUNNING = "running"
    DECIDED = "decided"
    EXHAUSTED = "exhausted"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ArmState:
    """All that is known of one arm."""

    viable: bool = True
    batches: int = 0
    users: int = 0
    # Sum over its batches of weight times debiased sum; and the same without weights.
    weighted: float = 0.0
    total: float = 0.0
    # kl-ucb's index; None until computed from the newest batch.
    index: float | None = None


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """A batch to collect: its number, its arm (by position) and its size."""

    sequence: int
    arm: int
    size: int


@dataclass(frozen=True, slots=True)
class State:
    """The agent's whole memory."""

    status: Status
    phase: int
    arms: tuple[ArmState, ...]
    open: tuple[OpenBatch, ...]
    sequence: int  # of the newest batch
    serve: int | None = None  # the arm to serve once nothing is collected
    epoch: int = 0  # how often an unknown horizon was doubled
    spent: int = 0  # users of earlier epochs

    @property
    def users(self) -> int:
        """Users whose batch was released, in all epochs."""
        return self.spent + sum(arm.users for arm in self.arms)


class Agent:
    """The state machine of one experiment."""

    def __init__(self, experiment: Experiment, noises: Noises | None = None) -> None:
        self.experiment = experiment
        noises = noises or mechanism_noise(experiment)
        self._for_horizon: Callable[[int], tuple[Plan, Confidence]] = lru_cache(maxsize=8)(
            lambda horizon: self._build(horizon, noises)
        )

    def _build(self, horizon: int, noises: Noises) -> tuple[Plan, Confidence]:
        settings = self.experiment.agent
        batches = plan(self.experiment, horizon, noises)
        confidence = Confidence(
            settings.test, settings.guarantee, batches, len(self.experiment.arms), horizon
        )
        return batches, confidence

    def horizon(self, state: State) -> int:
        """T of the state's epoch."""
        return self.experiment.horizon << state.epoch

    def begin(self) -> State:
        """The first state: every arm viable, the first phase open."""
        arms = (ArmState(),) * len(self.experiment.arms)
        return self._open_phase(State(Status.RUNNING, 0, arms, (), 0))

    def fold(self, state: State, sequence: int, value: float) -> State:
        """The state after one released sum: record, and decide if the phase is complete."""
        state = self.record(state, sequence, value)
        return self.decide([state])[0] if self.due(state) else state

    def record(self, state: State, sequence: int, value: float) -> State:
        """Add one batch's debiased sum. Raises IllegalTransition if that batch is not open."""
        batch = next((b for b in state.open if b.sequence == sequence), None)
        if batch is None or state.status is not Status.RUNNING:
            raise IllegalTransition(f"batch {sequence} of {self.experiment.name} is not open")
        before = state.arms[batch.arm]
        weight = self._for_horizon(self.horizon(state))[0].weight(before.batches)
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

    def decide(self, states: Sequence[State]) -> list[State]:
        """The states after their complete phases; all at once, since the tests are vectorised."""
        if self.experiment.agent.test is Test.KL_UCB:
            return self._choose(states)
        survivors = self._survivors(states)
        return [self._eliminate(s, kept) for s, kept in zip(states, survivors, strict=True)]

    def _eliminate(self, state: State, viable: list[bool]) -> State:
        """The state with these arms left: decided if one, else with its next phase open."""
        arms = tuple(
            arm if keep == arm.viable else replace(arm, viable=keep)
            for arm, keep in zip(state.arms, viable, strict=True)
        )
        if sum(viable) == 1:
            return replace(state, arms=arms, status=Status.DECIDED, serve=viable.index(True))
        return self._open_phase(replace(state, arms=arms))

    def _survivors(self, states: Sequence[State]) -> list[list[bool]]:
        results: list[list[bool]] = [[] for _ in states]
        alike: dict[tuple[int, int], list[int]] = {}
        for i, state in enumerate(states):
            alike.setdefault((state.epoch, state.phase), []).append(i)
        for (_, phase), members in alike.items():
            confidence = self._for_horizon(self.horizon(states[members[0]]))[1]
            sums = np.array([[arm.weighted for arm in states[i].arms] for i in members])
            viable = np.array([[arm.viable for arm in states[i].arms] for i in members])
            kept = confidence.survivors(phase, sums, viable)
            for i, row in zip(members, kept.tolist(), strict=True):
                results[i] = row
        return results

    def _choose(self, states: Sequence[State]) -> list[State]:
        """kl-ucb: each run's next batch goes to the arm with the largest index."""
        stale: dict[int, list[tuple[int, int]]] = {}  # epoch -> (run, arm)
        for i, state in enumerate(states):
            for a, arm in enumerate(state.arms):
                if arm.index is None and arm.batches:
                    stale.setdefault(state.epoch, []).append((i, a))
        arms = [list(state.arms) for state in states]
        for places in stale.values():
            confidence = self._for_horizon(self.horizon(states[places[0][0]]))[1]
            batches = np.array([arms[i][a].batches for i, a in places])
            sums = np.array([arms[i][a].weighted for i, a in places])
            indices = confidence.indices(batches, sums).tolist()
            for (i, a), index in zip(places, indices, strict=True):
                arms[i][a] = replace(arms[i][a], index=index)
        return [
            self._open_phase(replace(state, arms=tuple(row)))
            for state, row in zip(states, arms, strict=True)
        ]

    @property
    def _sequential(self) -> bool:
        return self.experiment.agent.order is Order.SEQUENTIAL

    def _candidates(self, state: State) -> list[int]:
        """The arms that the state's phase collects from."""
        if self.experiment.agent.test is Test.KL_UCB and state.phase > 1:
            indices = [arm.index if arm.index is not None else 2.0 for arm in state.arms]
            return [max(range(len(indices)), key=indices.__getitem__)]
        return [i for i, arm in enumerate(state.arms) if arm.viable]

    def _open_phase(self, state: State) -> State:
        """Begin the next phase, or end if it does not fit into the horizon."""
        state = replace(state, phase=state.phase + 1)
        candidates = self._candidates(state)
        sizes = self._for_horizon(self.horizon(state))[0].sizes
        done = state.arms[candidates[0]].batches
        left = self.horizon(state) - (state.users - state.spent)
        if done >= len(sizes) or sizes[done] * len(candidates) > left:
            return self._exhausted(state)
        size = sizes[done]
        opened = candidates[:1] if self._sequential else candidates
        return self._with_open(state, opened, size)

    def _open_next(self, state: State) -> State:
        """Sequential order: the phase's next arm, if one has not had its batch yet."""
        if self.experiment.agent.test is Test.KL_UCB:
            waiting = [
                i for i, arm in enumerate(state.arms) if state.phase == 1 and not arm.batches
            ]
        else:
            waiting = [i for i, a in enumerate(state.arms) if a.viable and a.batches < state.phase]
        if not waiting:
            return state
        sizes = self._for_horizon(self.horizon(state))[0].sizes
        return self._with_open(state, waiting[:1], sizes[state.arms[waiting[0]].batches])

    def _with_open(self, state: State, arms: Sequence[int], size: int) -> State:
        first = state.sequence + 1
        opened = tuple(OpenBatch(first + i, arm, size) for i, arm in enumerate(arms))
        return replace(state, open=opened, sequence=state.sequence + len(opened))

    def _exhausted(self, state: State) -> State:
        if self.experiment.agent.horizon_known or 2 * self.horizon(state) > MAX_HORIZON:
            ended = replace(state, phase=state.phase - 1)
            return replace(ended, status=Status.EXHAUSTED, serve=self.leader(ended))
        arms = (ArmState(),) * len(state.arms)
        fresh = replace(state, arms=arms, phase=0, epoch=state.epoch + 1, spent=state.users)
        return self._open_phase(fresh)

    def leader(self, state: State) -> int:
        """The viable arm with the largest mean so far; the first one before any sum."""
        means = [-np.inf if mean is None else mean for mean in self.means(state)]
        viable = [i for i, arm in enumerate(state.arms) if arm.viable]
        return max(viable, key=means.__getitem__)

    def means(self, state: State) -> list[float | None]:
        """Each arm's weighted mean; None before its first batch."""
        confidence = self._for_horizon(self.horizon(state))[1]
        return [
            float(confidence.means(np.array(arm.batches), np.array(arm.weighted)))
            if arm.batches
            else None
            for arm in state.arms
        ]

    def intervals(self, state: State) -> list[tuple[float, float]]:
        """Each arm's confidence interval; all of [0, 1] before its first batch."""
        confidence = self._for_horizon(self.horizon(state))[1]
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
        confidence = self._for_horizon(self.experiment.horizon << epoch)[1]
        counts, sums = np.array(batches), np.array(weighted)
        means = confidence.means(counts, sums).tolist()
        lower, upper = confidence.intervals(counts, sums)
        return list(zip(means, lower.tolist(), upper.tolist(), strict=True))
