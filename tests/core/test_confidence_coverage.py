"""Coverage of the tests of MATH 4, by simulation."""

import math

import numpy as np
import pytest

from stream_app.core.confidence import Confidence
from stream_app.core.experiment import Experiment, Guarantee
from stream_app.core.schedules import Plan, mechanism_noise
from tests.core.bounds import NOISES, confidence
from tests.core.build import experiment


def draw_sums(
    value: Experiment, plan: Plan, batches: int, mean: float, runs: int, seed: int
) -> np.ndarray:
    """S after `batches` batches, for many runs."""
    rng = np.random.default_rng(seed)
    total = np.zeros(runs)
    for j, size in enumerate(plan.sizes[:batches]):
        noise = mechanism_noise(value)(size)[0].draw(runs, rng)
        total += plan.weight(j) * (rng.binomial(size, mean, runs) + noise)
    return total


def most(probability: float, runs: int) -> float:
    """A frequency that an event of this probability exceeds with probability < 1e-6."""
    return probability + 5 * math.sqrt(probability * (1 - probability) / runs) + 10 / runs


RUNS = 5_000


@pytest.mark.parametrize("changes", NOISES, ids=str)
@pytest.mark.parametrize("mean", [0.03, 0.5, 0.95])
@pytest.mark.parametrize("batches", [1, 4])
def test_coverage_of_cramer_bounds(changes: dict[str, str], mean: float, batches: int) -> None:
    """Each side fails with probability at most e^-L = 5%, though theta is chosen after the data.

    Fixed seed; a valid bound would fail for less than 1e-6 of the seeds. Not vacuous: it does fail
    now and then.
    """
    value = experiment(horizon=10**5, **changes)
    found = confidence(value)
    sums = draw_sums(value, found.plan, batches, mean, RUNS, 3)
    every = np.full(RUNS, batches)
    level = np.full(RUNS, math.log(20))
    above = np.mean(found.upper(every, sums, level) < mean)
    below = np.mean(found.lower(every, sums, level) > mean)

    assert max(above, below) <= most(0.05, RUNS)
    assert min(above, below) > 0 or mean == 0.03


@pytest.mark.parametrize("changes", NOISES, ids=str)
@pytest.mark.parametrize("mean", [0.1, 0.5])
def test_coverage_of_chernoff(changes: dict[str, str], mean: float) -> None:
    """|mean - mu| > I with probability at most 2 e^-L; here T = 2, k = 2, P = 1, so 2/8.

    Fixed seed; false-failure probability below 1e-6.
    """
    value = experiment(horizon=10**5, test="chernoff", guarantee="high-probability", **changes)
    full = confidence(value).plan
    found = Confidence(value.agent.test, value.agent.guarantee, full, 2, 2)
    for batches in (1, 4):
        sums = draw_sums(value, full, batches, mean, RUNS, 4)
        every = np.full(RUNS, batches)
        outside = np.abs(found.means(every, sums) - mean) > found._radius(every)

        assert 0 < np.mean(outside) <= most(2 / 8, RUNS)


@pytest.mark.parametrize("preset", ["sdp-ae", "vb-sdp-ae"])
def test_coverage_of_the_paper(preset: str) -> None:
    """|mean - mu| > I with probability at most 4 T^-4 (the clean event), at T = 2: 1/4.

    Fixed seed; false-failure probability below 1e-6.
    """
    value = experiment(preset, 10**6)
    full = confidence(value).plan
    found = Confidence(value.agent.test, value.agent.guarantee, full, 2, 2)
    for batches in (1, 3, 14):
        sums = draw_sums(value, full, batches, 0.5, RUNS, 5)
        every = np.full(RUNS, batches)
        outside = np.abs(found.means(every, sums) - 0.5) > found._radius(every)

        assert np.mean(outside) <= most(4 / 2**4, RUNS)


@pytest.mark.parametrize("changes", NOISES, ids=str)
@pytest.mark.parametrize("mean", [0.05, 0.6])
@pytest.mark.parametrize("phase", [1, 4])
def test_coverage_of_pairwise(changes: dict[str, str], mean: float, phase: int) -> None:
    """Of two equal arms one is lost with probability at most 2 e^-L, plus e^-L for U; L = ln(kPT).

    T = 5, k = 2, P = 1 here: 3/10. Fixed seed; false-failure probability below 1e-6.
    """
    value = experiment(horizon=10**5, guarantee="high-probability", **changes)
    full = confidence(value).plan
    found = Confidence(value.agent.test, Guarantee.HIGH_PROBABILITY, full, 2, 5)
    sums = np.stack([draw_sums(value, full, phase, mean, RUNS, seed) for seed in (6, 7)], axis=-1)
    kept = found.survivors(phase, sums, np.ones_like(sums, dtype=bool))

    assert np.all(kept.sum(axis=-1) >= 1)
    assert 0 < np.mean(kept.sum(axis=-1) == 1) <= most(3 / 10, RUNS)


@pytest.mark.parametrize("changes", NOISES, ids=str)
@pytest.mark.parametrize("gap", [0.01, 0.03, 0.1])
@pytest.mark.parametrize("phase", [1, 4])
def test_cost_of_expected_pairwise(changes: dict[str, str], gap: float, phase: int) -> None:
    """gap T P(the better of two arms is lost in a phase) <= 1/P, plus what U's failure costs.

    P = 1 here and U fails with probability at most 1/(kPT) = 1/2T, so gap T p <= 1 + gap/2.
    Fixed seed; false-failure probability below 1e-6.
    """
    horizon = 40
    value = experiment(horizon=10**5, **changes)
    full = confidence(value).plan
    found = Confidence(value.agent.test, Guarantee.EXPECTED, full, 2, horizon)
    means = (0.3, 0.3 - gap)
    sums = np.stack(
        [draw_sums(value, full, phase, mu, RUNS, 8 + i) for i, mu in enumerate(means)], axis=-1
    )
    lost = np.mean(~found.survivors(phase, sums, np.ones_like(sums, dtype=bool))[:, 0])

    assert lost <= most(min(1, (1 + gap / 2) / (gap * horizon)), RUNS)


@pytest.mark.parametrize("changes", [NOISES[0], NOISES[3], {"mechanism": "binomial"}], ids=str)
@pytest.mark.parametrize("mean", [0.1, 0.7])
@pytest.mark.parametrize("batches", [1, 3, 8])
def test_expected_index_falls_short_by_little(
    changes: dict[str, str], mean: float, batches: int
) -> None:
    """E[T G] <= 1: each batch's share of it, T nb E[(mu - index)+], is at most 1.

    The mean over 5000 runs plus nothing, since it is far below 1; fixed seed.
    """
    value = experiment("kl-ucb", 20_000, **changes)
    found = confidence(value)
    sums = draw_sums(value, found.plan, batches, mean, RUNS, 9)
    index = found.intervals(np.full(RUNS, batches), sums)[1]

    assert 20_000 * len(found.plan.sizes) * np.mean(np.maximum(0, mean - index)) <= 1
