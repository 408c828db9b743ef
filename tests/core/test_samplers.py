"""Samplers: each draw once, and the exact distribution of what a user reports."""

import bisect
import itertools
import random
from collections import Counter
from decimal import Decimal
from io import BytesIO

import numpy as np
import pytest
from scipy import stats

from stream_app.core.accounting import ONE
from stream_app.core.binomial import Binomial
from stream_app.core.discrete_laplace import DiscreteLaplace, laplace_table
from stream_app.core.mechanisms import Mechanism, calibrate
from stream_app.core.samplers import Sampler, TableSampler
from stream_app.errors import ConfigurationError
from tests.core.noises import (
    BINOMIAL,
    EXACT,
    LAPLACE,
    SAMPLED,
    promise,
    seeded,
    share_distribution,
    words,
)


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


@pytest.mark.parametrize("mechanism", SAMPLED, ids=str)
def test_many_shares_are_the_samplers(mechanism: Mechanism) -> None:
    """The same shares from the same entropy, however many are asked for at once, and no byte more.

    The simple twin is `Sampler.noise`, one share at a time.
    """
    source = seeded(3)(1 << 16)
    sampler = mechanism.sampler(BytesIO(source).read)
    stream = BytesIO(source)
    many = mechanism.many_shares(stream.read)
    one_by_one = [sampler.noise() for _ in range(100)]

    assert one_by_one == [*many(1), *many(0), *many(60), *many(39)]
    assert stream.tell() % 800 == 0
