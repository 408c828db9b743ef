"""Runs of an agent from a fixed table of sums, for its tests. Nothing here is under test."""

from collections.abc import Callable, Iterator

from stream_app.core.experiment import Experiment
from stream_app.core.phased_agent import PhasedAgent
from stream_app.core.state import State, Status
from tests.core.build import experiment

PRESETS = ["sdp-ae", "vb-sdp-ae", "optimal", "kl-ucb"]


def small(preset: str, horizon: int = 2000, arms: int = 3, **changes: object) -> Experiment:
    """An experiment whose batches are small enough for a walk."""
    if preset == "sdp-ae":
        changes.setdefault("batch_size", 50)
    return experiment(preset, horizon, arms, epsilon="0.9", **changes)


def sums_of(arm: int, batch: int) -> float:
    """A fixed table of rewards: what arm's batch-th sum is, per user."""
    return ((arm * 7919 + batch * 104729) % 1000) / 1000


def walk(
    agent: PhasedAgent, sums: Callable[[int, int], float] = sums_of, most: int = 400
) -> Iterator[State]:
    """All states of a run in which arm a's b-th batch has mean sums(a, b)."""
    state = agent.begin()
    yield state
    for _ in range(most):
        if state.status is not Status.RUNNING:
            return
        batch = state.open[0]
        value = batch.size * sums(batch.arm, state.arms[batch.arm].batches)
        state = agent.fold(state, batch.sequence, value)
        yield state
