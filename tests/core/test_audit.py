"""An empirical audit through the sampler code that clients run: what a released sum gives away.

For each mechanism two neighbouring batches are encoded a million times each, by the very
`encode`; only the entropy is a seeded generator. The audit's threshold event {total <= s} is chosen
on one half of the batches and judged on the other, by Clopper-Pearson bounds at level 1e-4 each:
a mechanism that keeps its promise fails with probability below 2e-4 for a random seed.
"""

import math
from decimal import Decimal

import numpy as np
import pytest
from scipy import stats

from stream_app.core.mechanisms import (
    Calibration,
    DiscreteLaplace,
    Mechanism,
    MechanismName,
    Promise,
    calibrate,
)

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
    """A lower confidence bound on eps at delta, from events {<= s} and {>= s} (Clopper-Pearson)."""
    best = -math.inf
    for sign in (1, -1):
        likely, unlikely = (low, high) if sign == 1 else (-high, -low)
        choose, judge = len(low) // 2, len(low) - len(low) // 2

        def bound(threshold: int, rows: slice, count: int) -> float:
            hits = int(np.sum(likely[rows] <= threshold))  # noqa: B023
            misses = int(np.sum(unlikely[rows] <= threshold))  # noqa: B023
            p = stats.beta.ppf(LEVEL, hits, count - hits + 1) if hits else 0.0
            q = stats.beta.ppf(1 - LEVEL, misses + 1, count - misses)
            return math.log((p - delta) / q) if p > delta else -math.inf

        span = np.unique(np.quantile(likely[:choose], [1e-4, 0.5], method="lower"))
        candidates = range(int(span[0]), int(span[-1]) + 1)
        threshold = max(candidates, key=lambda s: bound(s, slice(choose), choose))
        best = max(best, bound(threshold, slice(choose, None), judge))
    return best


def audited(mechanism: Mechanism, users: int, batches: int = BATCHES) -> float:
    rest = (0,) * (users - 1)
    low = totals(mechanism, (0, *rest), batches, 1)
    high = totals(mechanism, (1, *rest), batches, 2)
    return epsilon_bound(low, high, float(mechanism.promise.delta))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "calibration", "epsilon", "delta", "users"),
    [
        ("binomial", "exact", "1", "0.01", 2),
        ("binomial", "exact", "1", "0.01", 30),
        ("binomial", "paper", "0.9", "0.01", 2),
        ("discrete-laplace", "exact", "0.5", "0.0001", 2),
    ],
)
def test_audit_finds_no_more_than_promised(
    name: str, calibration: str, epsilon: str, delta: str, users: int
) -> None:
    """The audited lower bound on eps at the stated delta is at most the promised eps."""
    promise = Promise(Decimal(epsilon), Decimal(delta), users, Decimal(1))
    mechanism = calibrate(promise, MechanismName(name), Calibration(calibration))
    batches = BATCHES if users == 2 else 100_000

    assert audited(mechanism, users, batches) <= float(epsilon)


@pytest.mark.slow
def test_audit_is_tight_for_discrete_laplace() -> None:
    """At eps = 1 the audit proves at least .95 of it, and no more than 1: the noise is the least."""
    promise = Promise(Decimal(1), Decimal("0.000001"), 2, Decimal(1))
    found = audited(calibrate(promise), 2)

    assert 0.95 <= found <= 1


@pytest.mark.slow
def test_audit_finds_too_little_noise() -> None:
    """The audit can fail: noise made for eps = 1.2 is caught breaking a promise of eps = 1."""
    weak = Promise(Decimal("1.2"), Decimal("0.000001"), 2, Decimal(1))
    mechanism = calibrate(weak)

    assert isinstance(mechanism, DiscreteLaplace)
    assert audited(mechanism, 2) > 1.1
