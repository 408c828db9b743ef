"""Certificates of discrete Laplace noise against independent computations."""

import math

import mpmath
import numpy as np
import pytest
from scipy.optimize import linprog

from stream_app.core.accounting import discrete_laplace_delta, least_clip, negative_binomial_tails
from tests.core.build import convolution_power, hockey_stick, share_pmf


@pytest.mark.parametrize(
    ("epsilon", "two_users", "many_users"), [(1.0, 14, 13), (0.5, 28, 26), (0.1, 140, 127)]
)
def test_least_clip_of_the_specification(epsilon: float, two_users: int, many_users: int) -> None:
    """MATH 2's clips at delta 1e-6."""
    assert two_users == least_clip(2, 2, epsilon, 1e-6)
    assert {many_users} == {least_clip(m, m, epsilon, 1e-6) for m in (100, 10**4, 10**6, 10**9)}


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("honest", [1, 2, 100, 10**9])
def test_negative_binomial_tails(epsilon: float, honest: int) -> None:
    """Tails are those of scipy's nbinom(r, 1 - p), by mpmath sums of positive terms."""
    tails = negative_binomial_tails(1 / honest, epsilon, 40)
    with mpmath.workdps(40):
        r = mpmath.mpf(1) / honest
        p = mpmath.exp(-mpmath.mpf(epsilon))
        mass = (1 - p) ** r
        masses = []
        for k in range(int(120 / epsilon) + 200):
            masses.append(mass)
            mass = mass * p * (k + r) / (k + 1)
        truth = [float(mpmath.fsum(masses[c + 1 :])) for c in (0, 1, 5, 40)]

    assert truth == pytest.approx([tails[c] for c in (0, 1, 5, 40)], rel=1e-11, abs=1e-300)


@pytest.mark.parametrize("users", [2, 3, 5, 20])
@pytest.mark.parametrize("fraction", [1.0, 0.5])
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 2.0])
def test_clipped_shares_keep_their_certificate(users: int, fraction: float, epsilon: float) -> None:
    """The exact law of the honest users' clipped shares, convolved: delta(eps) <= certificate.

    Where the honest provision is half, the other half sends no noise at all. Clips of a third of
    the calibrated one make the clipping cost visible beside float rounding.
    """
    honest = max(1, int(fraction * users))
    full = least_clip(users, honest, epsilon, 1e-6)
    for clip in (full, max(1, full // 3), max(1, full // 6)):
        total = convolution_power(share_pmf(honest, epsilon, clip), honest)
        delta = hockey_stick(total, epsilon)
        certificate = discrete_laplace_delta(users, honest, clip, 64, epsilon)

        assert delta <= certificate + 1e-15
        assert delta > 0.001 * certificate or clip == full or certificate == 1


@pytest.mark.parametrize("users", [2, 20])
def test_unclipped_shares_sum_to_a_discrete_laplace(users: int) -> None:
    """The honest users' shares together have DLap(e^-eps)'s pmf, and delta(eps) is 0."""
    epsilon = 1.0
    clip = 45
    total = convolution_power(share_pmf(users, epsilon, clip), users)
    middle = len(total) // 2
    p = math.exp(-epsilon)
    expected = (1 - p) / (1 + p) * p ** np.abs(np.arange(-12, 13))

    assert total[middle - 12 : middle + 13] == pytest.approx(expected, rel=1e-9)
    assert hockey_stick(total, epsilon * (1 + 1e-12)) < 1e-14


def test_discrete_laplace_is_optimal() -> None:
    """7.84 is the discrete Laplace variance at eps .5; no integer noise at delta 1e-6 has < 7.83.

    A linear program over all pmfs on -50..50: least variance with both divergences at most delta.
    """
    epsilon = 0.5
    delta = 1e-6
    reach = 50
    laplace = 1 / (2 * math.sinh(epsilon / 2) ** 2)
    size = 2 * reach + 1
    growth = math.exp(epsilon)
    # Variables: f (size), then the positive parts of both divergences (size + 1 each).
    shift_rows = size + 1
    cost = np.concatenate([np.arange(-reach, reach + 1.0) ** 2, np.zeros(2 * shift_rows)])
    upper = []
    bound = []
    for first, second, offset in ((1.0, -growth, 0), (-growth, 1.0, shift_rows)):
        for b in range(shift_rows):
            row = np.zeros(len(cost))
            if b < size:
                row[b] += first
            if b > 0:
                row[b - 1] += second
            row[size + offset + b] = -1.0
            upper.append(row)
            bound.append(0.0)
        row = np.zeros(len(cost))
        row[size + offset : size + offset + shift_rows] = 1.0
        upper.append(row * 1e6)
        bound.append(delta * 1e6)
    equal = np.concatenate([np.ones(size), np.zeros(2 * shift_rows)])
    solution = linprog(cost, np.array(upper), bound, equal[None, :], [1.0], method="highs")

    assert round(laplace, 2) == 7.84
    assert round(solution.fun, 2) == 7.83
    assert solution.fun <= laplace


@pytest.mark.parametrize(("fraction", "expected"), [(0.9, 0.586), (0.99, 0.508), (0.5, 1.14)])
def test_what_dishonesty_costs_without_provision(fraction: float, expected: float) -> None:
    """MATH 2: if only a share g of m = 1000 users of unprovisioned noise is honest, eps grows.

    The total is then a difference of NegBin(g, e^-eps); eps is the least at which delta is 1e-6.
    """
    p = math.exp(-0.5)
    reach = 400
    mass = np.empty(reach)
    mass[0] = (1 - p) ** fraction
    for k in range(reach - 1):
        mass[k + 1] = mass[k] * p * (k + fraction) / (k + 1)
    total = np.convolve(mass, mass[::-1])
    low = 0.5
    high = 3.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if hockey_stick(total, middle) > 1e-6 else (low, middle)

    assert expected == pytest.approx(high, rel=0.005)
