"""The randomizers: what each user adds to the reward, and what is known of the sum.

A mechanism is a frozen value, made for one batch size: it encodes one reward, removes the bias of
a total, and states its noise's variance, log-MGF and certificate. Notation: m users of whom h are
honest, tau and p as in the paper's Algorithm 3, c the clip (MATH 2). Privacy noise comes from the
operating system's generator; other sources are for tests only.
"""

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache

from stream_app.core import accounting
from stream_app.core.noise import BinomialNoise, LaplaceNoise
from stream_app.core.samplers import (
    BiasedSampler,
    Entropy,
    FairSampler,
    Sampler,
    TableSampler,
    WideTableSampler,
    laplace_table,
)
from stream_app.errors import ConfigurationError

MAX_BATCH_SIZE = 1_000_000_000
MIN_EPSILON = Decimal("0.00001")
MAX_EPSILON = Decimal(1_000_000)  # 50 and more give the same noise; this only bounds its spelling
MIN_DELTA = Decimal("1E-60")
# More noise bits than this in one report could not be drawn by a device.
MAX_REPORT_BITS = 1 << 32
MAX_TRIALS = 1 << 44


class MechanismName(StrEnum):
    """The two families of noise."""

    BINOMIAL = "binomial"
    DISCRETE_LAPLACE = "discrete-laplace"


class Calibration(StrEnum):
    """How much noise: the paper's printed constants, or the least that is certified."""

    PAPER = "paper"
    EXACT = "exact"


def plain(value: Decimal) -> str:
    """A decimal's one canonical spelling: no exponent, no trailing zeros ('0.000001')."""
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


@dataclass(frozen=True, slots=True)
class Promise:
    """What a batch promises: (eps, delta) for each of its users while a share of them is honest."""

    epsilon: Decimal
    delta: Decimal
    batch_size: int
    honest_fraction: Decimal = Decimal("0.9")

    def __post_init__(self) -> None:
        _require(self.epsilon.is_finite() and self.epsilon > 0, "epsilon", self.epsilon, "above 0")
        _require(
            MIN_EPSILON <= self.epsilon <= MAX_EPSILON,
            "epsilon",
            self.epsilon,
            f"from {plain(MIN_EPSILON)} to {MAX_EPSILON}",
        )
        _require(
            self.delta.is_finite() and 0 < self.delta < 1,
            "delta",
            self.delta,
            "between 0 and 1, both excluded",
        )
        _require(self.delta >= MIN_DELTA, "delta", self.delta, f"at least {MIN_DELTA}")
        _require(
            1 <= self.batch_size <= MAX_BATCH_SIZE,
            "batch_size",
            self.batch_size,
            f"a whole number from 1 to {MAX_BATCH_SIZE}",
        )
        _require(
            self.honest_fraction.is_finite() and 0 < self.honest_fraction <= 1,
            "honest_fraction",
            self.honest_fraction,
            "in (0, 1]",
        )

    @property
    def honest(self) -> int:
        """h = max(1, floor(g m)), in exact arithmetic."""
        return max(1, math.floor(Fraction(self.honest_fraction) * self.batch_size))

    @property
    def effective_epsilon(self) -> float:
        """The eps that the noise is made for."""
        return accounting.effective_epsilon(float(self.epsilon))


def _require(holds: bool, setting: str, value: object, allowed: str) -> None:
    if not holds:
        raise ConfigurationError(f"{setting} = {value}: must be {allowed}")


@dataclass(frozen=True, slots=True)
class Binomial:
    """Each user adds `trials` Bernoulli(success_numerator / 2**64) bits; B ~ Bin(m trials, q)."""

    promise: Promise
    calibration: Calibration
    trials: int
    success_numerator: int

    name = MechanismName.BINOMIAL

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
        """The sigma^2 of the paper's radius: 1.5 tau (MATH 3.1), for m/h honest-user shares."""
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
        return accounting.binomial_delta(
            self.promise.honest * self.trials, self.success_numerator, float(self.promise.epsilon)
        )

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


@dataclass(frozen=True, slots=True)
class DiscreteLaplace:
    """Each user adds c + clip(X - Y, -c, c), X, Y ~ NegBin(1/h, e^-eps): h of them sum to DLap."""

    promise: Promise
    clip: int
    table_bits: int

    name = MechanismName.DISCRETE_LAPLACE
    calibration = Calibration.EXACT

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
        return _laplace_delta(self.promise, self.clip, self.table_bits)

    @property
    def parameters(self) -> dict[str, int]:
        """What a stranger needs, beside the promise, to recompute the certificate."""
        return {"clip": self.clip, "table_bits": self.table_bits}

    def debias(self, total: int) -> float:
        """total - E[B], with E[B] = c m."""
        return float(total - self.clip * self.promise.batch_size)

    def sampler(self, entropy: Entropy = secrets.token_bytes) -> Sampler:
        """What a client uses to encode rewards."""
        promise = self.promise
        table = laplace_table(promise.honest, promise.epsilon, self.clip, self.table_bits)
        return (TableSampler if self.table_bits == 64 else WideTableSampler)(table, entropy)


Mechanism = Binomial | DiscreteLaplace


@lru_cache(maxsize=65536)
def _laplace_delta(promise: Promise, clip: int, table_bits: int) -> float:
    return accounting.discrete_laplace_delta(
        promise.batch_size, promise.honest, clip, table_bits, float(promise.epsilon)
    )


def paper_tau(promise: Promise) -> float:
    """tau = 96 ln(2/delta) / eps^2 (the paper's Algorithm 3)."""
    return 96 * math.log(2 / float(promise.delta)) / float(promise.epsilon) ** 2


@lru_cache(maxsize=65536)
def calibrate(
    promise: Promise,
    name: MechanismName = MechanismName.DISCRETE_LAPLACE,
    calibration: Calibration = Calibration.EXACT,
) -> Mechanism:
    """The mechanism of this name with the noise that the promise needs from its honest users."""
    if name is MechanismName.DISCRETE_LAPLACE:
        if calibration is Calibration.PAPER:
            raise ConfigurationError(
                "calibration = paper: the paper calibrates binomial noise only; "
                "use mechanism = binomial, or calibration = exact"
            )
        return _calibrate_laplace(promise)
    trials, numerator = _paper_bits(promise) if calibration is Calibration.PAPER else _bits(promise)
    if trials > MAX_REPORT_BITS:
        raise ConfigurationError(
            f"batch_size = {promise.batch_size}: a report would need {trials} noise bits at "
            f"epsilon = {plain(promise.epsilon)}; use larger batches or discrete-laplace"
        )
    return Binomial(promise, calibration, trials, numerator)


def _calibrate_laplace(promise: Promise) -> DiscreteLaplace:
    epsilon = promise.effective_epsilon
    delta = float(promise.delta)
    clip = accounting.least_clip(promise.batch_size, promise.honest, epsilon, delta)
    rounding = accounting.table_delta(promise.batch_size, clip, 64, epsilon)
    return DiscreteLaplace(promise, clip, 64 if rounding <= 0.01 * delta else 128)


def _bits(promise: Promise) -> tuple[int, int]:
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


def rebuild(
    name: MechanismName,
    calibration: Calibration,
    promise: Promise,
    parameters: Mapping[str, int],
) -> Mechanism:
    """A mechanism from a certificate's or a batch's stated parameters, as they stand there."""
    if name is MechanismName.DISCRETE_LAPLACE:
        clip = parameters["clip"]
        table_bits = parameters["table_bits"]
        # Certifying costs by these: more than any calibration asks for is refused unread.
        most = math.ceil(500 / promise.effective_epsilon)
        _require(1 <= clip <= most, "clip", clip, f"from 1 to {most}")
        _require(table_bits in (64, 128), "table_bits", table_bits, "64 or 128")
        return DiscreteLaplace(promise, clip, table_bits)
    total = parameters["trials"]
    numerator = parameters["success_numerator"]
    trials, rest = divmod(total, promise.batch_size)
    _require(trials >= 1 and rest == 0, "trials", total, "a positive multiple of batch_size")
    _require(trials <= MAX_REPORT_BITS, "trials", total, f"at most {MAX_REPORT_BITS} a user")
    _require(total <= MAX_TRIALS, "trials", total, f"at most {MAX_TRIALS}")
    _require(0 < numerator < accounting.ONE, "success_numerator", numerator, "in (0, 2**64)")
    stated = parameters["success_bits"]
    _require(stated == accounting.PROBABILITY_BITS, "success_bits", stated, "64")
    return Binomial(promise, calibration, trials, numerator)
