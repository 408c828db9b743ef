"""Certificates of binomial noise against independent computations."""

import math
import random
from functools import cache
from itertools import pairwise

import mpmath
import numpy as np
import pytest

from stream_app.core import accounting
from stream_app.core.accounting import (
    HALF,
    ONE,
    binomial_delta,
    discrete_laplace_delta,
    fewest_fair_trials,
    least_clip,
    least_success,
    log_binomial_pmf,
)

MARGIN = 1 + 1e-9


def true_delta(trials: int, numerator: int, epsilon: float) -> mpmath.mpf:
    """Both hockey-stick divergences, by their definition, with 60 digits.

    f(b) - e^eps f(b-1) is summed over a window of +-(60 sd + 200) around both modes of the
    integrand; what lies outside is below 1e-100 of the sum or is the whole range.
    """
    with mpmath.workdps(60):
        q = mpmath.mpf(numerator) / ONE
        r = mpmath.mpf(ONE - numerator) / ONE
        growth = mpmath.exp(mpmath.mpf(epsilon))

        def one_sided(q: mpmath.mpf, r: mpmath.mpf) -> mpmath.mpf:
            # Positive terms are b <= t; start there by the gamma function, walk down by ratios.
            top = min(trials, int(mpmath.floor((trials + 1) * q / (q + growth * r))))
            log_mass = (
                mpmath.loggamma(trials + 1)
                - mpmath.loggamma(top + 1)
                - mpmath.loggamma(trials - top + 1)
                + top * mpmath.log(q)
                + (trials - top) * mpmath.log(r)
            )
            mass = mpmath.exp(log_mass)
            total = mpmath.mpf(0)
            b = top
            while b >= 0:
                previous = mass * b * r / ((trials - b + 1) * q)
                total += max(mpmath.mpf(0), mass - growth * previous)
                if (
                    total > 0
                    and previous / (1 - mpmath.exp(-epsilon)) < total * mpmath.mpf(10) ** -40
                ):
                    break
                mass = previous
                b = b - 1
            return total

        return max(one_sided(q, r), one_sided(r, q))


def naive_delta(trials: int, numerator: int, epsilon: float) -> mpmath.mpf:
    """Both divergences over every b, without any cleverness: for small n only."""
    with mpmath.workdps(60):
        q = mpmath.mpf(numerator) / ONE
        growth = mpmath.exp(mpmath.mpf(epsilon))
        f = [mpmath.binomial(trials, b) * q**b * (1 - q) ** (trials - b) for b in range(trials + 1)]
        here = [*f, mpmath.mpf(0)]
        shifted = [mpmath.mpf(0), *f]
        pairs = list(zip(here, shifted, strict=True))
        return max(
            mpmath.fsum(max(mpmath.mpf(0), x - growth * y) for x, y in pairs),
            mpmath.fsum(max(mpmath.mpf(0), y - growth * x) for x, y in pairs),
        )


def test_delta_of_268_and_267_fair_bits() -> None:
    """MATH 2's vectors: exact values times 1 + 1e-9."""
    assert binomial_delta(268, HALF, 0.5) == pytest.approx(
        9.88009249534e-07 * MARGIN, rel=2e-12, abs=0
    )
    assert binomial_delta(267, HALF, 0.5) == pytest.approx(
        1.01240607231e-06 * MARGIN, rel=5e-12, abs=0
    )


@pytest.mark.parametrize(
    ("delta", "expected"),
    [
        (1e-4, [2405, 144, 46, 19]),
        (1e-6, [5279, 268, 80, 31]),
        (1e-9, [10097, 470, 136, 49]),
    ],
)
def test_fewest_fair_trials(delta: float, expected: list[int]) -> None:
    """MATH 2's table of n_min at eps .1, .5, 1, 2."""
    assert expected == [fewest_fair_trials(eps, delta) for eps in (0.1, 0.5, 1.0, 2.0)]


@pytest.mark.parametrize(("users", "expected"), [(10**3, 94.515), (10**6, 90.145), (10**9, 90.143)])
def test_least_success_of_the_specification(users: int, expected: float) -> None:
    """MATH 2's least mq at eps .5, delta 1e-6, which it rounds up in the last digit."""
    found = users * least_success(users, 0.5, 1e-6) / ONE

    assert expected == math.ceil(found * 1000) / 1000


@pytest.mark.parametrize("users", [10**3, 10**6, 10**9])
def test_least_success_is_on_the_edge(users: int) -> None:
    """By mpmath: the q that is found keeps delta = 1e-6, and 1e-6 of it less does not."""
    numerator = least_success(users, 0.5, 1e-6)

    assert true_delta(users, numerator, 0.5) <= 1e-6
    assert true_delta(users, numerator - numerator // 10**6, 0.5) > 1e-6


def test_thousand_users_need_94_5142_ones() -> None:
    """94.5142/1000 is certified, 94.5141/1000 is not: MATH 2's 94.515 is rounded up."""
    assert true_delta(1000, int(ONE * 94.5142 / 1000), 0.5) <= 1e-6
    assert true_delta(1000, int(ONE * 94.5141 / 1000), 0.5) > 1e-6


@pytest.mark.parametrize("epsilon", [0.05, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-4, 1e-6, 1e-9, 1e-15])
def test_calibrate_then_account(epsilon: float, delta: float) -> None:
    """What calibration finds gives at most the target; one trial less exceeds it."""
    fewest = fewest_fair_trials(epsilon, delta)

    assert binomial_delta(fewest, HALF, epsilon) <= delta
    assert fewest == 1 or binomial_delta(fewest - 1, HALF, epsilon) > delta


@pytest.mark.parametrize("epsilon", [0.3, 0.5, 1.0, 2.0, 3.0, 5.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize("surplus", [1.0, 1.1, 1.5, 3.0, 20.0])
def test_no_smaller_success_is_certified(epsilon: float, delta: float, surplus: float) -> None:
    """Delta is a saw-tooth in q: a fine grid below the least q finds no certified one."""
    trials = math.ceil(surplus * fewest_fair_trials(epsilon, delta))
    least = least_success(trials, epsilon, delta)
    below = np.linspace(0.8, 1 - 1e-9, 600)

    assert binomial_delta(trials, least, epsilon) <= delta
    assert least <= HALF
    assert not [x for x in below if binomial_delta(trials, int(x * least), epsilon) <= delta]


def test_delta_is_a_saw_tooth_in_success() -> None:
    """The premise of the search: delta rises with q somewhere, by several percent at eps 2."""
    deltas = np.array(
        [binomial_delta(1000, int(ONE * q), 2.0) for q in np.linspace(0.01, 0.5, 3000)]
    )
    rise = deltas / np.minimum.accumulate(deltas) - 1

    assert 0.1 < rise.max() < 0.16


@pytest.mark.parametrize("success", [1e-3, 0.02, 0.1, 0.3, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 3.0])
def test_delta_never_grows_with_trials(success: float, epsilon: float) -> None:
    """More noise is a post-processing of less (MATH 2): rounding aside, n + 1 is no worse."""
    deltas = [binomial_delta(n, int(ONE * success), epsilon) for n in range(1, 600)]

    assert all(later <= now * (1 + 1e-10) for now, later in pairwise(deltas))


@pytest.mark.parametrize("trials", [2, 3, 7, 30, 120])
@pytest.mark.parametrize("epsilon", [0.01, 0.3, 1.0, 4.0])
@pytest.mark.parametrize(
    "numerator",
    [
        1,
        1501,
        5001,
        64464044352,
        2**30 + 1,
        ONE // 1000,
        ONE // 5,
        HALF,
        ONE - ONE // 7,
        ONE - 1501,
        ONE - 5001,
        ONE - 1,
    ],
)
def test_certificate_against_the_definition(trials: int, epsilon: float, numerator: int) -> None:
    """Small n, every term of the definition with 60 digits: never below, at most 1e-6 above."""
    truth = naive_delta(trials, numerator, epsilon)

    assert min(1, truth) <= binomial_delta(trials, numerator, epsilon) <= truth * (1 + 1e-6)


@pytest.mark.parametrize("numerator", [1, 583, 64464044352, ONE - 64464044352, ONE - 1])
def test_certificate_of_a_single_trial(numerator: int) -> None:
    """One bit hides q of the reward at best: delta is 1 - min(q, 1 - q) at eps .5, or above."""
    truth = naive_delta(1, numerator, 0.5)

    assert min(1, truth) <= binomial_delta(1, numerator, 0.5) <= 1


@cache
def random_settings() -> list[tuple[int, int, float]]:
    """250 settings: n to 1e6 (log-uniform), eps in [.01, 8], q from 1e-6 to 1 - 1e-6 and 1/2."""
    source = random.Random(20260)
    settings = []
    for i in range(250):
        trials = int(math.exp(source.uniform(0, math.log(1e4 if i < 200 else 1e6))))
        epsilon = math.exp(source.uniform(math.log(0.01), math.log(8)))
        small = int(ONE * math.exp(source.uniform(math.log(1e-6), math.log(0.5))))
        numerator = source.choice([small, small, ONE - small, HALF, source.randrange(1, ONE)])
        settings.append((trials, numerator, epsilon))
    return settings


def test_certificate_against_high_precision() -> None:
    """On 250 random settings the certificate is never below the truth, and at most 1e-6 above."""
    wrong = []
    for trials, numerator, epsilon in random_settings():
        certificate = binomial_delta(trials, numerator, epsilon)
        truth = true_delta(trials, numerator, epsilon)
        if truth < 1e-300:
            holds = certificate == 1e-300
        else:
            holds = min(1, truth) <= certificate <= truth * (1 + 1e-6)
        if not holds:
            wrong.append((trials, numerator, epsilon, certificate, truth))

    assert not wrong


def test_two_independent_truths_agree() -> None:
    """The fast high-precision sum equals the definition, so that the former may judge large n."""
    for trials, numerator, epsilon in random_settings()[:40]:
        n = trials % 150 + 1
        fast = true_delta(n, numerator, epsilon)
        slow = naive_delta(n, numerator, epsilon)

        assert abs(fast / slow - 1) < mpmath.mpf(10) ** -35


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 5.0])
@pytest.mark.parametrize("expected", [3.0, 90.143, 3000.0])
def test_a_billion_users(epsilon: float, expected: float) -> None:
    """n = 1e9 with small q: still within 1e-6 above the truth, never below."""
    numerator = int(ONE * expected / 1e9)
    truth = true_delta(10**9, numerator, epsilon)
    certificate = binomial_delta(10**9, numerator, epsilon)

    assert max(truth, mpmath.mpf(10) ** -300) <= certificate <= max(truth * (1 + 1e-6), 1e-300)


@pytest.mark.parametrize("numerator", [1, ONE - 1])
def test_extreme_numerators(numerator: int) -> None:
    """The least and the largest q hide almost nothing: delta is 1 - n 2^-64 or so, at most 1."""
    assert binomial_delta(1000, numerator, 0.5) == 1.0
    assert 1 - 1000 / 2**64 - 1e-15 <= float(true_delta(1000, numerator, 0.5)) <= 1


@pytest.mark.parametrize("numerator", [0, ONE, -1, ONE + 1])
def test_no_noise_has_delta_one(numerator: int) -> None:
    """q = 0 and q = 1 are no noise: delta is 1, as it is without any trial."""
    assert binomial_delta(1000, numerator, 0.5) == 1.0
    assert binomial_delta(0, HALF, 0.5) == 1.0


def test_underflow_is_positive() -> None:
    """A delta below the smallest float is reported as 1e-300, never as zero."""
    assert binomial_delta(10**6, HALF, 3.0) == 1e-300
    assert true_delta(10**5, HALF, 3.0) < mpmath.mpf(10) ** -300
    assert discrete_laplace_delta(10, 10, 5000, 128, 50.0) > 0


def test_epsilon_above_fifty_is_that_of_fifty() -> None:
    """Beyond 50 nothing is gained: same certificates, no overflow, still an upper bound."""
    for trials in (1, 5, 40):
        assert binomial_delta(trials, HALF, 1e6) == binomial_delta(trials, HALF, 50.0)
        assert true_delta(trials, HALF, 60.0) <= binomial_delta(trials, HALF, 60.0)
    assert discrete_laplace_delta(9, 9, 3, 64, 700.0) == discrete_laplace_delta(9, 9, 3, 64, 50.0)
    assert least_clip(9, 9, 1e5, 1e-6) == least_clip(9, 9, 50.0, 1e-6)


def test_log_pmf_against_mpmath() -> None:
    """Loader's form is right to 1e-11 absolutely, tails and ends included."""
    source = random.Random(7)
    for _ in range(200):
        trials = int(math.exp(source.uniform(0, math.log(1e6))))
        numerator = source.randrange(1, ONE)
        x = source.choice([0, trials, source.randrange(trials + 1)])
        with mpmath.workdps(50):
            q = mpmath.mpf(numerator) / ONE
            truth = (
                mpmath.log(mpmath.binomial(trials, x))
                + x * mpmath.log(q)
                + (trials - x) * mpmath.log(1 - q)
            )

        assert float(truth) == pytest.approx(
            log_binomial_pmf(x, trials, numerator), rel=1e-12, abs=1e-11
        )


def test_binomial_delta_at_ninety_percent_honest() -> None:
    """MATH 2: 241 of 268 fair bits leave delta = 2.6e-6."""
    assert f"{accounting.binomial_delta(241, HALF, 0.5):.1e}" == "2.6e-06"
