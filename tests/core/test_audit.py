"""An empirical audit through the sampler code that clients run: what a released sum gives away.

For each mechanism two neighbouring batches are encoded a million times in all (discrete Laplace at
eps = 1: two million), by the very `encode`; only the entropy is a seeded generator. The audit's
events {total <= s} and {total >= s} are chosen on one half of the batches and judged on the other,
by Clopper-Pearson bounds at level 1e-4, two for each event: a mechanism that keeps its promise
fails with probability below 4e-4 for a random seed.
"""

from decimal import Decimal

import numpy as np
import pytest
from scipy import stats

from stream_app.core.discrete_laplace import DiscreteLaplace
from stream_app.core.mechanisms import Mechanism, MechanismName, calibrate
from stream_app.core.promise import Calibration, Promise

LEVEL = 1e-4
BATCHES = 1_000_000


def totals(mechanism: Mechanism, rewards: tuple[int, ...], batches: int, seed: int) -> np.ndarray:
    """The released totals of many batches whose users have these rewards."""
    entropy = np.random.default_rng(seed).bytes
    encode = mechanism.sampler(entropy).encode
    columns = [
        np.fromiter((encode(reward) for _ in range(batches)), np.int32, batches)
        for reward in rewards
    ]
    return np.sum(columns, axis=0)


def epsilon_bound(low: np.ndarray, high: np.ndarray, delta: float) -> float:
    """A lower confidence bound on eps at delta, from the events {total <= s} and {total >= s}.

    Half of the batches choose s, the other half gives Clopper-Pearson bounds of both probabilities.
    """
    most = int(max(low.max(), high.max()))
    pairs = ((low, high), (most - high, most - low))
    return max(_one_sided(likely, unlikely, most, delta) for likely, unlikely in pairs)


def _one_sided(likely: np.ndarray, unlikely: np.ndarray, most: int, delta: float) -> float:
    half = len(likely) // 2

    def bounds(rows: slice) -> np.ndarray:
        hits, misses = (
            np.cumsum(np.bincount(x[rows], minlength=most + 1)) for x in (likely, unlikely)
        )
        p = np.where(hits > 0, stats.beta.ppf(LEVEL, hits, half - hits + 1), 0.0)
        q = stats.beta.ppf(1 - LEVEL, misses + 1, half - misses)
        usable = (p > delta) & (misses < half)
        return np.where(usable, np.log(np.where(usable, (p - delta) / q, 1.0)), -np.inf)

    chosen = int(np.argmax(bounds(slice(half))))
    return float(bounds(slice(half, 2 * half))[chosen])


def audited(mechanism: Mechanism, batches: int = BATCHES) -> float:
    rest = (0,) * (mechanism.promise.batch_size - 1)
    low = totals(mechanism, (0, *rest), batches, 1)
    high = totals(mechanism, (1, *rest), batches, 2)
    return epsilon_bound(low, high, float(mechanism.promise.delta))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "calibration", "epsilon", "delta", "users"),
    [
        ("binomial", "exact", "1", "0.01", 2),
        ("binomial", "exact", "2", "0.1", 5),
        ("binomial", "paper", "0.9", "0.1", 2),
        ("discrete-laplace", "exact", "0.5", "0.0001", 2),
    ],
)
def test_audit_finds_no_more_than_promised(
    name: str, calibration: str, epsilon: str, delta: str, users: int
) -> None:
    """The audited lower bound on eps at the stated delta is at most the promised eps."""
    promise = Promise(Decimal(epsilon), Decimal(delta), users, Decimal(1))
    mechanism = calibrate(promise, MechanismName(name), Calibration(calibration))

    assert audited(mechanism, BATCHES // 2) <= float(epsilon)


@pytest.mark.slow
def test_audit_is_tight_for_discrete_laplace() -> None:
    """At eps = 1 the audit proves at least .95 of it, and no more than 1."""
    promise = Promise(Decimal(1), Decimal("0.000001"), 2, Decimal(1))
    found = audited(calibrate(promise))

    assert 0.95 <= found <= 1


@pytest.mark.slow
def test_audit_finds_too_little_noise() -> None:
    """The audit can fail: noise made for eps = 1.2 is caught breaking a promise of eps = 1."""
    weak = Promise(Decimal("1.2"), Decimal("0.000001"), 2, Decimal(1))
    mechanism = calibrate(weak)

    assert isinstance(mechanism, DiscreteLaplace)
    assert audited(mechanism, BATCHES // 5) > 1.1
