"""How much a noisy integer sum reveals: exact (eps, delta) of the noise, as certified upper bounds.

Notation (MATH 1; the paper's appendix on private binary summation): B is the total noise of a
batch, f its probability mass function. Neighbouring inputs shift the released integer by one, so
the sum is (eps, delta)-DP exactly when both hockey-stick divergences between B and B + 1 are at
most delta. This module knows distributions only: no batches, clients or agents.

A probability of success is an integer over 2**64, so that the number that is certified is the very
number that the sampler compares its draws with.
"""

import math
from decimal import Decimal, localcontext
from functools import lru_cache

import numpy as np

from stream_app.core.noise import Floats

# A biased bit is decided by one draw of 64 bits, so q is stated as such a fraction (MATH 2).
PROBABILITY_BITS = 64
ONE = 1 << PROBABILITY_BITS
HALF = ONE >> 1

# A promise at a smaller eps holds at every larger one. Beyond this eps nothing is gained, and
# e**eps would only overflow: the noise and its certificate are those of MAX_EPSILON.
MAX_EPSILON = 50.0

# Rounding stays below 2e-10 for all parameters that terms may state (MATH 2, "Margin"): a
# certificate is multiplied by this, so that it is an upper bound.
_MARGIN = 1 + 1e-9
# A delta that underflows is reported as this: still an upper bound, never zero.
_SMALLEST = 1e-300
# A tail below this share of the sum is bounded, not walked (MATH 2): 1e6 times finer than a float.
_NEGLIGIBLE = 1e-22
# The Fourier transform's rounding, summed over all values; added, so that no figure is too small.
_ROUNDING = 1e-10
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)  # of Stirling's formula
# Terms of a delta that are walked, in each direction: at the least eps, 0.01, and the most trials,
# 2**44, `one_sided_steps` is 8 900.
MOST_STEPS = 10_000
# Of the point where the terms of delta change their sign: below 2**44 and so right to 1e-46, where
# floats would leave an error that all terms share.
_THRESHOLD_DIGITS = 60


def effective_epsilon(epsilon: float) -> float:
    """The eps that noise and certificates are computed for: at most MAX_EPSILON."""
    return min(epsilon, MAX_EPSILON)


def _stirling_error(n: int) -> float:
    """log(n!) minus Stirling's formula (Loader 2000, `stirlerr`)."""
    if n < 16:
        return math.lgamma(n + 1) - (n + 0.5) * math.log(n) + n - _LOG_SQRT_2PI
    nn = float(n) * n
    return (1 / 12 - (1 / 360 - (1 / 1260 - (1 / 1680 - 1 / (1188 * nn)) / nn) / nn) / nn) / n


def _deviance(x: int, mean: float, difference: float) -> float:
    """x log(x/mean) + mean - x without cancellation (Loader 2000, `bd0`); difference = x - mean."""
    if abs(difference) >= 0.1 * (x + mean):
        return x * math.log(x / mean) - difference
    v = difference / (x + mean)
    total = difference * v
    term = 2 * x * v
    for j in range(3, 1000, 2):
        term *= v * v
        following = total + term / j
        if following == total:
            break
        total = following
    return total


def _log_probability(numerator: int) -> float:
    """log(numerator / 2**64), accurate at both ends."""
    if numerator > HALF:
        return math.log1p(-(ONE - numerator) / ONE)
    return math.log(numerator) - PROBABILITY_BITS * math.log(2)


def log_binomial_pmf(x: int, trials: int, numerator: int) -> float:
    """log P(Bin(trials, numerator / 2**64) = x), by Loader's saddle-point form."""
    complement = ONE - numerator
    if x == 0:
        return trials * _log_probability(complement)
    if x == trials:
        return trials * _log_probability(numerator)
    # x - nq as an exact integer over 2**64: at n = 1e9 a float difference would lose digits.
    difference = ((x << PROBABILITY_BITS) - trials * numerator) / ONE
    rest = trials - x
    return (
        _stirling_error(trials)
        - _stirling_error(x)
        - _stirling_error(rest)
        - _deviance(x, trials * (numerator / ONE), difference)
        - _deviance(rest, trials * (complement / ONE), -difference)
        + 0.5 * (math.log(trials) - math.log(x) - math.log(rest))
        - _LOG_SQRT_2PI
    )


@lru_cache(maxsize=1024)
def _exact_growth(epsilon: float) -> Decimal:
    """e^eps: remembered, since a calibration asks for one eps many times."""
    with localcontext(prec=_THRESHOLD_DIGITS):
        return Decimal(epsilon).exp()


def _threshold(trials: int, numerator: int, epsilon: float) -> tuple[int, float]:
    """t = (n+1)q/(q + e^eps(1-q)), up to which terms are positive: whole part, and the rest."""
    with localcontext(prec=_THRESHOLD_DIGITS):
        weight = numerator + _exact_growth(epsilon) * (ONE - numerator)
        exact = (trials + 1) * numerator / weight
        whole = min(trials, math.floor(exact))
        return whole, float(exact - whole)


def one_sided_steps(trials: int, numerator: int, epsilon: float) -> int:
    """How many terms `_log_one_sided` walks at most: known before it begins (MATH 2)."""
    top, rest = _threshold(trials, numerator, epsilon)
    if top == 0:
        return 1
    t = top + rest
    rest_factor = 1 + 1 / -math.expm1(-epsilon)
    needed = math.log(3 * t * rest_factor / _NEGLIGIBLE) + epsilon
    slower = epsilon - 1 / (2 * t)
    steps = 2 * needed / (slower + math.sqrt(slower * slower + 2 * needed / t))
    return min(top + 1, math.ceil(steps) + 1)


def _log_one_sided(trials: int, numerator: int, epsilon: float) -> float:
    """Log of the sum over b of max(0, f(b) - e^eps f(b-1)), in positive terms only (MATH 2).

    With rho_b = f(b-1)/f(b) = b(1-q)/((n-b+1)q) a term is f(b)(1 - e^eps rho_b), positive for b
    below t. Its second factor is (t-b)(q + e^eps(1-q))/((n-b+1)q): a product, where the difference
    of 1 and e^eps rho_b would lose the digits that all terms share. Terms are walked downward from
    floor(t) in blocks, relative to the first mass, until what is left is negligible; the geometric
    bound of the rest is added.
    """
    q = numerator / ONE
    r = (ONE - numerator) / ONE
    slope = (q + math.exp(epsilon) * r) / q
    top, rest = _threshold(trials, numerator, epsilon)
    rest_factor = 1 + 1 / -math.expm1(-epsilon)
    last = top - one_sided_steps(trials, numerator, epsilon)
    total = 0.0
    mass = 1.0
    high = top
    block = 64
    while high > last:
        b = np.arange(high, max(high - block, last), -1, dtype=np.float64)
        above = trials - b + 1
        rho = b * r / (above * q)
        masses = mass * np.concatenate(([1.0], np.cumprod(rho[:-1])))
        total += slope * float(masses @ ((top - b + rest) / above))
        mass = float(masses[-1] * rho[-1])
        high -= len(b)
        if total > 0 and mass * rest_factor <= _NEGLIGIBLE * total:
            break
        block = min(2 * block, 1 << 16)
    total += mass * rest_factor
    if total == 0:
        return -math.inf
    return log_binomial_pmf(top, trials, numerator) + math.log(total)


@lru_cache(maxsize=65536)
def binomial_delta(trials: int, numerator: int, epsilon: float) -> float:
    """Certified delta at eps of Bin(trials, numerator / 2**64) noise: never below the true one."""
    if not 0 < numerator < ONE or trials < 1:
        return 1.0
    epsilon = effective_epsilon(epsilon)
    worst = max(
        _log_one_sided(trials, numerator, epsilon),
        _log_one_sided(trials, ONE - numerator, epsilon),
    )
    return min(1.0, max(_SMALLEST, math.exp(worst) * _MARGIN))


def fewest_fair_trials(epsilon: float, delta: float) -> int:
    """The least n for which Bin(n, 1/2) is certified: delta is non-increasing in n (MATH 2)."""
    high = 1
    while binomial_delta(high, HALF, epsilon) > delta:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if binomial_delta(middle, HALF, epsilon) > delta:
            low = middle
        else:
            high = middle
    return high


def least_success(trials: int, epsilon: float, delta: float) -> int:
    """The least numerator whose Bin(trials, numerator / 2**64) is certified; 1/2 must be.

    Delta is not monotone in q: it is a saw-tooth, up to 15% high (MATH 2), whose lowest points lie
    where t of `_log_one_sided` steps from one integer to the next; from there it rises, then falls
    to the next step. So a bisection finds one crossing, and as long as the step below it is
    certified too, the least q lies further down.
    """
    growth = math.exp(effective_epsilon(epsilon))

    def certified(numerator: int) -> bool:
        return binomial_delta(trials, numerator, epsilon) <= delta

    def bisect(low: int, high: int) -> int:
        while high - low > max(1, high >> 40):
            middle = (low + high) // 2
            low, high = (low, middle) if certified(middle) else (middle, high)
        return high

    def step(t: int) -> int:
        return int(ONE * (t * growth / (trials + 1 - t + t * growth)))

    high = HALF
    while high > 1 and certified(high // 2):
        high //= 2
    least = bisect(high // 2, high)
    t = math.floor((trials + 1) * least / (least + growth * (ONE - least)))
    while t > 0 and certified(step(t)):
        least = bisect(step(t - 1), step(t))
        t -= 1
    return least


def total_masses(share: Floats, users: int) -> Floats:
    """The distribution of the sum of so many independent shares, each with these masses."""
    values = users * (len(share) - 1) + 1
    length = 1 << values.bit_length()
    found = np.fft.irfft(np.fft.rfft(share, length) ** users, length)[:values]
    return np.maximum(found, 0.0)


def hockey_stick(noise: Floats, epsilon: float) -> float:
    """The larger of both divergences between noise and noise + 1 (MATH 1), by its masses."""
    here = np.append(noise, 0.0)
    shifted = np.insert(noise, 0, 0.0)
    growth = math.exp(epsilon)
    both = (here - growth * shifted, shifted - growth * here)
    return max(float(np.maximum(0.0, difference).sum()) for difference in both) + _ROUNDING


def negative_binomial_tails(shape: float, epsilon: float, most: int) -> Floats:
    """P(X > c) for c = 0..most, X ~ NegBin(shape, e^-eps), shape <= 1 (MATH 2's convention).

    Sums of positive terms from the far end; what lies beyond the last term is bounded by a
    geometric series, since successive terms fall at least by e^-eps.
    """
    p = math.exp(-epsilon)
    last = most + math.ceil(60 / epsilon) + 1
    k = np.arange(1, last, dtype=np.float64)
    first = math.exp(shape * math.log(-math.expm1(-epsilon)))
    masses = first * shape * p * np.concatenate(([1.0], np.cumprod(p * (k + shape) / (k + 1))))
    beyond = masses[-1] * p / -math.expm1(-epsilon)
    tails: Floats = np.cumsum(masses[::-1])[::-1][: most + 1] + beyond
    return tails


def clipping_delta(tail: float, users: int, epsilon: float) -> float:
    """What clipping the shares of `users` users costs: 2(1 + e^eps) m P(X > c) (MATH 2)."""
    return 2 * (1 + math.exp(epsilon)) * users * tail


def table_delta(users: int, clip: int, bits: int, epsilon: float) -> float:
    """What a sampling table rounded to `bits` bits costs: m(2c+1) 2^-bits (1 + e^eps) (MATH 2)."""
    return users * (2 * clip + 1) * (1 + math.exp(epsilon)) * math.ldexp(1.0, -bits)


def discrete_laplace_delta(users: int, honest: int, clip: int, bits: int, epsilon: float) -> float:
    """Certified delta at eps of clipped discrete Laplace shares drawn from a rounded table."""
    epsilon = effective_epsilon(epsilon)
    tail = float(negative_binomial_tails(1 / honest, epsilon, clip)[clip])
    cost = clipping_delta(tail, users, epsilon) + table_delta(users, clip, bits, epsilon)
    return min(1.0, max(_SMALLEST, cost * _MARGIN))


def least_clip(users: int, honest: int, epsilon: float, delta: float) -> int:
    """The least c whose clipping costs at most .99 delta (MATH 2)."""
    epsilon = effective_epsilon(epsilon)
    # P(X > c) <= e^(-eps (c+1)) r / (c+1) / (1 - e^-eps) or so: this reach is always enough.
    reach = math.ceil(math.log(1e4 * users / delta / -math.expm1(-epsilon)) / epsilon) + 4
    tails = negative_binomial_tails(1 / honest, epsilon, reach)
    enough = clipping_delta(1.0, users, epsilon) * tails * _MARGIN <= 0.99 * delta
    return int(np.argmax(enough))
