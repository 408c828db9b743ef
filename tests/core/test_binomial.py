"""Binomial noise: the paper's bits and the fewest, its log-MGF, its draws."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from stream_app.core.accounting import HALF, ONE, binomial_delta
from stream_app.core.binomial import Binomial, BinomialNoise, paper_tau
from stream_app.core.mechanisms import calibrate
from stream_app.core.promise import Calibration
from stream_app.errors import ConfigurationError
from tests.core.build import hockey_stick
from tests.core.noises import BINOMIAL, EXACT, PAPER, promise, words


def test_paper_bits() -> None:
    """Algorithm 3: tau = 5571.2; ceil(tau/m) fair bits, or one Bernoulli(tau/2m)."""
    tau = 96 * math.log(2e6) / 0.25
    few, edge, many = (calibrate(promise(m), BINOMIAL, PAPER) for m in (100, 5571, 5572))

    assert tau == pytest.approx(paper_tau(promise(1)))
    assert (few.trials, few.success_numerator) == (56, HALF)
    assert (edge.trials, edge.success_numerator) == (2, HALF)
    assert many.trials == 1
    assert many.success == pytest.approx(tau / 2 / 5572, rel=1e-12)
    assert few.sub_gaussian_variance == pytest.approx(1.5 * tau)


@pytest.mark.parametrize("size", [1, 2, 3, 10, 250, 300, 1000])
@pytest.mark.parametrize("honest", ["1", "0.9", "0.5", "0.3"])
@pytest.mark.parametrize("calibration", [PAPER, EXACT])
def test_honest_binomial_users_alone_keep_the_promise(
    size: int, honest: str, calibration: Calibration
) -> None:
    """delta of only floor(gm) users' bits, by the definition, is at most the promise's."""
    mechanism = calibrate(promise(size, "0.5", "0.0001", honest), BINOMIAL, calibration)
    users = max(1, math.floor(Fraction(honest) * size))
    trials = users * mechanism.trials
    pmf = stats.binom.pmf(np.arange(trials + 1), trials, mechanism.success)

    assert hockey_stick(pmf, 0.5) <= 0.0001
    if calibration is EXACT and mechanism.trials > 1:
        assert binomial_delta(users * (mechanism.trials - 1), HALF, 0.5) > 0.0001


@pytest.mark.parametrize("epsilon", ["1", "2", "8"])
def test_paper_calibration_needs_small_epsilon(epsilon: str) -> None:
    """The paper's constants are refused for eps >= 1, naming the way out."""
    with pytest.raises(ConfigurationError, match=rf"^epsilon = {epsilon}: .*calibration = exact$"):
        calibrate(promise(100, epsilon), BINOMIAL, PAPER)


def test_paper_constants_fail_at_large_epsilon() -> None:
    """MATH 1: at eps = 8, delta = 1e-6 Bin(m, tau/2m) does not keep the promise."""
    tau = paper_tau(promise(10**6, "8"))

    assert binomial_delta(10**6, int(ONE * tau / 2e6), 8.0) > 1e-6


def test_too_many_noise_bits() -> None:
    """A report that no device could draw is refused with the remedy."""
    with pytest.raises(ConfigurationError, match=r"batch_size = 2: .*use larger batches or disc"):
        calibrate(promise(2, "0.01", "1E-50"), BINOMIAL, PAPER)


@pytest.mark.parametrize("theta", [-2.0, -0.3, 0.0, 0.2, 1.7])
def test_binomial_log_mgf(theta: float) -> None:
    """psi is the log of the exact sum over the binomial pmf."""
    k = np.arange(41)
    summed = math.log(np.sum(stats.binom.pmf(k, 40, 0.3) * np.exp(theta * (k - 12))))

    assert summed == pytest.approx(float(BinomialNoise(40.0, 0.3).log_mgf(np.array(theta))))


def test_fair_bits_are_the_lowest_of_each_draw() -> None:
    """70 fair bits use one whole draw and the lowest six of the next, each draw once."""
    sampler = Binomial(promise(10), EXACT, 70, HALF).sampler(words(2**64 - 1, 0b1_010101, 7))

    assert [sampler.encode(0), sampler.encode(0)] == [64 + 3, 3]
    sampler = Binomial(promise(10), EXACT, 64, HALF).sampler(words(0b111, 0b1, 2**64 - 1))
    assert [sampler.encode(r) for r in (0, 1, 0, 0)] == [3, 1 + 1, 64, 0]


def test_biased_bits_compare_with_the_numerator() -> None:
    """A draw below the numerator is a one: exactly numerator of 2**64 draws are."""
    sampler = Binomial(promise(10), EXACT, 1, 1000).sampler(words(999, 1000, 0, 2**64 - 1))
    assert [sampler.encode(r) for r in (0, 0, 1, 1)] == [1, 0, 2, 1]
    sampler = Binomial(promise(10), EXACT, 3, 1000).sampler(words(999, 1000, 0, 1001, 5, 1002))
    assert [sampler.encode(0), sampler.encode(0)] == [2, 1]


def test_debias_is_exact_for_huge_totals() -> None:
    """At m = 1e9 with q a bit over 1/2 nothing is lost beside the final rounding."""
    mechanism = Binomial(promise(10**9), EXACT, 1, HALF + 12345)
    exact = Fraction(500_000_007) - Fraction(10**9 * (HALF + 12345), ONE)

    assert float(exact) == mechanism.debias(500_000_007)
