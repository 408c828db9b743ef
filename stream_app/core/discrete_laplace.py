"""Discrete Laplace noise in shares: the least noise that integer sums can have (MATH 2).

Each user adds c + clip(X - Y, -c, c) with X, Y ~ NegBin(1/h, e^-eps); the h honest users together
make one discrete Laplace variable. Unclipped that is pure eps-DP; clipping and the rounding of the
sampling table cost delta. The notation, and which of two readings of NegBin is meant: MATH 2.
"""

import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import lru_cache
from itertools import pairwise
from typing import ClassVar

import numpy as np

from stream_app.core import accounting
from stream_app.core.noise import Floats, SymmetricNoise
from stream_app.core.promise import Calibration, Promise, plain, require
from stream_app.core.samplers import (
    Entropy,
    ManyShares,
    Sampler,
    TableSampler,
    WideTableSampler,
    many_by_table,
)
from stream_app.errors import ConfigurationError

# Of the recurrence that makes a sampling table, and more than its certificate takes. The largest
# that is needed is 14 787 (eps 0.01, delta 1e-12, a billion users); this many take up to 0.1 s.
MOST_TABLE_STEPS = 1 << 15


@dataclass(frozen=True, slots=True)
class LaplaceNoise(SymmetricNoise):
    """B = the sum of m users' shares of a discrete Laplace, shape = m / honest users.

    (m/h)[2 log(1-p) - log(1 - p e^theta) - log(1 - p e^-theta)] with p = e^-eps (MATH 4), written
    without cancellation as -(m/h) log(1 - (sinh(theta/2) / sinh(eps/2))^2). It bounds the clipped
    noise too: the shares are symmetric, and clipping lowers cosh.
    """

    shape: float | Floats
    epsilon: float | Floats

    @property
    def limit(self) -> float:
        """Finite for |theta| < eps."""
        return float(np.min(self.epsilon))

    def log_mgf(self, theta: Floats) -> Floats:
        """See `Noise`."""
        ratio = np.sinh(0.5 * theta) / np.sinh(0.5 * np.asarray(self.epsilon))
        psi: Floats = -self.shape * np.log1p(-ratio * ratio)
        return psi

    def draw(self, count: int, rng: np.random.Generator) -> Floats:
        """See `Noise`; unclipped, which changes a total with probability below delta."""
        stop = -np.expm1(-self.epsilon)
        up = rng.negative_binomial(self.shape, stop, count)
        return (up - rng.negative_binomial(self.shape, stop, count)).astype(np.float64)


@dataclass(frozen=True, slots=True)
class DiscreteLaplace:
    """Each user adds c + clip(X - Y, -c, c), X, Y ~ NegBin(1/h, e^-eps): h of them sum to DLap."""

    promise: Promise
    clip: int
    table_bits: int

    name: ClassVar[str] = "discrete-laplace"
    calibration: ClassVar[Calibration] = Calibration.EXACT
    parameter_names: ClassVar[frozenset[str]] = frozenset({"clip", "table_bits"})
    wide_parameters: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def calibrate(cls, promise: Promise, calibration: Calibration) -> "DiscreteLaplace":
        """The least clip, with 128-bit draws where 64 would cost more than .01 delta (MATH 2)."""
        if calibration is Calibration.PAPER:
            raise ConfigurationError(
                "calibration = paper: the paper calibrates binomial noise only; "
                "use mechanism = binomial, or calibration = exact"
            )
        epsilon = promise.effective_epsilon
        delta = float(promise.delta)
        clip = accounting.least_clip(promise.batch_size, promise.honest, epsilon, delta)
        rounding = accounting.table_delta(promise.batch_size, clip, 64, epsilon)
        found = cls(promise, clip, 64 if rounding <= 0.01 * delta else 128)
        if found.certified_delta > promise.delta:
            raise ConfigurationError(
                f"delta = {plain(promise.delta)}: below what a sampling table of 128 bits keeps in "
                f"a batch of {promise.batch_size} ({found.certified_delta:.1g}); use a larger "
                "delta, smaller batches or mechanism = binomial"
            )
        return found

    @classmethod
    def rebuild(
        cls, promise: Promise, _calibration: Calibration, parameters: Mapping[str, int]
    ) -> "DiscreteLaplace":
        """As stated, within what can be certified."""
        clip = parameters["clip"]
        table_bits = parameters["table_bits"]
        require(table_bits in (64, 128), "table_bits", table_bits, "64 or 128")
        # Certificate and table cost by it: more than any calibration asks for is refused unread.
        most = MOST_TABLE_STEPS - table_steps(0, table_bits, promise.effective_epsilon)
        require(1 <= clip <= most, "clip", clip, f"from 1 to {most}")
        return cls(promise, clip, table_bits)

    @property
    def max_ones(self) -> int:
        """A report is an integer from 0 to this."""
        return 2 * self.clip + 1

    @property
    def shape(self) -> float:
        """m/h: how many discrete Laplace variables all users together make."""
        return self.promise.batch_size / self.promise.honest

    @property
    def variance(self) -> float:
        """(m/h) 2p/(1-p)^2 = (m/h) / (2 sinh^2(eps/2)); clipping only lowers it."""
        return self.shape / (2 * math.sinh(self.promise.effective_epsilon / 2) ** 2)

    @property
    def sub_gaussian_variance(self) -> float:
        """The noise's variance, where the paper's radius asks for one (MATH 5)."""
        return self.variance

    @property
    def noise(self) -> LaplaceNoise:
        """The centred total noise, for confidence bounds."""
        return LaplaceNoise(self.shape, self.promise.effective_epsilon)

    @property
    def certified_delta(self) -> float:
        """An upper bound of delta at the promised eps: clipping and the table's rounding."""
        return _delta(self.promise, self.clip, self.table_bits)

    def delta_left(self, honest: int) -> Callable[[float], float]:
        """Delta as a function of eps, when only so many users add their noise.

        Of the exact distribution of their shares: the closed form is for the promised number only.
        """
        noise = accounting.total_masses(self.share_masses, honest)
        return lambda epsilon: accounting.hockey_stick(noise, epsilon)

    @property
    def parameters(self) -> dict[str, int]:
        """What a stranger needs, beside the promise, to recompute the certificate."""
        return {"clip": self.clip, "table_bits": self.table_bits}

    def debias(self, total: int) -> float:
        """total - E[B], with E[B] = c m."""
        return float(total - self.clip * self.promise.batch_size)

    @property
    def table(self) -> tuple[int, ...]:
        """What a draw of `table_bits` bits is compared with."""
        promise = self.promise
        return laplace_table(promise.honest, promise.epsilon, self.clip, self.table_bits)

    @property
    def share_masses(self) -> Floats:
        """One user's noise, the probabilities of 0 to 2c as the sampling table has them."""
        whole = 1 << self.table_bits
        edges = (0, *self.table, whole)
        return np.array([(high - low) / whole for low, high in pairwise(edges)])

    def sampler(self, entropy: Entropy = secrets.token_bytes) -> Sampler:
        """What a client uses to encode rewards."""
        return (TableSampler if self.table_bits == 64 else WideTableSampler)(self.table, entropy)

    def many_shares(self, entropy: Entropy) -> ManyShares:
        """The shares that `sampler` would draw from this entropy, many at once."""
        return many_by_table(self.table, self.table_bits, entropy)


@lru_cache(maxsize=65536)
def _delta(promise: Promise, clip: int, table_bits: int) -> float:
    """Remembered: client, stage and auditor ask for every batch, and promises are few."""
    return accounting.discrete_laplace_delta(
        promise.batch_size, promise.honest, clip, table_bits, float(promise.epsilon)
    )


def table_steps(clip: int, bits: int, epsilon: float) -> int:
    """How far out the recurrence of `laplace_table` begins: what a table costs, in steps."""
    return clip + math.ceil((bits + 48) * math.log(2) / epsilon) + 2


@lru_cache(maxsize=64)
def laplace_table(honest: int, epsilon: Decimal, clip: int, bits: int) -> tuple[int, ...]:
    """2**bits P(c + clip(X - Y, -c, c) <= j) for j = 0..2c-1, each rounded to nearest.

    a_d = P(X - Y = d) satisfies, by its generating function ((1-p)^2 / ((1-pz)(1-p/z)))^r, r = 1/h:
    p (d-1+r) a_(d-1) = (1+p^2) d a_d - p (d+1-r) a_(d+1). It is the decaying solution, so the
    recurrence is run downward from far out (Miller's algorithm), where it is stable, and divided
    by its sum: in whole numbers, with 192 binary places more than an entry has.
    """
    eps = min(epsilon, Decimal(accounting.MAX_EPSILON))
    places = bits + 192
    with localcontext(prec=places // 3):
        p = int((-eps).exp() * (1 << places))
    centre = (1 << places) + (p * p >> places)
    above = 0
    here = 1 << places
    tail = 0
    tails: list[int] = []
    for d in range(table_steps(clip, bits, float(eps)), 0, -1):
        tail += here
        if d <= clip:
            tails.append(tail)
        below = (centre * d * honest * here - p * ((d + 1) * honest - 1) * above) // (
            p * ((d - 1) * honest + 1)
        )
        above = here
        here = below
    whole = here + 2 * tail
    lower = [((2 * tail << bits) + whole) // (2 * whole) for tail in tails]
    return (*lower, *((1 << bits) - entry for entry in reversed(lower)))
