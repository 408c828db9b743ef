"""What an agent says of its arms, and its rules on many runs at once."""

from dataclasses import fields

import numpy as np
import pytest

from stream_app.core.phased_agent import Arms, PhasedAgent
from stream_app.core.state import Status
from tests.core.walks import PRESETS, small, walk


@pytest.mark.parametrize("preset", PRESETS)
def test_many_runs_at_once(preset: str) -> None:
    """The rules on rows of one epoch and phase together equal those on each row alone."""
    agent = PhasedAgent(small(preset, 300, 3, horizon_known=False, order="interleaved"))
    rng = np.random.default_rng(1)
    due = []
    for _ in range(6):
        table = rng.uniform(0.3, 0.7, (3, 400))
        state = agent.begin()
        for _ in range(int(rng.integers(1, 30))):
            if state.status is not Status.RUNNING:
                break
            batch = state.open[0]
            value = batch.size * table[batch.arm][state.arms[batch.arm].batches]
            recorded = agent.record(state, batch.sequence, value)
            if agent.due(recorded):
                due.append(recorded)
                recorded = agent.decide(recorded)
            state = recorded
    alike: dict[tuple[int, int], list[Arms]] = {}
    for state in due:
        alike.setdefault((state.epoch, state.phase), []).append(Arms.of(state))

    assert len(alike) > 5
    assert max(map(len, alike.values())) > 1
    for (epoch, phase), rows in alike.items():
        together = concluded(agent, epoch, phase, stacked(rows))
        alone = zip(*(concluded(agent, epoch, phase, row) for row in rows), strict=True)
        for many, each in zip(together, alone, strict=True):
            assert np.array_equal(many, np.concatenate(each), equal_nan=True)


def concluded(agent: PhasedAgent, epoch: int, phase: int, arms: Arms) -> list[np.ndarray]:
    """All that follows from a complete phase."""
    found = agent.judged(epoch, phase, arms)
    leaders = agent.leaders(epoch, found)
    return [found.viable, found.index, *agent.opening(epoch, phase + 1, found), leaders]


def stacked(rows: list[Arms]) -> Arms:
    return Arms(*(np.concatenate([getattr(row, f.name) for row in rows]) for f in fields(Arms)))


@pytest.mark.parametrize("preset", PRESETS)
def test_means_and_intervals(preset: str) -> None:
    """Before its first batch an arm's mean is unknown, its interval all of [0, 1]."""
    agent = PhasedAgent(small(preset, 10**5, 2))
    state = agent.begin()
    assert agent.means(state) == [None, None]
    assert agent.intervals(state) == [(0.0, 1.0)] * 2
    state = agent.fold(state, 1, 0.4 * state.open[0].size)
    low, high = agent.intervals(state)[0]

    assert agent.means(state) == [pytest.approx(0.4), None]
    assert 0 <= low < 0.4 < high <= 1
    assert agent.intervals(state)[1] == (0.0, 1.0)


@pytest.mark.parametrize("preset", PRESETS)
def test_estimates_of_past_evidence(preset: str) -> None:
    """What a history asks for equals what the state itself says, in every epoch."""
    agent = PhasedAgent(small(preset, 300, 2, horizon_known=False))
    states = [s for s in walk(agent, lambda _a, _b: 0.5, most=40) if all(a.batches for a in s.arms)]
    assert {0, 1} <= {s.epoch for s in states}
    for state in states[::5]:
        arms = state.arms
        found = agent.estimates(state.epoch, [a.batches for a in arms], [a.weighted for a in arms])

        assert [mean for mean, _, _ in found] == pytest.approx(agent.means(state))
        assert [pair for _, *pair in found] == [list(pair) for pair in agent.intervals(state)]


def test_totals_with_and_without_weights() -> None:
    """An arm remembers the plain and the weighted sum of its batches."""
    agent = PhasedAgent(small("optimal", 10**5, 2))
    states = list(walk(agent, lambda _arm, batch: 0.5 + 0.01 * batch))
    arm = states[4].arms[0]
    plan = agent.rules(0).plan
    first = plan.sizes[0] * 0.5
    second = plan.sizes[1] * 0.51

    assert arm.total == pytest.approx(first + second)
    assert arm.weighted == pytest.approx(plan.weight(0) * first + plan.weight(1) * second)
    assert arm.users == plan.sizes[0] + plan.sizes[1]
