"""Binomial noise: the paper's mechanism, by its printed constants or with the fewest bits (MATH 2).

Each user adds p fair bits or one biased bit; together they make B ~ Bin(m p, q). Notation: m users
of whom h are honest, tau and p as in the paper's Algorithm 3.
"""

import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from stream_app.core import accounting
from stream_app.core.noise import UNLIMITED, Floats, Noise
from stream_app.core.promise import MAX_REPORT_BITS, Calibration, Promise, plain, require
from stream_app.core.samplers import Entropy, ManyShares, Sampler
from stream_app.errors import ConfigurationError

# In a batch. The paper's tau at the least eps and delta 1e-6 is 1.4e13, just below; and all counts
# stay far below 2**53, up to which floats count exactly.
MAX_TRIALS = 1 << 44

# Each needs a draw of its own, where 64 fair bits share one; no calibration asks for more than 1.
_MOST_BIASED_BITS = 1 << 13


@dataclass(frozen=True, slots=True)
class BinomialNoise(Noise):
    """B ~ Bin(trials, success): psi = n log(1 + q(e^theta - 1)) - n q theta (MATH 4)."""

    trials: float | Floats
    success: float | Floats

    @property
    def limit(self) -> float:
        """Finite everywhere."""
        return UNLIMITED

    def log_mgf(self, theta: Floats) -> Floats:
        """See `Noise`."""
        grown = np.log1p(self.success * np.expm1(theta))
        psi: Floats = self.trials * (grown - self.success * theta)
        return psi

    def draw(self, count: int, rng: np.random.Generator) -> Floats:
        """See `Noise`."""
        ones: Floats = rng.binomial(int(self.trials), self.success, count).astype(np.float64)
        return ones - float(self.trials) * float(self.success)


@dataclass(frozen=True, slots=True)
class Binomial:
    """Each user adds `trials` Bernoulli(success_numerator / 2**64) bits; B ~ Bin(m trials, q)."""

    promise: Promise
    calibration: Calibration
    trials: int
    success_numerator: int

    name: ClassVar[str] = "binomial"
    parameter_names: ClassVar[frozenset[str]] = frozenset(
        {"trials", "success_numerator", "success_bits"}
    )
    # Up to 2**64, more than JSON's whole numbers hold.
    wide_parameters: ClassVar[frozenset[str]] = frozenset({"success_numerator"})

    @classmethod
    def calibrate(cls, promise: Promise, calibration: Calibration) -> "Binomial":
        """The paper's bits, or the fewest that are certified, from the honest users alone."""
        bits = _paper_bits if calibration is Calibration.PAPER else _fewest_bits
        trials, numerator = bits(promise)
        if trials > MAX_REPORT_BITS:
            raise ConfigurationError(
                f"batch_size = {promise.batch_size}: a report would need {trials} noise bits at "
                f"epsilon = {plain(promise.epsilon)}; use larger batches or discrete-laplace"
            )
        return cls(promise, calibration, trials, numerator)

    @classmethod
    def rebuild(
        cls, promise: Promise, calibration: Calibration, parameters: Mapping[str, int]
    ) -> "Binomial":
        """As stated, within what can be certified."""
        total = parameters["trials"]
        numerator = parameters["success_numerator"]
        trials, rest = divmod(total, promise.batch_size)
        require(trials >= 1 and rest == 0, "trials", total, "a positive multiple of batch_size")
        require(trials <= MAX_REPORT_BITS, "trials", total, f"at most {MAX_REPORT_BITS} a user")
        require(
            trials <= _MOST_BIASED_BITS or numerator == accounting.HALF,
            "trials",
            total,
            f"at most {_MOST_BIASED_BITS} a user if they are not fair",
        )
        require(total <= MAX_TRIALS, "trials", total, f"at most {MAX_TRIALS}")
        require(0 < numerator < accounting.ONE, "success_numerator", numerator, "in (0, 2**64)")
        stated = parameters["success_bits"]
        require(stated == accounting.PROBABILITY_BITS, "success_bits", stated, "64")
        return cls(promise, calibration, trials, numerator)

    @property
    def max_ones(self) -> int:
        """A report is an integer from 0 to this."""
        return 1 + self.trials

    @property
    def success(self) -> float:
        """q."""
        return self.success_numerator / accounting.ONE

    @property
    def variance(self) -> float:
        """Of the total noise when all users are honest."""
        complement = (accounting.ONE - self.success_numerator) / accounting.ONE
        return self.promise.batch_size * self.trials * self.success * complement

    @property
    def sub_gaussian_variance(self) -> float:
        """The sigma^2 of the paper's radius: 1.5 tau (MATH 3), for m/h honest-user shares."""
        if self.calibration is Calibration.EXACT:
            return self.variance
        return 1.5 * paper_tau(self.promise) * self.promise.batch_size / self.promise.honest

    @property
    def noise(self) -> BinomialNoise:
        """The centred total noise, for confidence bounds."""
        return BinomialNoise(float(self.promise.batch_size * self.trials), self.success)

    @property
    def certified_delta(self) -> float:
        """An upper bound of delta at the promised eps, with noise from the honest users only."""
        return self.delta_left(self.promise.honest)(float(self.promise.epsilon))

    def delta_left(self, honest: int) -> Callable[[float], float]:
        """Delta as a function of eps, when only so many users add their noise: certified."""
        trials = honest * self.trials
        return lambda epsilon: accounting.binomial_delta(trials, self.success_numerator, epsilon)

    @property
    def parameters(self) -> dict[str, int]:
        """What a stranger needs, beside the promise, to recompute the certificate."""
        return {
            "trials": self.promise.batch_size * self.trials,
            "success_numerator": self.success_numerator,
            "success_bits": accounting.PROBABILITY_BITS,
        }

    def debias(self, total: int) -> float:
        """total - E[B], with E[B] = m trials q exact."""
        expected = self.promise.batch_size * self.trials * self.success_numerator
        return ((total << accounting.PROBABILITY_BITS) - expected) / accounting.ONE

    def sampler(self, entropy: Entropy = secrets.token_bytes) -> Sampler:
        """What a client uses to encode rewards."""
        if self.success_numerator == accounting.HALF:
            return FairSampler(self.trials, entropy)
        return BiasedSampler(self.trials, self.success_numerator, entropy)

    def many_shares(self, entropy: Entropy) -> ManyShares:
        """The shares that `sampler` would draw from this entropy, many at once."""
        trials = self.trials
        numerator = np.uint64(self.success_numerator)

        def fair(count: int) -> NDArray[np.int64]:
            width = 8 * -(-trials // 64)
            rows = np.frombuffer(entropy(width * count), np.uint8).reshape(count, width)
            bits = np.unpackbits(rows, axis=1, count=trials, bitorder="little")
            ones: NDArray[np.int64] = bits.sum(1, dtype=np.int64)
            return ones

        def biased(count: int) -> NDArray[np.int64]:
            draws = np.frombuffer(entropy(8 * trials * count), "<u8").reshape(count, trials)
            ones: NDArray[np.int64] = (draws < numerator).sum(1, dtype=np.int64)
            return ones

        return fair if self.success_numerator == accounting.HALF else biased


def paper_tau(promise: Promise) -> float:
    """tau = 96 ln(2/delta) / eps^2 (the paper's Algorithm 3; MATH 2)."""
    return 96 * math.log(2 / float(promise.delta)) / float(promise.epsilon) ** 2


def _fewest_bits(promise: Promise) -> tuple[int, int]:
    """Fewest certified bits from h users: p = ceil(n_min/h) fair ones, or one with the least q."""
    epsilon = float(promise.epsilon)
    delta = float(promise.delta)
    fewest = accounting.fewest_fair_trials(epsilon, delta)
    if promise.honest >= fewest:
        return 1, accounting.least_success(promise.honest, epsilon, delta)
    return -(-fewest // promise.honest), accounting.HALF


def _paper_bits(promise: Promise) -> tuple[int, int]:
    """The paper's two regimes, from h users: ceil(tau/h) fair bits, or one of Bernoulli(tau/2h)."""
    if promise.epsilon >= 1:
        raise ConfigurationError(
            f"epsilon = {plain(promise.epsilon)}: the paper's constants are proved for epsilon < 1 "
            "only; use calibration = exact"
        )
    tau = paper_tau(promise)
    if promise.honest <= tau:
        return math.ceil(tau / promise.honest), accounting.HALF
    return 1, math.ceil(accounting.ONE * (tau / (2 * promise.honest)))


class FairSampler(Sampler):
    """The number of ones among `trials` fair bits, lowest bits of a draw first."""

    __slots__ = ("_full", "_mask")

    def __init__(self, trials: int, entropy: Entropy) -> None:
        super().__init__(entropy)
        self._full, rest = divmod(trials, 64)
        self._mask = (1 << rest) - 1

    def noise(self) -> int:
        """See `Sampler`."""
        ones = sum(self.draw().bit_count() for _ in range(self._full))
        return ones + (self.draw() & self._mask).bit_count() if self._mask else ones


class BiasedSampler(Sampler):
    """The number of draws below the numerator."""

    __slots__ = ("_numerator", "_trials")

    def __init__(self, trials: int, numerator: int, entropy: Entropy) -> None:
        super().__init__(entropy)
        self._trials = trials
        self._numerator = numerator

    def noise(self) -> int:
        """See `Sampler`."""
        if self._trials == 1:
            return int(self.draw() < self._numerator)
        return sum(self.draw() < self._numerator for _ in range(self._trials))
