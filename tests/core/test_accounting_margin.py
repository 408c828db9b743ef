"""A certificate is never below the truth, for any parameters: the margin covers all rounding.

The truth comes from whole numbers of hundreds of bits and mpmath with 80 digits. A certificate is
the truth times 1 + 1e-9, up to the 2e-10 that MATH 2 allows for rounding: so tests also notice a
margin that is lost, or one that hides an error.
"""

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_app.core.accounting import HALF, ONE, binomial_delta, discrete_laplace_delta

ROUNDING = 2e-10
MARGIN = 1e-9
PLACES = 400


def one_sided(trials: int, numerator: int, epsilon: float) -> mpmath.mpf:
    """The sum of max(0, f(b) - e^eps f(b-1)): from the last positive term down, by its definition.

    What is below 1e-18 of the sum is left out.
    """
    complement = ONE - numerator
    growth = mpmath.exp(mpmath.mpf(epsilon))
    exact_growth = int(growth * (1 << PLACES))
    q = mpmath.mpf(numerator) / ONE
    r = mpmath.mpf(complement) / ONE
    top = min(trials, int(mpmath.floor((trials + 1) * q / (q + growth * r))))
    log_mass = (
        mpmath.loggamma(trials + 1)
        - mpmath.loggamma(top + 1)
        - mpmath.loggamma(trials - top + 1)
        + top * mpmath.log(q)
        + (trials - top) * mpmath.log(r)
    )
    mass = 1 << PLACES
    total = 0
    for b in range(top, -1, -1):
        previous = mass * b * complement // ((trials - b + 1) * numerator)
        total += max(0, mass - (exact_growth * previous >> PLACES))
        if previous * 10**18 < total * min(1.0, epsilon):
            break
        mass = previous
    return mpmath.exp(log_mass) * mpmath.mpf(total) / (1 << PLACES)


def true_delta(trials: int, numerator: int, epsilon: float) -> mpmath.mpf:
    """Both divergences."""
    with mpmath.workdps(80):
        return max(
            one_sided(trials, numerator, epsilon), one_sided(trials, ONE - numerator, epsilon)
        )


def excess(certificate: float, truth: mpmath.mpf) -> float:
    """By how much a certificate lies above the truth times its margin, relatively."""
    return float(certificate / (truth * (1 + MARGIN)) - 1)


def test_the_point_that_was_certified_too_low() -> None:
    """At eps 1.222e-5 and 5.1e12 fair bits; the truth is pinned, its walk takes 20 s."""
    truth = mpmath.mpf("8.285424431799192892556177e-51")

    assert abs(excess(binomial_delta(5_100_000_000_000, HALF, 1.222e-5), truth)) < ROUNDING


@pytest.mark.parametrize(
    ("trials", "numerator", "epsilon"),
    [
        (5 * 10**9, HALF, 4e-4),
        (4 * 10**10, HALF // 10, 4e-4),
        (10**9, HALF, 1e-3),
        (10**8, ONE - ONE // 7, 3e-3),
        (1 << 44, 1 << 25, 0.5),
        (1 << 44, 1 << 22, 8.0),
        (10**9, ONE // 10**7, 0.5),
        (268, HALF, 0.5),
        (1, HALF, 50.0),
        (40, HALF, 50.0),
        (5, 1, 1e-5),
    ],
)
def test_certificates_of_a_grid(trials: int, numerator: int, epsilon: float) -> None:
    """Tiny eps with many bits, rare bits, few bits: the truth times the margin."""
    truth = true_delta(trials, numerator, epsilon)
    certificate = binomial_delta(trials, numerator, epsilon)

    assert truth > 1e-300
    assert certificate == 1.0 or abs(excess(certificate, truth)) < ROUNDING


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    log_trials=st.floats(0, 44),
    success_bits=st.floats(1, 64),
    mirrored=st.booleans(),
    log_epsilon=st.floats(-10, 6),
)
def test_certificates_of_any_parameters(
    log_trials: float, success_bits: float, mirrored: bool, log_epsilon: float
) -> None:
    """n up to 2**44, q from 2**-64, eps from 0.001 to 64: never below, never above by more."""
    trials = int(2**log_trials)
    small = max(1, int(ONE * 2**-success_bits))
    numerator = ONE - small if mirrored else small
    epsilon = min(2**log_epsilon, 50.0)
    truth = true_delta(trials, numerator, epsilon)
    certificate = binomial_delta(trials, numerator, epsilon)

    assert certificate >= min(1, truth)
    if truth > 1e-300 and certificate < 1:
        assert abs(excess(certificate, truth)) < ROUNDING


def ratios_summed(k: int, honest: int, p: mpmath.mpf) -> mpmath.mpf:
    """P(X >= k) / P(X = k): successive masses are p (k + r)/(k + 1) times the one before."""
    exact_p = int(p * (1 << PLACES))
    term = 1 << PLACES
    total = 0
    while term > total >> 60:
        total += term
        term = (term * exact_p >> PLACES) * (k * honest + 1) // ((k + 1) * honest)
        k += 1
    return mpmath.mpf(total) / (1 << PLACES)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    users=st.integers(1, 10**9),
    share=st.floats(1e-9, 1),
    clip=st.integers(1, 20_000),
    bits=st.sampled_from([64, 128]),
    log_epsilon=st.floats(-10, 6),
)
def test_certificates_of_discrete_laplace(
    users: int, share: float, clip: int, bits: int, log_epsilon: float
) -> None:
    """Both charges of MATH 2, clipping and table, as they are written there."""
    epsilon = min(2**log_epsilon, 50.0)
    honest = max(1, int(share * users))
    certificate = discrete_laplace_delta(users, honest, clip, bits, epsilon)
    with mpmath.workdps(60):
        eps = mpmath.mpf(epsilon)
        p = mpmath.exp(-eps)
        r = mpmath.mpf(1) / honest
        first = (
            mpmath.exp(
                mpmath.loggamma(clip + 1 + r) - mpmath.loggamma(clip + 2) - mpmath.loggamma(r)
            )
            * (1 - p) ** r
            * p ** (clip + 1)
        )
        tail = first * ratios_summed(clip + 1, honest, p)
        odds = 1 + mpmath.exp(eps)
        truth = 2 * odds * users * tail + users * (2 * clip + 1) * odds * mpmath.mpf(2) ** -bits

    assert certificate >= min(1, truth)
    if truth > 1e-300 and certificate < 1:
        assert abs(excess(certificate, truth)) < ROUNDING
