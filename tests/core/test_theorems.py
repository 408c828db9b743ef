"""The paper's theorems by simulation: explicit bounds of the proofs, and the shape of their terms.

sigma^2 = 1.5 tau (MATH 3.1), honest fraction 1. All seeds are fixed.
"""

import math

import numpy as np
import pytest

from stream_app.core.simulation import private_runs
from tests.core.build import experiment

pytestmark = pytest.mark.slow


def sigma(epsilon: str, delta: str = "0.000001") -> float:
    return math.sqrt(1.5 * 96 * math.log(2 / float(delta)) / float(epsilon) ** 2)


def dependent_bound(preset: str, gaps: list[float], horizon: int, s: float) -> float:
    """The proofs' regret bounds with their constants: equations for R_a, summed, plus 4/T.

    VB-SDP-AE: the proof takes t <= log T where t <= log2 T holds; the constant as printed.
    """
    log = math.log(horizon)
    m = math.ceil(s**2)
    if preset == "sdp-ae":
        terms = [128 * log / d + 512 * s**2 * log / (m * d) + m * d for d in gaps]
    else:
        terms = [512 * log / d + 64 * math.sqrt(2) * s * log for d in gaps]
    return sum(terms) + 4 / horizon


def independent_bound(preset: str, arms: int, horizon: int, s: float) -> float:
    """The distribution-independent forms, as the proofs end with them."""
    log = math.log(horizon)
    m = math.ceil(s**2)
    if preset == "sdp-ae":
        return 2 * math.sqrt((128 + 512 * s**2 / m) * arms * horizon * log) + m * arms + 4 / horizon
    return math.sqrt(2048 * arms * horizon * log) + 64 * math.sqrt(2) * arms * s * log + 4 / horizon


@pytest.mark.parametrize("preset", ["sdp-ae", "vb-sdp-ae"])
@pytest.mark.parametrize("horizon", [10**6, 10**8])
@pytest.mark.parametrize("epsilon", ["0.3", "0.9"])
@pytest.mark.parametrize("gaps", [[0.5], [0.03], [0.1, 0.3, 0.3, 0.5]])
def test_regret_is_below_the_bounds(
    preset: str, horizon: int, epsilon: str, gaps: list[float]
) -> None:
    """Mean regret of 20 runs stays below both explicit bounds (far below: no chance of failure)."""
    means = (0.8, *(0.8 - gap for gap in gaps))
    block = private_runs(
        experiment(preset, horizon, means=means, epsilon=epsilon), 20, np.random.default_rng(1)
    )
    s = sigma(epsilon)

    assert 0 < block.regret.mean() <= dependent_bound(preset, gaps, horizon, s)
    assert block.regret.mean() <= independent_bound(preset, len(means), horizon, s)


def test_the_bounds_say_something() -> None:
    """At T = 1e8 the bounds are far below what a uniformly random arm costs."""
    s = sigma("0.9")
    for preset in ("sdp-ae", "vb-sdp-ae"):
        assert dependent_bound(preset, [0.5], 10**8, s) < 0.02 * 10**8 * 0.5 / 2
        assert independent_bound(preset, 2, 10**8, s) < 0.2 * 10**8 * 0.5 / 2


@pytest.mark.parametrize("preset", ["sdp-ae", "vb-sdp-ae"])
def test_the_best_arm_stays(preset: str) -> None:
    """The best arm is lost with probability at most 4/T^2: never in 200 runs at T = 1e7.

    Worse arms are eliminated in all of them. P(failure) <= 200 * 4e-14 if the theorem is true.
    """
    value = experiment(preset, 10**7, means=(0.5, 0.45, 0.2), epsilon="0.9")
    block = private_runs(value, 200, np.random.default_rng(2))

    assert not np.any(np.isnan(block.decided_at))
    assert np.all(block.best_kept)


def noise_regret(preset: str, epsilon: str, delta: str) -> float:
    """Regret per suboptimal arm where the noise dominates.

    Isolated by large gaps, from .4 to .8: at T = 1e9 sampling alone needs some 700/gap^2 users, the
    noise ten to a thousand times as many. Gaps are spread over a factor of 2, evenly in their
    logarithm, so that the steps of doubling batches average out.
    """
    regrets = []
    for i, gap in enumerate(np.geomspace(0.4, 0.8, 16, endpoint=False)):
        value = experiment(
            preset, 10**9, means=(0.9, 0.9 - float(gap)), epsilon=epsilon, delta=delta
        )
        regrets.append(private_runs(value, 3, np.random.default_rng(i)).regret.mean())
    return float(np.mean(regrets))


def slope(preset: str, settings: list[tuple[str, str]], scale: list[float]) -> float:
    regrets = [noise_regret(preset, epsilon, delta) for epsilon, delta in settings]
    return float(np.polyfit(np.log(scale), np.log(regrets), 1)[0])


@pytest.mark.parametrize(("preset", "power"), [("vb-sdp-ae", 1), ("sdp-ae", 2)])
def test_growth_with_one_over_epsilon(preset: str, power: int) -> None:
    """As 1/eps for growing batches (times sqrt(t), a little more), as 1/eps^2 for fixed ones."""
    values = ["0.2", "0.1", "0.05", "0.025"]
    found = slope(preset, [(e, "0.000001") for e in values], [1 / float(e) for e in values])

    assert power - 0.05 <= found <= power + 0.15


@pytest.mark.parametrize(("preset", "power"), [("vb-sdp-ae", 0.5), ("sdp-ae", 1.0)])
def test_growth_with_log_one_over_delta(preset: str, power: float) -> None:
    """As sqrt(log 1/delta) for growing batches, as log 1/delta for fixed ones (log 2/delta)."""
    values = ["0.01", "0.0001", "0.00000001", "0.0000000000000001"]
    found = slope(preset, [("0.1", d) for d in values], [math.log(2 / float(d)) for d in values])

    assert power - 0.05 <= found <= power + 0.15
