"""What a batch promises each of its users, and the bounds within which a promise can be made.

Nothing here knows by which noise a promise is kept.
"""

import math
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction

from stream_app.core import accounting
from stream_app.errors import ConfigurationError

# Calibrations were checked against 60-digit arithmetic up to here (MATH 2).
MAX_BATCH_SIZE = 1_000_000_000
# Bounds what it costs to check terms that somebody else wrote: steps and table entries grow as
# 1/eps (MATH 2, "What a check costs"). Below it the noise of a batch would hide hundreds of users.
MIN_EPSILON = Decimal("0.01")
MAX_EPSILON = Decimal(1_000_000)  # 50 and more give the same noise; this only bounds its spelling
# Far below any promise that somebody makes, far above where floats end (1e-308).
MIN_DELTA = Decimal("1E-60")
# Noise bits of one report: half a million draws. The paper's constants ask for 2.7e7 at eps 0.01
# and delta 1e-12 in a batch of two.
MAX_REPORT_BITS = 1 << 25


class Calibration(StrEnum):
    """How much noise: the paper's printed constants, or the least that is certified."""

    PAPER = "paper"
    EXACT = "exact"


def plain(value: Decimal) -> str:
    """A decimal's one canonical spelling: no exponent, no trailing zeros ('0.000001')."""
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def require(holds: bool, setting: str, value: object, allowed: str) -> None:
    """Refuse a setting in one line that says what is allowed."""
    if not holds:
        raise ConfigurationError(f"{setting} = {value}: must be {allowed}")


@dataclass(frozen=True, slots=True)
class Promise:
    """What a batch promises: (eps, delta) for each of its users while a share of them is honest."""

    epsilon: Decimal
    delta: Decimal
    batch_size: int
    honest_fraction: Decimal = Decimal("0.9")  # costs 1 to 3% of regret (MATH 2)

    def __post_init__(self) -> None:
        require(self.epsilon.is_finite() and self.epsilon > 0, "epsilon", self.epsilon, "above 0")
        require(
            MIN_EPSILON <= self.epsilon <= MAX_EPSILON,
            "epsilon",
            self.epsilon,
            f"from {plain(MIN_EPSILON)} to {MAX_EPSILON}",
        )
        require(
            self.delta.is_finite() and 0 < self.delta < 1,
            "delta",
            self.delta,
            "between 0 and 1, both excluded",
        )
        require(self.delta >= MIN_DELTA, "delta", self.delta, f"at least {MIN_DELTA}")
        require(
            1 <= self.batch_size <= MAX_BATCH_SIZE,
            "batch_size",
            self.batch_size,
            f"a whole number from 1 to {MAX_BATCH_SIZE}",
        )
        require(
            self.honest_fraction.is_finite() and 0 < self.honest_fraction <= 1,
            "honest_fraction",
            self.honest_fraction,
            "in (0, 1]",
        )

    @property
    def honest(self) -> int:
        """h = max(1, floor(g m)), in exact arithmetic (MATH 2)."""
        return max(1, math.floor(Fraction(self.honest_fraction) * self.batch_size))

    @property
    def effective_epsilon(self) -> float:
        """The eps that the noise is made for."""
        return accounting.effective_epsilon(float(self.epsilon))
