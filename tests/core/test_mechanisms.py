"""Mechanisms: calibration, tables, samplers and what they state of their noise."""

import bisect
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from stream_app.core.accounting import HALF, ONE, binomial_delta
from stream_app.core.binomial import Binomial, BinomialNoise, paper_tau
from stream_app.core.discrete_laplace import DiscreteLaplace, LaplaceNoise, laplace_table
from stream_app.core.mechanisms import Mechanism, MechanismName, calibrate, rebuild
from stream_app.core.noise import NoNoise, stack
from stream_app.core.promise import MAX_BATCH_SIZE, Calibration, Promise, plain
from stream_app.core.samplers import Sampler, TableSampler
from stream_app.errors import ConfigurationError
from tests.core.build import convolution_power, hockey_stick, share_pmf

BINOMIAL = MechanismName.BINOMIAL
LAPLACE = MechanismName.DISCRETE_LAPLACE
PAPER = Calibration.PAPER
EXACT = Calibration.EXACT
KINDS = [(BINOMIAL, PAPER), (BINOMIAL, EXACT), (LAPLACE, EXACT)]


def promise(size: int, epsilon: str = "0.5", delta: str = "0.000001", honest: str = "1") -> Promise:
    return Promise(Decimal(epsilon), Decimal(delta), size, Decimal(honest))


def seeded(seed: int) -> Callable[[int], bytes]:
    return random.Random(seed).randbytes


def words(*draws: int) -> Callable[[int], bytes]:
    """Entropy that gives these 64-bit draws, then zeros."""
    rest = itertools.chain(draws, itertools.repeat(0))
    return lambda size: b"".join(next(rest).to_bytes(8, "little") for _ in range(size // 8))


# --- calibration -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "size", "expected"),
    [
        ((BINOMIAL, PAPER), 2, 1393),
        ((BINOMIAL, PAPER), 10**9, 2786),
        ((BINOMIAL, EXACT), 2, 67),
        ((BINOMIAL, EXACT), 10**6, 90),
        ((LAPLACE, EXACT), 2, 7.84),
        ((LAPLACE, EXACT), 10**6, 7.84),
    ],
)
def test_variances_of_the_specification(
    kind: tuple[MechanismName, Calibration], size: int, expected: float
) -> None:
    """MATH 2's table at eps .5, delta 1e-6."""
    found = calibrate(promise(size), *kind).variance

    assert expected == pytest.approx(found, abs=0.6 if expected > 10 else 0.005)


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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 2, 10, 100, 269, 1000, 6000, 10**6, MAX_BATCH_SIZE])
@pytest.mark.parametrize("honest", ["1", "0.9", "0.5", "0.01"])
@pytest.mark.parametrize(("epsilon", "delta"), [("0.1", "0.0001"), ("0.5", "0.000001")])
def test_every_calibration_keeps_its_promise(
    kind: tuple[MechanismName, Calibration], size: int, honest: str, epsilon: str, delta: str
) -> None:
    """The certificate, with noise of the honest users only, is at most the promised delta."""
    mechanism = calibrate(promise(size, epsilon, delta, honest), *kind)

    assert 0 < mechanism.certified_delta <= float(delta)


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


@pytest.mark.parametrize("size", [2, 3, 10, 20])
@pytest.mark.parametrize("honest", ["1", "0.9", "0.5", "0.1"])
def test_honest_laplace_users_alone_keep_the_promise(size: int, honest: str) -> None:
    """delta of only floor(gm) users' clipped shares, convolved, is at most the promise's."""
    mechanism = calibrate(promise(size, "1", "0.01", honest), LAPLACE)
    users = max(1, math.floor(Fraction(honest) * size))
    total = convolution_power(share_pmf(users, 1.0, mechanism.clip), users)

    assert hockey_stick(total, 1.0) <= 0.01


def test_unprovisioned_dishonesty_breaks_the_promise() -> None:
    """The check above can fail: noise provisioned for all users is too little from half of them."""
    mechanism = calibrate(promise(20, "1", "0.01", "1"), LAPLACE)
    total = convolution_power(share_pmf(20, 1.0, mechanism.clip), 10)

    assert hockey_stick(total, 1.0) > 0.01


@pytest.mark.parametrize(
    ("size", "honest", "expected"), [(1, "0.1", 1), (10, "0.9", 9), (7, "0.5", 3)]
)
def test_honest_users(size: int, honest: str, expected: int) -> None:
    """h = max(1, floor(gm))."""
    assert expected == promise(size, honest=honest).honest


def test_honest_users_are_exact() -> None:
    """floor(gm) in exact arithmetic, for every honest fraction that the terms can state."""
    assert promise(10, honest="0." + "9" * 35).honest == 9


@pytest.mark.parametrize("epsilon", ["1", "2", "8"])
def test_paper_calibration_needs_small_epsilon(epsilon: str) -> None:
    """The paper's constants are refused for eps >= 1, naming the way out."""
    with pytest.raises(ConfigurationError, match=rf"^epsilon = {epsilon}: .*calibration = exact$"):
        calibrate(promise(100, epsilon), BINOMIAL, PAPER)


def test_paper_constants_fail_at_large_epsilon() -> None:
    """MATH 1: at eps = 8, delta = 1e-6 Bin(m, tau/2m) does not keep the promise."""
    tau = paper_tau(promise(10**6, "8"))

    assert binomial_delta(10**6, int(ONE * tau / 2e6), 8.0) > 1e-6


def test_paper_calibrates_no_laplace() -> None:
    """A combination that does not exist is refused with both remedies."""
    with pytest.raises(ConfigurationError, match=r"mechanism = binomial, or calibration = exact"):
        calibrate(promise(100), LAPLACE, PAPER)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((Decimal(0), Decimal("0.1"), 5), "epsilon = 0: must be above 0"),
        ((Decimal(-1), Decimal("0.1"), 5), "epsilon = -1: must be above 0"),
        ((Decimal("Infinity"), Decimal("0.1"), 5), "epsilon = Infinity: must be above 0"),
        ((Decimal("NaN"), Decimal("0.1"), 5), "epsilon = NaN: must be above 0"),
        ((Decimal("0.000009"), Decimal("0.1"), 5), "epsilon = 0.000009: must be from"),
        ((Decimal(1), Decimal(0), 5), "delta = 0: must be between 0 and 1, both excluded"),
        ((Decimal(1), Decimal(1), 5), "delta = 1: must be between 0 and 1, both excluded"),
        ((Decimal(1), Decimal("0.1"), 0), "batch_size = 0: must be a whole number from 1 to 10"),
        ((Decimal(1), Decimal("0.1"), 10**9 + 1), "batch_size = 1000000001: must be"),
        ((Decimal(1), Decimal("0.1"), 5, Decimal(0)), r"honest_fraction = 0: must be in \(0, 1\]"),
        ((Decimal(1), Decimal("0.1"), 5, Decimal("1.1")), "honest_fraction = 1.1: must be in"),
    ],
)
def test_bad_promises(arguments: tuple[Decimal, Decimal, int], message: str) -> None:
    """An error names the setting, its value and what is allowed."""
    with pytest.raises(ConfigurationError, match="^" + message):
        Promise(*arguments)


@pytest.mark.parametrize("setting", ["delta", "honest_fraction"])
def test_not_a_number(setting: str) -> None:
    """NaN is refused like every other bad value."""
    values = {"delta": Decimal("0.1"), "honest_fraction": Decimal(1), setting: Decimal("NaN")}
    with pytest.raises(ConfigurationError, match=setting):
        Promise(Decimal(1), batch_size=5, **values)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("delta", ["1E-305", "1E-400"])
def test_delta_below_what_floats_hold(kind: tuple[MechanismName, Calibration], delta: str) -> None:
    """A delta that no certificate (or no terms, 61 decimals) can state is refused by name."""
    with pytest.raises(ConfigurationError, match="delta"):
        calibrate(promise(10, "0.5", delta), *kind)


def test_too_many_noise_bits() -> None:
    """A report that no device could draw is refused with the remedy."""
    with pytest.raises(ConfigurationError, match=r"batch_size = 2: .*use larger batches or disc"):
        calibrate(promise(2, "0.00001"), BINOMIAL, PAPER)


def test_a_calibration_takes_milliseconds_for_a_billion_users() -> None:
    """MATH 2's values at m = 1e9, by all mechanisms."""
    exact, laplace = (calibrate(promise(10**9), name) for name in (BINOMIAL, LAPLACE))

    assert isinstance(exact, Binomial)
    assert isinstance(laplace, DiscreteLaplace)
    assert 10**9 * exact.success == pytest.approx(90.1428, abs=1e-4)
    assert (laplace.clip, laplace.table_bits) == (26, 64)


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


# --- what a mechanism states of its noise ----------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [2, 50, 10**5])
@pytest.mark.parametrize("honest", ["1", "0.9"])
def test_variance_and_log_mgf_agree(
    kind: tuple[MechanismName, Calibration], size: int, honest: str
) -> None:
    """psi(0) = psi'(0) = 0 and psi''(0) is the stated variance."""
    mechanism = calibrate(promise(size, honest=honest), *kind)
    h = 1e-3
    psi = mechanism.noise.log_mgf(np.array([-h, 0.0, h]))

    assert psi[1] == 0
    assert mechanism.variance == pytest.approx((psi[0] + psi[2]) / h**2, rel=1e-3)
    assert abs(psi[2] - psi[0]) / (2 * h) < 0.01 * math.sqrt(mechanism.variance)


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


@pytest.mark.parametrize("theta", [-2.0, -0.3, 0.0, 0.2, 1.7])
def test_binomial_log_mgf(theta: float) -> None:
    """psi is the log of the exact sum over the binomial pmf."""
    k = np.arange(41)
    summed = math.log(np.sum(stats.binom.pmf(k, 40, 0.3) * np.exp(theta * (k - 12))))

    assert summed == pytest.approx(float(BinomialNoise(40.0, 0.3).log_mgf(np.array(theta))))


def test_log_mgf_bounds_clipped_noise() -> None:
    """MATH 4: shares are symmetric and clipping lowers cosh, so psi bounds clipped noise too."""
    for clip in (1, 2, 4):
        share = share_pmf(5, 1.0, clip)
        for theta in (0.2, 0.6, 0.9):
            clipped = 5 * math.log(share @ np.exp(theta * np.arange(-clip, clip + 1)))

            assert clipped <= float(LaplaceNoise(1.0, 1.0).log_mgf(np.array(theta)))


def test_stacked_noise() -> None:
    """Many batches in one value give each batch's own log-MGF."""
    theta = np.array([0.1, 0.2])
    binomial = [BinomialNoise(10.0, 0.5), BinomialNoise(20.0, 0.1)]
    laplace = [LaplaceNoise(1.0, 0.5), LaplaceNoise(1.2, 0.5)]
    for noises in (binomial, laplace):
        each = [float(n.log_mgf(t)) for n, t in zip(noises, theta, strict=True)]
        assert each == pytest.approx(stack(noises).log_mgf(theta).tolist())
    assert stack([NoNoise(), NoNoise()]).log_mgf(theta).tolist() == [0, 0]
    assert (stack(binomial).limit, NoNoise().limit) == (30.0, 30.0)
    assert stack(laplace).limit == 0.5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [2, 100, 10**7])
def test_rebuilt_from_its_parameters(kind: tuple[MechanismName, Calibration], size: int) -> None:
    """A stranger who knows the promise and the parameters makes the same mechanism."""
    mechanism = calibrate(promise(size, honest="0.9"), *kind)

    assert mechanism == rebuild(*kind, mechanism.promise, mechanism.parameters)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (LAPLACE, {"clip": 0}, "clip = 0: must be from 1"),
        (LAPLACE, {"clip": 2**24 + 1}, "clip = 16777217"),
        (LAPLACE, {"table_bits": 32}, "table_bits = 32: must be 64 or 128"),
        (BINOMIAL, {"trials": 0}, "trials = 0: must be a positive multiple of batch_size"),
        (BINOMIAL, {"trials": 101}, "trials = 101: must be a positive multiple"),
        (BINOMIAL, {"trials": 100 << 33}, "at most 4294967296 a user"),
        (BINOMIAL, {"success_numerator": 0}, r"success_numerator = 0: must be in \(0, 2\*\*64\)"),
        (BINOMIAL, {"success_numerator": ONE}, "success_numerator = 18446744073709551616"),
        (BINOMIAL, {"success_bits": 53}, "success_bits = 53: must be 64"),
    ],
)
def test_parameters_out_of_range(
    name: MechanismName, changes: dict[str, int], message: str
) -> None:
    """Each stated parameter is checked by name."""
    mechanism = calibrate(promise(100), name)
    with pytest.raises(ConfigurationError, match=message):
        rebuild(name, EXACT, mechanism.promise, {**mechanism.parameters, **changes})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0.000001", "0.000001"),
        ("1E-6", "0.000001"),
        ("0.50", "0.5"),
        ("10", "10"),
        ("1E+2", "100"),
    ],
)
def test_canonical_decimals(value: str, expected: str) -> None:
    """One spelling per number."""
    assert expected == plain(Decimal(value))


# --- tables ----------------------------------------------------------------------------------


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


# --- samplers --------------------------------------------------------------------------------


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


@pytest.mark.parametrize("bits", [64, 128])
def test_table_sampler_inverts_the_table(bits: int) -> None:
    """Noise j is drawn exactly for draws in [table[j-1], table[j]), in one or two words."""
    mechanism = DiscreteLaplace(promise(100), 3, bits)
    table = laplace_table(100, Decimal("0.5"), 3, bits)
    draws = [0, *itertools.chain(*((t - 1, t) for t in table)), (1 << bits) - 1]
    split = [(d & (2**64 - 1), d >> 64) if bits == 128 else (d,) for d in draws]
    sampler = mechanism.sampler(words(*itertools.chain(*split)))

    assert [sampler.encode(0) for _ in draws] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]


@pytest.mark.parametrize("bits", [64, 128])
def test_noise_over_many_blocks(bits: int) -> None:
    """Draw by draw, wherever blocks end: also where a rounding takes a block's last or first draw.

    Noise from a draw of an earlier block would be noise that was used before.
    """
    chance = random.Random(bits)
    table = laplace_table(100, Decimal("0.5"), 3, bits)
    stream = chance.randbytes(100_000)
    taken = 0
    used = 0

    def entropy(size: int) -> bytes:
        nonlocal taken
        taken += size
        return stream[taken - size : taken]

    def draw(size: int) -> int:
        nonlocal used
        used += size
        return int.from_bytes(stream[used - size : used], "little")

    sampler = DiscreteLaplace(promise(100), 3, bits).sampler(entropy)
    for number in range(2_000):
        reward = chance.choice([0, 1, 0.5, 0.25])
        bit = reward if reward in (0, 1) else draw(8) < int(reward * 2**64)
        assert sampler.encode(reward) == bit + bisect.bisect_right(table, draw(bits // 8))
        if number % 500 == 499:
            sampler.discard()
            used = taken
    assert taken > 10 * 2048


def test_a_table_up_to_the_last_draw() -> None:
    """Entries that round to 2**64 are above every draw."""
    last = 2**64 - 1
    sampler = TableSampler((5, last, 2**64, 2**64), words(4, 5, last - 1, last))

    assert [sampler.noise() for _ in range(4)] == [0, 1, 1, 2]


@pytest.mark.parametrize("reward", [0.25, 0.5, 0.9])
def test_fractional_rewards_round_at_random(reward: float) -> None:
    """A reward in (0, 1) uses one draw of its own: one if it is below reward 2**64."""
    edge = int(reward * 2**64)
    sampler = Binomial(promise(10), EXACT, 1, 1000).sampler(words(edge - 1, 5000, edge, 5000))

    assert [sampler.encode(reward), sampler.encode(reward)] == [1, 0]


def test_each_draw_is_used_once() -> None:
    """Entropy is asked for in blocks, in order, without gaps, repetition or reordering."""
    blocks = []

    def entropy(size: int) -> bytes:
        blocks.append(size)
        start = sum(blocks[:-1]) // 8
        return b"".join((start + i).to_bytes(8, "little") for i in range(size // 8))

    sampler = Binomial(promise(10), EXACT, 1, 1).sampler(entropy)
    drawn = [sampler.draw() for _ in range(1000)]

    assert list(range(1000)) == drawn
    assert len(blocks) == 4


def test_discarded_draws_never_come_back() -> None:
    """After discard() (a fork) the next draw is from fresh entropy."""
    counter = itertools.count()

    def entropy(size: int) -> bytes:
        return next(counter).to_bytes(8, "little") * (size // 8)

    sampler = Binomial(promise(10), EXACT, 1, 1).sampler(entropy)
    first = sampler.draw()
    sampler.discard()

    assert (first, sampler.draw()) == (0, 1)


@pytest.mark.parametrize("reward", [-0.1, 1.1, 2, float("nan"), float("inf"), -1e-300])
def test_rewards_outside_the_unit_interval(reward: float) -> None:
    """Refused with what is allowed; the value itself is private and stays out of the message."""
    with pytest.raises(ConfigurationError, match=r"^reward: must be in \[0, 1\]$"):
        calibrate(promise(10), LAPLACE).sampler().encode(reward)


def share_distribution(mechanism: Mechanism) -> np.ndarray:
    """The exact pmf of one user's noise."""
    if isinstance(mechanism, Binomial):
        return stats.binom.pmf(np.arange(mechanism.max_ones), mechanism.trials, mechanism.success)
    honest = mechanism.promise.honest
    clip = mechanism.clip
    return share_pmf(honest, float(mechanism.promise.epsilon), clip)


def p_value(found: Counter[int], pmf: np.ndarray, count: int) -> float:
    """Chi-square, cells of less than ten expected pooled with their neighbours."""
    expected = []
    observed = []
    e = 0.0
    o = 0
    for value, probability in enumerate(pmf):
        e = e + count * probability
        o = o + found[value]
        if e >= 10:
            expected.append(e)
            observed.append(o)
            e = 0.0
            o = 0
    expected[-1] += e
    observed[-1] += o
    assert sum(found.values()) == sum(observed) == count
    scale = count / sum(expected)
    return float(stats.chisquare(observed, [x * scale for x in expected]).pvalue)


SAMPLED = [
    Binomial(promise(10), EXACT, 7, HALF),
    Binomial(promise(10), EXACT, 130, HALF),
    Binomial(promise(10), EXACT, 1, ONE // 11),
    Binomial(promise(10), EXACT, 9, ONE // 5),
    DiscreteLaplace(promise(2, "1"), 14, 64),
    DiscreteLaplace(promise(3, "0.3"), 40, 128),
    DiscreteLaplace(promise(50, "0.5", honest="0.9"), 6, 64),
]


@pytest.mark.parametrize("mechanism", SAMPLED, ids=str)
@pytest.mark.parametrize("reward", [0, 1, 0.3])
def test_distribution_of_reports(mechanism: Mechanism, reward: float) -> None:
    """encode() has the exact distribution, by chi-square.

    Fixed seed; a right sampler would fail for 1e-6 of the seeds in each of 21 cases.
    """
    pmf = np.convolve(share_distribution(mechanism), [1 - reward, reward])
    sampler = mechanism.sampler(seeded(11))
    count = 60_000
    found = Counter(sampler.encode(reward) for _ in range(count))

    assert p_value(found, pmf, count) > 1e-6
    assert 0 <= min(found) <= max(found) <= mechanism.max_ones


def test_the_distribution_check_can_fail() -> None:
    """The same chi-square finds a q that is wrong by 5%."""
    sampler = Binomial(promise(10), EXACT, 9, ONE // 5).sampler(seeded(11))
    found = Counter(sampler.encode(0) for _ in range(60_000))

    assert p_value(found, stats.binom.pmf(np.arange(10), 9, 0.21), 60_000) < 1e-6


@pytest.mark.parametrize("mechanism", SAMPLED, ids=str)
def test_debias_is_unbiased(mechanism: Mechanism) -> None:
    """debias removes exactly the expected noise of a batch, in exact arithmetic.

    E[B] is m times the exact mean of one share.
    """
    size = mechanism.promise.batch_size
    pmf = share_distribution(mechanism)
    mean = float(pmf @ np.arange(len(pmf)))

    assert mechanism.debias(0) == pytest.approx(-size * mean, rel=1e-9)
    assert mechanism.debias(1234) - mechanism.debias(1233) == pytest.approx(1, abs=1e-9)


def test_debias_is_exact_for_huge_totals() -> None:
    """At m = 1e9 with q a bit over 1/2 nothing is lost beside the final rounding."""
    mechanism = Binomial(promise(10**9), EXACT, 1, HALF + 12345)
    exact = Fraction(500_000_007) - Fraction(10**9 * (HALF + 12345), ONE)

    assert float(exact) == mechanism.debias(500_000_007)


def test_operating_system_entropy_by_default() -> None:
    """Without an entropy argument two samplers differ (they would agree in 1e-70 of the runs)."""
    mechanism = calibrate(promise(10), BINOMIAL)
    first = mechanism.sampler()
    second = mechanism.sampler()

    assert [first.draw() for _ in range(4)] != [second.draw() for _ in range(4)]


def test_a_sampler_without_noise_is_no_sampler() -> None:
    """Sampler is abstract: what draws no noise cannot be made."""
    with pytest.raises(TypeError, match="abstract"):
        Sampler(seeded(1))
