"""Promises, mechanisms and draws for the tests of noise. Nothing here is under test."""

import itertools
import random
from collections.abc import Callable
from decimal import Decimal

import numpy as np
from scipy import stats

from stream_app.core.accounting import HALF, ONE
from stream_app.core.binomial import Binomial
from stream_app.core.discrete_laplace import DiscreteLaplace
from stream_app.core.mechanisms import Mechanism, MechanismName
from stream_app.core.promise import Calibration, Promise
from tests.core.build import share_pmf

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


def share_distribution(mechanism: Mechanism) -> np.ndarray:
    """The exact pmf of one user's noise."""
    if isinstance(mechanism, Binomial):
        return stats.binom.pmf(np.arange(mechanism.max_ones), mechanism.trials, mechanism.success)
    honest = mechanism.promise.honest
    clip = mechanism.clip
    return share_pmf(honest, float(mechanism.promise.epsilon), clip)


SAMPLED = [
    Binomial(promise(10), EXACT, 7, HALF),
    Binomial(promise(10), EXACT, 130, HALF),
    Binomial(promise(10), EXACT, 1, ONE // 11),
    Binomial(promise(10), EXACT, 9, ONE // 5),
    DiscreteLaplace(promise(2, "1"), 14, 64),
    DiscreteLaplace(promise(3, "0.3"), 40, 128),
    DiscreteLaplace(promise(50, "0.5", honest="0.9"), 6, 64),
]
