"""Discrete Laplace noise: its shares, its log-MGF, and a table that is right to the last bit."""

import itertools
import math
from decimal import Decimal
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from stream_app.core.discrete_laplace import DiscreteLaplace, LaplaceNoise, laplace_table
from stream_app.core.mechanisms import calibrate
from stream_app.core.promise import Promise
from stream_app.errors import ConfigurationError
from tests.core.build import convolution_power, hockey_stick, share_pmf
from tests.core.noises import LAPLACE, PAPER, promise, words


@pytest.mark.parametrize("size", [2, 3, 10, 20])
@pytest.mark.parametrize("honest", ["1", "0.9", "0.5", "0.1"])
def test_honest_laplace_users_alone_keep_the_promise(size: int, honest: str) -> None:
    """delta of only floor(gm) users' clipped shares, convolved, is at most the promise's."""
    mechanism = calibrate(promise(size, "1", "0.01", honest), LAPLACE)
    users = max(1, math.floor(Fraction(honest) * size))
    total = convolution_power(share_pmf(users, 1.0, mechanism.clip), users)

    assert hockey_stick(total, 1.0) <= 0.01


def test_paper_calibrates_no_laplace() -> None:
    """A combination that does not exist is refused with both remedies."""
    with pytest.raises(ConfigurationError, match=r"mechanism = binomial, or calibration = exact"):
        calibrate(promise(100), LAPLACE, PAPER)


@pytest.mark.parametrize(
    ("epsilon", "delta", "size"), [("0.5", "0.000001", 10**4), ("1", "0.000000001", 10**7)]
)
def test_table_bits(epsilon: str, delta: str, size: int) -> None:
    """64 bits while rounding costs at most 1% of delta, else 128 (MATH 2)."""
    mechanism = calibrate(promise(size, epsilon, delta), LAPLACE)
    cost = size * mechanism.max_ones * (1 + math.exp(float(epsilon))) / 2**64
    expected = 64 if cost <= 0.01 * float(delta) else 128

    assert expected == mechanism.table_bits
    assert mechanism.certified_delta <= float(delta)


@pytest.mark.parametrize("theta", [-0.9, -0.3, 0.0, 0.2, 0.7])
def test_laplace_log_mgf(theta: float) -> None:
    """The form without cancellation equals MATH 4's, and the exact sum over the pmf."""
    p = math.exp(-1.0)
    shape = 10 / 9
    printed = shape * (
        2 * math.log(1 - p) - math.log(1 - p * math.exp(theta)) - math.log(1 - p * math.exp(-theta))
    )
    k = np.arange(-600, 601)
    summed = shape * math.log(np.sum((1 - p) / (1 + p) * np.exp(-np.abs(k) + theta * k)))

    found = float(LaplaceNoise(shape, 1.0).log_mgf(np.array(theta)))
    assert printed == pytest.approx(found, abs=1e-12)
    assert summed == pytest.approx(found, abs=1e-10)


def test_log_mgf_bounds_clipped_noise() -> None:
    """MATH 4: shares are symmetric and clipping lowers cosh, so psi bounds clipped noise too."""
    for clip in (1, 2, 4):
        share = share_pmf(5, 1.0, clip)
        for theta in (0.2, 0.6, 0.9):
            clipped = 5 * math.log(share @ np.exp(theta * np.arange(-clip, clip + 1)))

            assert clipped <= float(LaplaceNoise(1.0, 1.0).log_mgf(np.array(theta)))


def independent_table(honest: int, epsilon: str, clip: int, bits: int) -> tuple[int, ...]:
    """P(X - Y = d) as sum_k P(X = k + d) P(Y = k), with 120 digits; tails from the far end."""
    with mpmath.workdps(120):
        eps = mpmath.mpf(epsilon)
        r = mpmath.mpf(1) / honest
        p = mpmath.exp(-eps)
        reach = clip + int((bits + 80) * math.log(2) / float(eps)) + 5
        # Fixed point: integers over 2**300, so that the long convolutions are fast and exact.
        one = mpmath.mpf(2) ** 300
        mass = (1 - p) ** r
        masses = []
        for k in range(2 * reach):
            masses.append(int(mass * one))
            mass = mass * p * (k + r) / (k + 1)
        differences = [
            sum(x * y for x, y in zip(masses[d : d + reach], masses[:reach], strict=True))
            for d in range(1, reach)
        ]
        shift = 600 - bits
        tail = 0
        tails = []
        for difference in reversed(differences):
            tail += difference
            tails.append(tail)
        lower = [(tails[-d] + (1 << shift - 1)) >> shift for d in range(1, clip + 1)]
    return (*reversed(lower), *((1 << bits) - entry for entry in lower))


@pytest.mark.parametrize("epsilon", ["0.1", "0.5", "1", "3"])
@pytest.mark.parametrize("honest", [1, 2, 90, 10**6, 10**9])
@pytest.mark.parametrize("bits", [64, 128])
def test_table_is_right_to_the_last_bit(epsilon: str, honest: int, bits: int) -> None:
    """Every entry equals an independent computation of the convolution, and is symmetric."""
    clip = {"0.1": 127, "0.5": 26, "1": 13, "3": 5}[epsilon]
    table = laplace_table(honest, Decimal(epsilon), clip, bits)

    assert independent_table(honest, epsilon, clip, bits) == table
    assert list(table) == sorted(table)
    assert all(low + high == 1 << bits for low, high in zip(table, table[::-1], strict=True))


@pytest.mark.parametrize("bits", [64, 128])
def test_table_sampler_inverts_the_table(bits: int) -> None:
    """Noise j is drawn exactly for draws in [table[j-1], table[j]), in one or two words."""
    mechanism = DiscreteLaplace(promise(100), 3, bits)
    table = laplace_table(100, Decimal("0.5"), 3, bits)
    draws = [0, *itertools.chain(*((t - 1, t) for t in table)), (1 << bits) - 1]
    split = [(d & (2**64 - 1), d >> 64) if bits == 128 else (d,) for d in draws]
    sampler = mechanism.sampler(words(*itertools.chain(*split)))

    assert [sampler.encode(0) for _ in draws] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]


@pytest.mark.parametrize(("size", "kept", "lost"), [(10**3, 30, 34), (10**9, 24, 28)])
def test_a_delta_that_no_table_keeps_is_refused(size: int, kept: int, lost: int) -> None:
    """The rounding of a 128-bit table has its price: what cannot be certified is not calibrated."""
    for exponent in range(4, kept + 1, 2):
        wanted = Promise(Decimal("0.5"), Decimal(1).scaleb(-exponent), size)

        assert calibrate(wanted).certified_delta <= wanted.delta
    for exponent in range(lost, 60, 2):
        with pytest.raises(ConfigurationError, match=r"delta = 0\.000.*use a larger delta"):
            calibrate(Promise(Decimal("0.5"), Decimal(1).scaleb(-exponent), size))
