"""The agent as a state machine: walked by hand, and its laws for arbitrary sums."""

import math
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_app.core.phased_agent import PhasedAgent
from stream_app.core.state import ArmState, OpenBatch, Status
from stream_app.errors import IllegalTransition
from tests.core.build import experiment
from tests.core.walks import PRESETS, small, walk


def test_algorithm_1_by_hand() -> None:
    """SDP-AE, three arms, m = 5e6: I after phase t is (2 sqrt(t) sigma/N + 1/sqrt(N)) sqrt(2 ln T).

    The first phase eliminates arm 2 (gap .3), the second leaves both (gap 1.5 I), in the third arm
    1 goes.
    """
    horizon = 10**8
    size = 5_000_000
    sigma = math.sqrt(1.5 * 96 * math.log(2e6) / 0.25)
    agent = PhasedAgent(experiment("sdp-ae", horizon, 3, batch_size=size))

    def radius(t: int) -> float:
        users = t * size
        return (2 * math.sqrt(t) * sigma / users + 1 / math.sqrt(users)) * math.sqrt(
            2 * math.log(horizon)
        )

    state = agent.begin()
    assert state.open == (OpenBatch(1, 0, size),)
    state = agent.fold(state, 1, 0.70 * size)
    assert state.open == (OpenBatch(2, 1, size),)
    state = agent.fold(state, 2, 0.70 * size)
    state = agent.fold(state, 3, 0.40 * size)
    assert [a.viable for a in state.arms] == [True, True, False]
    assert (2, (OpenBatch(4, 0, size),)) == (state.phase, state.open)

    gap = 1.5 * radius(2)
    state = agent.fold(state, 4, 0.70 * size)
    state = agent.fold(state, 5, (0.70 - 2 * gap) * size)
    assert agent.means(state)[:2] == pytest.approx([0.70, 0.70 - gap])
    assert [a.viable for a in state.arms] == [True, True, False]
    assert state.arms[2] == ArmState(False, 1, size, 0.40 * size, 0.40 * size)

    wide = 2.01 * radius(3)
    state = agent.fold(state, 6, 0.70 * size)
    state = agent.fold(state, 7, (0.70 - 3 * wide + 2 * gap) * size)
    assert [a.viable for a in state.arms] == [True, False, False]
    assert (state.status, state.serve, state.open) == (Status.DECIDED, 0, ())
    assert state.users == 7 * size


def test_algorithm_2_by_hand() -> None:
    """VB-SDP-AE, two arms: batches 2, 4, 8, .. for each; it decides when the gap is above 2I."""
    horizon = 10**6
    sigma = math.sqrt(1.5 * 96 * math.log(2e6) / 0.25)
    agent = PhasedAgent(experiment("vb-sdp-ae", horizon, 2))
    states = list(walk(agent, lambda arm, _: 0.9 - 0.8 * arm))

    def radius(t: int) -> float:
        users = 2 ** (t + 1) - 2
        return (2 * math.sqrt(t) * sigma / users + 1 / math.sqrt(users)) * math.sqrt(
            2 * math.log(horizon)
        )

    phases = next(t for t in range(1, 30) if 0.8 > 2 * radius(t))
    opened = [s.open[0] for s in states if s.open]

    assert opened == [OpenBatch(i + 1, i % 2, 2 ** (i // 2 + 1)) for i in range(2 * phases)]
    assert (states[-1].status, states[-1].serve) == (Status.DECIDED, 0)
    assert phases == states[-1].phase == 13


def test_kl_ucb_by_hand() -> None:
    """Every arm has one batch first; then the largest upper bound is next, ties to the first."""
    agent = PhasedAgent(small("kl-ucb", 10**5))
    state = agent.begin()
    for arm, mean in enumerate((0.5, 0.8, 0.5)):
        assert state.open[0].arm == arm
        state = agent.fold(state, state.open[0].sequence, mean * state.open[0].size)

    indices = [a.index for a in state.arms]
    uppers = [high for _, high in agent.intervals(state)]
    assert indices == pytest.approx(uppers)
    assert indices[0] == indices[2] < indices[1]
    assert state.open[0].arm == 1
    state = agent.fold(state, state.open[0].sequence, 0.0)
    assert state.open[0].arm == 0
    assert state.arms[1].index < indices[0]


@given(st.sampled_from(PRESETS), st.integers(2, 4), st.integers(0, 10**9))
@settings(max_examples=12, deadline=None, derandomize=True)
def test_order_changes_nothing(preset: str, arms: int, seed: int) -> None:
    """Sequential and interleaved agents decide alike for the same sums, in any order of arrival."""
    random = Random(seed)
    means = [[random.random() for _ in range(400)] for _ in range(arms)]
    results = []
    for order in ("sequential", "interleaved"):
        agent = PhasedAgent(small(preset, 1500, arms, order=order))
        state = agent.begin()
        trace = []
        while state.status is Status.RUNNING:
            batch = random.choice(state.open)
            value = batch.size * means[batch.arm][state.arms[batch.arm].batches]
            before = state.phase
            state = agent.fold(state, batch.sequence, value)
            if state.phase != before or state.status is not Status.RUNNING:
                trace.append((state.phase, state.arms, state.status, state.serve))
        results.append((trace, state.sequence, state.users))

    assert results[0] == results[1]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("order", ["sequential", "interleaved"])
def test_laws_of_a_run(preset: str, order: str) -> None:
    """Sequence numbers are new, the horizon is never exceeded, and the state stays O(k)."""
    value = small(preset, 3000, 4, order=order)
    agent = PhasedAgent(value)
    seen: list[int] = []
    for state in walk(agent):
        seen += [b.sequence for b in state.open if b.sequence not in seen]
        assert state.users + sum(b.size for b in state.open) <= value.horizon
        assert len(state.arms) == 4
        assert len(state.open) <= 4
        assert state.sequence == max(seen)

    assert seen == list(range(1, len(seen) + 1))
    assert state.status in (Status.EXHAUSTED, Status.DECIDED)
    assert state.serve is not None
    assert state.open == ()


@pytest.mark.parametrize("preset", PRESETS)
def test_incomplete_phases_are_not_opened(preset: str) -> None:
    """Equal arms end the run exhausted: the next phase would not have fitted, this one did."""
    value = small(preset, 1000, 3)
    agent = PhasedAgent(value)
    *_, state = walk(agent, lambda _arm, _batch: 0.5)
    sizes = agent.rules(0).plan.sizes
    done = state.arms[0].batches
    following = (sizes[done] if done < len(sizes) else 1000) * (1 if preset == "kl-ucb" else 3)

    assert state.status is Status.EXHAUSTED
    assert state.users + following > 1000
    assert preset == "kl-ucb" or {a.batches for a in state.arms} == {state.phase}


@pytest.mark.parametrize("preset", PRESETS)
def test_exhausted_names_the_leader(preset: str) -> None:
    """When the horizon ends the agent serves the arm with the largest mean."""
    agent = PhasedAgent(small(preset, 400, 3))
    *_, state = walk(agent, lambda arm, _batch: (0.5, 0.52, 0.48)[arm])

    assert (state.status, state.serve) == (Status.EXHAUSTED, 1)
    assert agent.leader(state) == 1


def test_decided_with_one_arm_left() -> None:
    """Nothing is collected any more, long before the horizon."""
    agent = PhasedAgent(small("optimal", 10**6, 3))
    *_, state = walk(agent, lambda arm, _batch: (0.1, 0.2, 0.9)[arm])

    assert (state.status, state.serve, state.open) == (Status.DECIDED, 2, ())
    assert state.users < 3000
    assert [a.viable for a in state.arms] == [False, False, True]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("order", ["sequential", "interleaved"])
def test_sum_of_an_unopened_batch(preset: str, order: str) -> None:
    """Past, future and repeated batches raise, and leave the state as it was."""
    agent = PhasedAgent(small(preset, order=order))
    begun = agent.begin()
    state = agent.fold(begun, 1, 3.0)
    copy = replace(state)
    for sequence in (0, 1, state.sequence + 1, -1, 10**9):
        with pytest.raises(IllegalTransition, match=f"batch {sequence} of test is not open"):
            agent.fold(state, sequence, 1.0)

    assert copy == state
    assert agent.fold(begun, 1, 3.0) == state


@pytest.mark.parametrize("preset", PRESETS)
def test_nothing_is_taken_after_the_end(preset: str) -> None:
    """Stopped, decided and exhausted agents take no sum."""
    agent = PhasedAgent(small(preset, 400))
    *_, ended = walk(agent, lambda arm, _batch: (0.1, 0.2, 0.9)[arm])
    stopped = agent.stop(agent.fold(agent.begin(), 1, 3.0))

    assert stopped.status is Status.STOPPED
    assert (stopped.open, stopped.serve) == ((), 0)
    for state in (ended, stopped):
        assert not agent.due(state)
        for sequence in (1, 2, state.sequence):
            with pytest.raises(IllegalTransition):
                agent.record(state, sequence, 1.0)


def test_stopped_before_any_sum() -> None:
    """The first arm is served if nothing is known."""
    agent = PhasedAgent(small("optimal"))

    assert agent.stop(agent.begin()).serve == 0


@pytest.mark.parametrize("preset", PRESETS)
def test_horizon_too_small_for_a_phase(preset: str) -> None:
    """Nothing is opened; the first arm is served."""
    state = PhasedAgent(small(preset, 30, 3, batch_size=11)).begin()

    assert (state.status, state.serve, state.open, state.phase) == (Status.EXHAUSTED, 0, (), 0)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("order", ["sequential", "interleaved"])
def test_unknown_horizon_restarts(preset: str, order: str) -> None:
    """At the guess's end everything is forgotten, T doubles, sequence numbers go on."""
    value = small(preset, 300, 3, order=order, horizon_known=False)
    agent = PhasedAgent(value)
    states = list(walk(agent, lambda _arm, _batch: 0.5, most=90))
    restarts = [i for i, s in enumerate(states) if i and s.epoch > states[i - 1].epoch]

    assert len(restarts) >= 2
    for i in restarts:
        before = states[i - 1]
        after = states[i]
        last = before.open[-1]
        assert set(after.arms) == {ArmState()}
        assert after.phase == 1
        assert agent.horizon(after) == 2 * agent.horizon(before) == 300 * 2**after.epoch
        assert min(b.sequence for b in after.open) == before.sequence + 1
        assert after.users == after.spent == before.users + last.size
        assert after.status is Status.RUNNING
    for state in states:
        ended = state.users - state.spent + sum(b.size for b in state.open)
        assert ended <= agent.horizon(state)
    assert len({b.sequence for s in states for b in s.open}) == states[-1].sequence


def test_unknown_horizon_skips_guesses_without_room() -> None:
    """A first guess in which no phase fits is doubled at once."""
    agent = PhasedAgent(experiment("sdp-ae", 100, 2, horizon_known=False, batch_size=1000))
    state = agent.begin()

    assert (state.epoch, agent.horizon(state), state.spent) == (5, 3200, 0)
    assert state.open == (OpenBatch(1, 0, 1000),)


def test_unknown_horizon_decides() -> None:
    """A decision within a guess is final."""
    agent = PhasedAgent(small("optimal", 200, 2, horizon_known=False))
    *_, state = walk(agent, lambda arm, _batch: (0.2, 0.9)[arm])

    assert (state.status, state.serve) == (Status.DECIDED, 1)
