"""Simulations: reproducible, right by hand, and in agreement with one that draws every user."""

import math

import numpy as np
import pytest

from stream_app.core.experiment import Experiment
from stream_app.core.phased_agent import PhasedAgent
from stream_app.core.schedules import mechanism_noise
from stream_app.core.simulation import (
    BLOCK,
    Job,
    RunBlock,
    _Runs,
    agent_runs,
    blocks,
    grid,
    private_runs,
    summarise,
    users_of,
)
from stream_app.core.state import State, Status
from tests.core.build import experiment

MEANS = (0.8, 0.6, 0.5)


def job(preset: str = "optimal", horizon: int = 20_000, **changes: object) -> Job:
    return Job(preset, experiment(preset, horizon, means=MEANS, **changes), private_runs)


def same(first: RunBlock, second: RunBlock) -> bool:
    return all(
        np.array_equal(getattr(first, name), getattr(second, name), equal_nan=True)
        for name in ("regret", "decided_at", "best_kept", "curve")
    )


@pytest.mark.parametrize("preset", ["optimal", "kl-ucb"])
def test_same_seed_same_result(preset: str) -> None:
    """A block is a function of seed and index only, whatever ran before it."""
    work = job(preset, 10**5)
    forward = [work.block(3, index, 10) for index in (0, 1)]
    backward = [work.block(3, index, 10) for index in (1, 0)]

    assert same(forward[0], backward[1])
    assert same(forward[1], backward[0])
    assert not np.array_equal(forward[0].curve, forward[1].curve)
    assert not np.array_equal(forward[0].curve, work.block(4, 0, 10).curve)


def test_blocks() -> None:
    """Runs are split in blocks, the last one smaller."""
    assert blocks(2 * BLOCK + 20) == [BLOCK, BLOCK, 20]
    assert blocks(BLOCK) == [BLOCK]


def test_grid() -> None:
    """From the first user to the last, growing, about 80 points."""
    points = grid(10**6)

    assert (points[0], points[-1]) == (1, 10**6)
    assert np.all(np.diff(points) > 0)
    assert 60 < len(points) <= 80


class Recorder:
    """A generator whose binomial draws (rewards) are written down; otherwise numpy's own."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self.calls: list[np.ndarray] = []

    def binomial(self, n, p, size=None):  # noqa: ANN001, ANN201
        drawn = self._rng.binomial(n, p, size)
        self.calls.append(np.array(drawn, dtype=float))
        return drawn

    def negative_binomial(self, n, p, size=None):  # noqa: ANN001, ANN201
        drawn = self._rng.negative_binomial(n, p, size)
        self.calls.append(np.array(drawn, dtype=float))
        return drawn


@pytest.mark.parametrize("preset", ["optimal", "kl-ucb"])
@pytest.mark.parametrize("horizon", [3000, 60_000])
def test_regret_by_hand(preset: str, horizon: int) -> None:
    """One run's regret, recomputed from its recorded draws: gaps times users, served ones too."""
    value = experiment(preset, horizon, means=MEANS)
    recorder = Recorder(5)
    block = agent_runs(value, mechanism_noise(value), np.array(MEANS), 1, recorder)

    agent = PhasedAgent(value)
    state = None
    regret = 0.0
    users = 0
    state = agent.begin()
    draws = iter(recorder.calls)
    while state.status is Status.RUNNING:
        rewards, up, down = (next(draws) for _ in range(3))  # of all batches of a phase
        for value in rewards + up - down:
            batch = state.open[0]
            state = agent.fold(state, batch.sequence, float(value))
            regret += batch.size * (0.8 - MEANS[batch.arm])
            users += batch.size
    regret += (horizon - users) * (0.8 - MEANS[state.serve])

    assert next(draws, None) is None
    assert block.regret.tolist() == pytest.approx([regret])
    assert block.curve[-1] == pytest.approx(regret)
    assert math.isnan(block.decided_at[0]) == (state.status is not Status.DECIDED)
    assert state.status is not Status.DECIDED or block.decided_at[0] == users


def test_served_users_count() -> None:
    """Nothing fits into T = 100, so all users are served the first arm, which is .5 worse."""
    block = private_runs(experiment("sdp-ae", 100, means=(0.2, 0.7)), 3, np.random.default_rng(1))

    assert block.regret.tolist() == pytest.approx([50.0] * 3)
    assert block.curve == pytest.approx(3 * 0.5 * grid(100), abs=1e-9)


CLOSE = (0.8, 0.7, 0.4)
LENGTHS = [(1.0, None, True), (1.0, 0.6, True), (0.125, 1.5, False)]  # T, users, T known


@pytest.mark.parametrize("order", ["sequential", "interleaved"])
@pytest.mark.parametrize("length", LENGTHS, ids=str)
@pytest.mark.parametrize(
    ("preset", "horizon", "changes"),
    [
        ("optimal", 5_000, {}),
        ("optimal", 5_000, {"mechanism": "binomial", "guarantee": "high-probability"}),
        ("optimal", 10_000, {"test": "chernoff", "guarantee": "high-probability"}),
        ("vb-sdp-ae", 300_000, {}),
        ("sdp-ae", 300_000, {"batch_size": 4_000}),
        ("sdp-ae", 10_000, {"batch_size": 90, "calibration": "exact", "test": "pairwise"}),
        ("kl-ucb", 5_000, {}),
    ],
)
def test_runs_together_are_runs_alone(
    monkeypatch: pytest.MonkeyPatch,
    preset: str,
    horizon: int,
    changes: dict[str, object],
    length: tuple[float, float | None, bool],
    order: str,
) -> None:
    """Each run of a block, folded sum by sum through the agent: the same batches, the same end."""
    guess, users, known = length
    value = experiment(
        preset, int(horizon * guess), means=CLOSE, users=users and int(horizon * users),
        horizon_known=known, epsilon="0.9", order=order, **changes,
    )  # fmt: skip
    given: dict[int, list[tuple[int, int, float]]] = {run: [] for run in range(8)}
    collect = _Runs._collect

    def noted(self: _Runs, active: np.ndarray, chosen: np.ndarray, size: np.ndarray) -> np.ndarray:
        sums = collect(self, active, chosen, size)
        for row, arm, one in zip(*np.nonzero(chosen), sums, strict=True):
            given[int(active[row])].append((int(arm), int(size[row]), float(one)))
        return sums

    monkeypatch.setattr(_Runs, "_collect", noted)
    block = private_runs(value, len(given), np.random.default_rng(9))
    agent = PhasedAgent(value)
    last = users_of(value)
    curve = 0
    for run, batches in given.items():
        state, path = fold(agent, batches, last)
        decided = state.status is Status.DECIDED
        curve = curve + np.interp(grid(last), *zip(*path, strict=True))
        assert block.regret[run] == pytest.approx(np.interp(last, *zip(*path, strict=True)))
        assert block.decided_at[run] == state.users if decided else np.isnan(block.decided_at[run])
        assert block.best_kept[run] == state.arms[0].viable
    assert block.curve == pytest.approx(curve)


def fold(
    agent: PhasedAgent, batches: list[tuple[int, int, float]], last: int
) -> tuple[State, list[tuple[int, float]]]:
    """The state after these batches (arm, size, sum), and regret by users; until the last user."""
    state = agent.begin()
    path = [(0, 0.0)]
    given = iter(batches)
    while state.status is Status.RUNNING and state.users < last:
        opened = state.open
        for batch in opened:  # in parallel, all of them are collected
            arm, size, value = next(given)
            assert (batch.arm, batch.size) == (arm, size)
            state = agent.fold(state, batch.sequence, value)
            users, regret = path[-1]
            path.append((users + size, regret + size * (CLOSE[0] - CLOSE[arm])))
    complete = agent.experiment.agent.order == "interleaved" or state.users < last
    assert next(given, None) is None or not complete
    if state.users < last:
        users, regret = path[-1]
        path.append((last, regret + (last - users) * (CLOSE[0] - CLOSE[state.serve])))
    return state, path


def naive_run(agent: PhasedAgent, rng: np.random.Generator) -> float:
    """A run that draws every user's reward and noise share and keeps its own books."""
    value: Experiment = agent.experiment
    means = value.simulation.means
    state = agent.begin()
    regret = 0.0
    users = 0
    while state.status is Status.RUNNING:
        batch = state.open[0]
        mechanism = value.privacy.for_batch(batch.size)
        rewards = rng.random(batch.size) < means[batch.arm]
        if value.privacy.mechanism == "binomial":
            noise = rng.random((batch.size, mechanism.trials)) < mechanism.success
            reports = rewards + noise.sum(axis=1)
        else:
            shape = 1 / mechanism.promise.honest
            stop = 1 - math.exp(-float(value.privacy.epsilon))
            x, y = (rng.negative_binomial(shape, stop, batch.size) for _ in range(2))
            reports = rewards + mechanism.clip + np.clip(x - y, -mechanism.clip, mechanism.clip)
        users += batch.size
        regret += batch.size * (max(means) - means[batch.arm])
        state = agent.fold(state, batch.sequence, mechanism.debias(int(reports.sum())))
    return regret + (value.horizon - users) * (max(means) - means[state.serve])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        ("optimal", {}),
        ("kl-ucb", {"honest": "0.9"}),
        ("optimal", {"mechanism": "binomial"}),
        ("vb-sdp-ae", {"calibration": "exact", "test": "pairwise", "order": "interleaved"}),
    ],
)
def test_agrees_with_a_simulation_of_every_user(preset: str, changes: dict[str, str]) -> None:
    """Mean regret within 4 combined standard errors of a naive simulation.

    Fixed seeds; equal distributions would fail for 1e-4 of the seeds.
    """
    value = experiment(preset, 2000, means=(0.9, 0.6), epsilon="0.9", **changes)
    rng = np.random.default_rng(2)
    agent = PhasedAgent(value)
    naive = np.array([naive_run(agent, rng) for _ in range(50)])
    fast = private_runs(value, 300, np.random.default_rng(3)).regret
    error = math.sqrt(naive.var(ddof=1) / len(naive) + fast.var(ddof=1) / len(fast))

    assert error > 0.1
    assert abs(naive.mean() - fast.mean()) < 4 * error


def test_users_beyond_and_before_the_horizon() -> None:
    """More users than T are served the winner; fewer end the run inside a batch."""
    curves = {}
    for users in (700, 20_000, 50_000):
        value = experiment(horizon=20_000, means=MEANS, users=users)
        assert users_of(value) == users
        curves[users] = private_runs(value, 20, np.random.default_rng(6))

    assert curves[50_000].regret == pytest.approx(curves[20_000].regret)
    assert np.all(curves[700].regret <= curves[20_000].regret)
    assert np.any(curves[700].regret < curves[20_000].regret)
    assert np.all(curves[700].regret > 0)
    assert len(curves[700].curve) == len(grid(700))


@pytest.mark.parametrize("order", ["sequential", "interleaved"])
@pytest.mark.parametrize("preset", ["vb-sdp-ae", "optimal", "kl-ucb"])
def test_one_user(preset: str, order: str) -> None:
    """That one is given the first arm; in sequential order no phase is ever complete."""
    value = experiment(preset, 20_000, means=(0.2, 0.5), users=1, epsilon="0.9", order=order)
    block = private_runs(value, 3, np.random.default_rng(1))

    assert block.regret.tolist() == pytest.approx([0.3] * 3)
    assert np.all(np.isnan(block.decided_at))


def test_unknown_horizon_ends_with_the_users() -> None:
    """The agent goes on for ever; the simulation ends with its last user."""
    value = experiment(horizon=500, means=(0.5, 0.5, 0.4), users=5000, horizon_known=False)
    block = private_runs(value, 5, np.random.default_rng(7))

    assert np.all(block.regret <= 0.1 * 5000)
    assert np.all(block.regret > 0)


def test_summary() -> None:
    """All blocks together: means, errors, shares, and the curve at the grid's users."""
    value = job(horizon=60_000)
    done = [value.block(1, index, runs) for index, runs in enumerate(blocks(60))]
    result = summarise(value, done)
    regret = np.concatenate([b.regret for b in done])
    decided = np.concatenate([b.decided_at for b in done])

    assert (result.name, result.runs) == ("optimal", 60)
    assert result.regret_mean == pytest.approx(regret.mean())
    assert result.regret_sem == pytest.approx(regret.std(ddof=1) / math.sqrt(60))
    assert result.decided_fraction == np.mean(~np.isnan(decided))
    assert result.users_to_decision_mean == pytest.approx(np.nanmean(decided))
    assert result.regret[-1] == pytest.approx(result.regret_mean)
    assert result.users[-1] == 60_000
    assert len(result.users) == len(result.regret)
    assert result.best_arm_kept == 1.0


def test_summary_without_decision() -> None:
    """A single run without a decision: no error estimate, no time of decision."""
    value = job(horizon=100)
    result = summarise(value, [value.block(1, 0, 1)])

    assert (result.regret_sem, result.decided_fraction) == (0.0, 0.0)
    assert result.users_to_decision_mean is None


def test_any_best_arm_is_a_best_arm() -> None:
    """Of two equally good arms either may be lost: the best mean is still kept."""
    value = experiment(horizon=2000, means=(0.5, 0.5), epsilon="8")
    block = private_runs(value, 300, np.random.default_rng(8))

    assert np.any(~np.isnan(block.decided_at))
    assert np.all(block.best_kept)
