"""The core: encoding, simulation, calibration, decisions."""

import gc
import math
import secrets
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import numpy as np
from scipy import optimize, stats

from stream_app.core import accounting, simulation
from stream_app.core.agents import agent_for
from stream_app.core.confidence import Confidence
from stream_app.core.discrete_laplace import DiscreteLaplace
from stream_app.core.experiment import Experiment
from stream_app.core.mechanisms import calibrate
from stream_app.core.phased_agent import PhasedAgent
from stream_app.core.promise import Promise
from stream_app.core.schedules import Plan
from stream_app.core.state import ArmState, State, Status
from stream_app.core.terms import Terms
from stream_app.core.window import log_position, open_window
from stream_app.definitions import load_experiment, resolve
from tests.benchmarks.harness import Outcome, compare, seconds
from tests.core.test_accounting import true_delta

FILE = Path(__file__).parents[2] / "deploy" / "experiments" / "five-arms.toml"

_USERS = 1_000_000
# The chance of a one, as a numerator, and epsilon.
_CASES = [
    (int(ones / _USERS * accounting.ONE), epsilon)
    for ones in (90.2, 500, 5_000)
    for epsilon in (0.5, 0.1, 0.01)
]


def outcomes() -> Iterator[Outcome]:
    """All comparisons of this module."""
    experiment = load_experiment(FILE)
    yield compare(
        "simulation: 100 runs of optimal, T = 1e6",
        "the same at T = 1e5",
        seconds(lambda: _runs(replace(experiment, horizon=100_000))),
        seconds(lambda: _runs(experiment)),
        target=1.5,
    )
    sampler = calibrate(Promise(Decimal("0.5"), Decimal("1e-6"), 1000)).sampler()
    yield compare(
        "encode one reward, noise from the operating system",
        "secrets.token_bytes(8)",
        seconds(lambda: [secrets.token_bytes(8) for _ in range(100_000)]),
        seconds(lambda: [sampler.encode(1) for _ in range(100_000)]),
        target=3.0,
    )
    yield compare(
        f"exact binomial delta, m = 1e6 (below the true one {_below(_our_delta)})",
        "scipy.stats.binom on the same support by the textbook formula "
        f"(below the true one {_below(_textbook_delta)})",
        seconds(lambda: _textbook_delta(*_CASES[0])),
        seconds(lambda: _our_delta(*_CASES[0])),
        target=0.1,
    )
    for preset in ("optimal", "kl-ucb"):
        yield _decision(preset)
    for reports in (100_000, 1_000_000):
        yield Outcome(
            f"an open window of {reports} reports: bytes a report",
            "the id itself",
            16.0,
            _window_bytes(reports) / reports,
            100 / 16,
        )
    yield compare(
        "simulation: 1 000 runs of optimal, T = 1e6: seconds a run",
        "one run with numpy that draws each user's reward and noise",
        seconds(lambda: _one_run(experiment)),
        lambda: seconds(lambda: _runs(experiment, 1_000))() / 1_000,
        target=0.01,
        rounds=3,
    )


def _window_bytes(reports: int) -> int:
    """All that a window holds of its reports, as Python's allocator counts it."""
    promise = Promise(Decimal("0.5"), Decimal("1e-6"), 2 * reports)
    terms = Terms("demo", 1, "a", calibrate(promise))
    window = open_window(terms.batch_id, terms)
    gc.collect()
    tracemalloc.start()
    for _ in range(0, reports, 1_000):
        ids = [secrets.token_bytes(16) for _ in range(1_000)]
        assert not window.accept_all(ids, [0] * 1_000, range(1_000), lambda _: log_position(0, 0))
        del ids
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return used


def _decision(preset: str) -> Outcome:
    """The decision after phase 40 among 100 arms that are all still viable."""
    definition = resolve(
        {
            "name": "many",
            "arms": [f"arm {number}" for number in range(100)],
            "horizon": 10**9,
            "attribution_s": 0,
            "privacy": {"epsilon": 0.5, "delta": 1e-6},
            "agent": {"preset": preset, "growth": 1.1},
        },
        "many",
    )
    agent = PhasedAgent(definition)
    horizon_plan, confidence = agent.rules(0)
    users = horizon_plan.sizes[:40]
    weighted = sum(0.5 * size * horizon_plan.weight(i) for i, size in enumerate(users))
    fresh = ArmState(True, 40, sum(users), weighted, 0.5 * sum(users))
    # kl-ucb collects from one arm at a time: the others' indices are known.
    rest = fresh if preset == "optimal" else replace(fresh, index=0.6)
    state = State(Status.RUNNING, 40, (fresh,) + 99 * (rest,), (), 4_000)
    assert agent.decide(state).status is Status.RUNNING
    return compare(
        f"decision of {preset} after phase 40, 100 arms",
        "scipy.optimize.minimize_scalar on one arm's radius",
        seconds(lambda: _scipy_radius(horizon_plan, confidence)),
        seconds(lambda: agent.decide(state)),
        target=20,
        rounds=15,
    )


def _scipy_radius(batches: Plan, confidence: Confidence) -> float:
    """inf over theta of the `chernoff` radius (MATH 4) after 40 batches, as a textbook has it."""
    counts = batches.counts[40]
    weights = batches.weights
    level = math.log(2 * confidence.arms * confidence.horizon)
    reward = float(counts @ (batches.users * weights**2 / 8))
    reach = float(counts @ (weights * batches.users))
    inside = np.where(counts > 0, weights, 0.0)

    def radius(theta: float) -> float:
        noise = float(counts @ batches.noise.log_mgf(theta * inside))
        return (level + reward * theta**2 + noise) / (theta * reach)

    limit = 0.999 * batches.noise.limit / float(inside.max())
    return float(optimize.minimize_scalar(radius, bounds=(1e-9, limit), method="bounded").fun)


def _one_run(experiment: Experiment) -> None:
    """Every user of one run, to the horizon: a reward each, and a share of the noise."""
    assert experiment.simulation is not None
    means = experiment.simulation.means
    rng = np.random.default_rng(1)
    agent = agent_for(experiment)
    tables = {}
    state = agent.begin()
    left = experiment.horizon
    while state.status is Status.RUNNING:
        batch = state.open[0]
        mechanism = experiment.privacy.for_batch(batch.size)
        assert isinstance(mechanism, DiscreteLaplace)
        if batch.size not in tables:
            tables[batch.size] = np.array(mechanism.table, np.uint64)
        draws = rng.integers(0, 2**64, batch.size, np.uint64)
        ones = np.searchsorted(tables[batch.size], draws, "right")
        ones += rng.random(batch.size) < means[batch.arm]
        state = agent.fold(state, batch.sequence, mechanism.debias(int(ones.sum())))
        left -= batch.size
    assert state.serve is not None
    (rng.random(left) < means[state.serve]).sum()


def _runs(experiment: Experiment, runs: int = 100) -> None:
    job = simulation.Job("optimal", experiment, simulation.private_runs)
    for index, size in enumerate(simulation.blocks(runs)):
        job.block(1, index, size)


def _textbook_delta(numerator: int, epsilon: float) -> float:
    success = numerator / accounting.ONE
    growth = np.exp(epsilon)
    support = np.arange(_USERS + 2)
    mass = stats.binom.pmf(support, _USERS, success)
    shifted = np.concatenate(([0.0], mass[:-1]))
    return float(
        max(
            np.maximum(mass - growth * shifted, 0).sum(),
            np.maximum(shifted - growth * mass, 0).sum(),
        )
    )


def _our_delta(numerator: int, epsilon: float) -> float:
    accounting.binomial_delta.cache_clear()
    return accounting.binomial_delta(_USERS, numerator, epsilon)


def _below(delta: Callable[[int, float], float]) -> str:
    """How often what should be an upper bound is none, by 60-digit arithmetic."""
    below = sum(delta(*case) < true_delta(_USERS, *case) for case in _CASES)
    return f"in {below} of {len(_CASES)} cases"
