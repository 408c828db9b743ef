"""Log-moment generating functions of a batch's centred noise, over many batches at once.

What confidence bounds need to know of a mechanism, and nothing more. Every field may be a number
or an array with one entry per batch; `theta` broadcasts against it. Formulas: MATH 4.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Noise(Protocol):
    """The centred noise of one batch, or of several."""

    @property
    def limit(self) -> float:
        """log_mgf is finite for |theta| below this."""

    def log_mgf(self, theta: Floats) -> Floats:
        """psi(theta) = log E exp(theta (B - E B))."""


@dataclass(frozen=True, slots=True)
class BinomialNoise:
    """B ~ Bin(trials, success): psi = n log(1 + q(e^theta - 1)) - n q theta."""

    trials: float | Floats
    success: float | Floats

    @property
    def limit(self) -> float:
        """Finite everywhere; the bound only keeps e^theta from overflowing."""
        return 30.0

    def log_mgf(self, theta: Floats) -> Floats:
        """See `Noise`."""
        grown = np.log1p(self.success * np.expm1(theta))
        psi: Floats = self.trials * (grown - self.success * theta)
        return psi


@dataclass(frozen=True, slots=True)
class LaplaceNoise:
    """B = the sum of m users' shares of a discrete Laplace, shape = m / honest users.

    (m/h)[2 log(1-p) - log(1 - p e^theta) - log(1 - p e^-theta)] with p = e^-eps, written without
    cancellation as -(m/h) log(1 - (sinh(theta/2) / sinh(eps/2))^2). It bounds the clipped noise
    too: the shares are symmetric, and clipping lowers cosh.
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


@dataclass(frozen=True, slots=True)
class NoNoise:
    """No noise at all, for baselines without privacy; `batches` only gives the array its shape."""

    batches: float | Floats = 0.0

    @property
    def limit(self) -> float:
        """Finite everywhere; the bound only keeps e^theta from overflowing."""
        return 30.0

    def log_mgf(self, theta: Floats) -> Floats:
        """See `Noise`."""
        return np.zeros_like(theta)


AnyNoise = BinomialNoise | LaplaceNoise | NoNoise


def both_sides(noise: AnyNoise, theta: Floats) -> tuple[Floats, Floats]:
    """psi(theta) and psi(-theta); they are one where the noise is symmetric."""
    psi = noise.log_mgf(theta)
    return psi, noise.log_mgf(-theta) if isinstance(noise, BinomialNoise) else psi


def head(noise: AnyNoise, batches: int) -> AnyNoise:
    """The first entries of stacked noise."""
    return type(noise)(*(getattr(noise, f)[:batches] for f in noise.__dataclass_fields__))


def stack(noises: Sequence[AnyNoise]) -> AnyNoise:
    """One value whose fields hold one entry per batch; all noises are of one kind."""
    first = noises[0]
    fields = first.__dataclass_fields__
    return type(first)(*(np.array([float(getattr(n, f)) for n in noises]) for f in fields))
