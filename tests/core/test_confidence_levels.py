"""Levels and indices: what each bound may fail by, and what `expected` saves."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq

from stream_app.core.experiment import Experiment
from stream_app.core.phased_agent import PhasedAgent
from stream_app.core.schedules import Plan, mechanism_noise, plan
from tests.core.bounds import batches_of, confidence, least, psi, theta_limit
from tests.core.build import experiment


@pytest.mark.parametrize("arms", [2, 5, 10])
@pytest.mark.parametrize("phase", [1, 4, 8])
def test_expected_eliminates_sooner(arms: int, phase: int) -> None:
    """`expected` asks for less evidence than `high-probability`, on the same sums."""
    thresholds = []
    for guarantee in ("expected", "high-probability"):
        found = confidence(experiment(horizon=10**6, arms=arms, guarantee=guarantee))
        total = 0.7 * found.plan.counts[phase] @ (found.plan.weights * found.plan.users)
        thresholds.append(float(found._pairwise_threshold(np.array(phase), np.array(total))))

    assert thresholds[0] < thresholds[1]


def test_expected_index_is_lower() -> None:
    """kl-ucb's index at `expected` is below that at `high-probability`, for every batch."""
    levels = [
        confidence(experiment("kl-ucb", 10**6, guarantee=g))._levels(np.arange(1, 15))
        for g in ("expected", "high-probability")
    ]

    assert np.all(levels[0] < levels[1])


def index_level(value: Experiment, plan: Plan, batches: int) -> float:
    """The solution of L = ln(T nb) - ln kappa(theta_L), floor 1, by scipy."""
    parts = batches_of(value, plan, batches)
    top = math.log(value.horizon * len(plan.sizes))

    def image(level: float) -> float:
        def radius(theta: float) -> float:
            noise = sum(max(psi(value, n, theta * w), psi(value, n, -theta * w)) for n, w in parts)
            return (level + sum(n * (theta * w) ** 2 / 8 for n, w in parts) + noise) / theta

        theta = least(radius, theta_limit(value, parts))[0]
        return max(1.0, top - math.log(sum(-n * math.expm1(-theta * w) for n, w in parts)))

    if image(1.0) <= 1.0:
        return 1.0
    return float(brentq(lambda level: image(level) - level, 1.0, 100.0, xtol=1e-6))


@pytest.mark.parametrize("epsilon", ["0.1", "0.5", "2"])
@pytest.mark.parametrize("horizon", [100, 10**4, 10**7])
@pytest.mark.parametrize("batches", [1, 2, 5])
@pytest.mark.parametrize("first", [None, 2, 20])
def test_index_level_is_at_its_fixed_point(
    epsilon: str, horizon: int, batches: int, first: int | None
) -> None:
    """At or above the solution, by what the search for theta leaves (3e-3) and little more."""
    value = experiment("kl-ucb", horizon, 3, epsilon=epsilon, batch_size=first)
    found = confidence(value)
    batches = min(batches, len(found.plan.sizes))
    solution = index_level(value, found.plan, batches)
    level = float(found._levels(np.array([batches]))[0])

    assert solution - 3e-3 <= level <= solution + 0.02
    assert level == float(found._levels(np.array([batches]))[0])  # remembered


def test_index_level_has_a_floor() -> None:
    """T = 4 in one batch, hardly any noise: ln(T/kappa) is about .3, and L is 1."""
    value = experiment("kl-ucb", 4, epsilon="8", batch_size=4)
    found = confidence(value)

    assert found.plan.sizes == (4,)
    assert float(found._levels(np.array([1]))[0]) == 1.0


def test_high_probability_levels() -> None:
    """ln(kPT) for pairwise, ln(2kPT) for chernoff, ln(T nb) for kl-ucb."""
    one = np.array([1])
    hp = {"guarantee": "high-probability"}
    pairwise = confidence(experiment(horizon=10**4, arms=3, **hp))
    chernoff = confidence(experiment(horizon=10**4, arms=3, test="chernoff", **hp))
    index = confidence(experiment("kl-ucb", 10**4, 3, **hp))

    assert pairwise._levels(one)[0] == pytest.approx(math.log(3 * len(pairwise.plan.sizes) * 1e4))
    assert chernoff._levels(one)[0] == pytest.approx(math.log(6 * len(chernoff.plan.sizes) * 1e4))
    assert index._levels(one)[0] == pytest.approx(math.log(len(index.plan.sizes) * 1e4))


def test_equal_evidence_has_equal_indices() -> None:
    """To the last bit, among arms with more batches and alone: kl-ucb takes the first of a tie."""
    found = confidence(experiment("kl-ucb", 10**6))
    batches = np.array([1, 14, 3, 9, 3, 20])
    sums = 0.37 * found.plan.counts[batches] @ (found.plan.weights * found.plan.users)
    alone = [found.indices(batches[i : i + 1], sums[i : i + 1])[0] for i in range(len(batches))]

    assert found.indices(batches, sums).tolist() == alone


def test_plans_of_other_horizons() -> None:
    """An unknown horizon gets its own plan and levels for every guess."""
    value = experiment(horizon=1000, horizon_known=False)
    agent = PhasedAgent(value)
    short, long = (agent.rules(epoch) for epoch in (0, 2))

    assert len(short[0].sizes) < len(long[0].sizes)
    assert short[1]._levels(np.array(1)) < long[1]._levels(np.array(1))
    assert long[0].sizes == plan(value, 4000, mechanism_noise(value)).sizes
