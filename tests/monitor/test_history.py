"""Histories: bounded, in order, and the agent's own numbers."""

import dataclasses

import pytest

from stream_app.core.agents import agent_for
from stream_app.core.state import ArmState
from stream_app.monitor.history import MAX_POINTS, Track, most_points
from tests.core.build import experiment
from tests.monitor.site import ScriptedRun, demo

DEFINED = experiment(horizon=10_000, means=(0.7, 0.2))


def played() -> tuple[ScriptedRun, Track]:
    run = ScriptedRun(demo())
    track = Track(run.experiment)
    track.add(run.state)
    for _ in run.steps():
        track.add(run.state)
    return run, track


def test_a_whole_run() -> None:
    """Each arm's last point is its estimate; every phase and every dropped arm is there."""
    run, track = played()
    agent = agent_for(run.experiment)

    shown = track.shown(agent)

    means = agent.means(run.state)
    intervals = agent.intervals(run.state)
    for points, mean, (lower, upper) in zip(shown, means, intervals, strict=True):
        assert points[-1][1:] == pytest.approx((mean, lower, upper), abs=1e-5)
        assert points == sorted(points, key=lambda point: point[0])
    assert [phase["phase"] for phase in track.phases] == list(range(1, run.state.phase + 1))
    assert {one["arm"] for one in track.eliminated} == set(run.experiment.arms) - {"spring"}


def test_an_older_state_is_skipped() -> None:
    """A repeated record changes nothing."""
    run, track = played()
    before = track.shown(agent_for(run.experiment))
    track.add(agent_for(run.experiment).begin())

    assert before == track.shown(agent_for(run.experiment))
    assert track.phases[-1]["phase"] == run.state.phase


def test_a_doubled_horizon_begins_again() -> None:
    """Arms that were dropped under the last guess are no longer listed as dropped."""
    run, track = played()
    arms = (ArmState(),) * 5
    track.add(
        dataclasses.replace(run.state, epoch=1, phase=1, arms=arms, spent=run.state.users)
    )  # fmt: skip

    assert track.eliminated == []
    assert {"phase": 1, "epoch": 1, "users": run.state.users} == track.phases[-1]


def test_points_are_bounded() -> None:
    """However many states, and however many arms."""
    track = Track(DEFINED)
    begun = agent_for(DEFINED).begin()
    for number in range(1, 1_000):
        arm = ArmState(True, number, number * 10, 1.0, 1.0)
        track.add(dataclasses.replace(begun, arms=(arm, arm), phase=number, sequence=number))

    assert all(len(marks) <= MAX_POINTS for marks in track.evidence)
    assert len(track.phases) <= MAX_POINTS
    assert (20, 19_980) == (track.evidence[0][0].users, track.evidence[0][-1].users)
    assert [MAX_POINTS, 20, 8, 8] == [most_points(k) for k in (0, 100, 1_000, 10**6)]


def test_an_impossible_state_has_no_points() -> None:
    """Whoever writes assignments is not trusted: what cannot be computed is left out."""
    track = Track(DEFINED)
    arm = ArmState(True, 2**53 - 1, 2**53 - 1, 1e308, -1e308)
    track.add(dataclasses.replace(agent_for(DEFINED).begin(), arms=(arm, arm)))

    assert [[], []] == track.shown(agent_for(DEFINED))
