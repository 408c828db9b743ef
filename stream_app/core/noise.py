"""The centred noise of a batch's total, as confidence bounds and simulations need it.

What they need to know of a mechanism, and nothing more: each mechanism brings a `Noise` of its own.
Every field may be a number or an array with one entry per batch; `theta` broadcasts against it.
Formulas: MATH 4.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Where log_mgf is finite for every theta, this only keeps e^theta from overflowing.
UNLIMITED = 30.0


@dataclass(frozen=True, slots=True)
class Noise(ABC):
    """The centred noise B - E[B] of one batch, or of several."""

    @property
    @abstractmethod
    def limit(self) -> float:
        """log_mgf is finite for |theta| below this."""

    @abstractmethod
    def log_mgf(self, theta: Floats) -> Floats:
        """psi(theta) = log E exp(theta (B - E B))."""

    @abstractmethod
    def draw(self, count: int, rng: np.random.Generator) -> Floats:
        """Centred totals of one batch, `count` times. From numpy: a simulation protects nobody."""

    def both_sides(self, theta: Floats) -> tuple[Floats, Floats]:
        """psi(theta) and psi(-theta)."""
        return self.log_mgf(theta), self.log_mgf(-theta)

    def head(self, batches: int) -> Self:
        """The first entries of stacked noise."""
        names = [field.name for field in dataclasses.fields(self)]
        return dataclasses.replace(self, **{name: getattr(self, name)[:batches] for name in names})


class SymmetricNoise(Noise):
    """Noise for which psi(theta) = psi(-theta): computed once."""

    __slots__ = ()

    def both_sides(self, theta: Floats) -> tuple[Floats, Floats]:
        """See `Noise`."""
        psi = self.log_mgf(theta)
        return psi, psi


@dataclass(frozen=True, slots=True)
class NoNoise(SymmetricNoise):
    """No noise at all, for baselines without privacy; `batches` only gives the array its shape."""

    batches: float | Floats = 0.0

    @property
    def limit(self) -> float:
        """Finite everywhere."""
        return UNLIMITED

    def log_mgf(self, theta: Floats) -> Floats:
        """See `Noise`."""
        return np.zeros_like(theta)

    def draw(self, count: int, rng: np.random.Generator) -> Floats:
        """See `Noise`."""
        return np.zeros(count)


def stack(noises: Sequence[Noise]) -> Noise:
    """One value whose fields hold one entry per batch; all noises are of one kind."""
    first = noises[0]
    entries = {
        field.name: np.array([float(getattr(noise, field.name)) for noise in noises])
        for field in dataclasses.fields(first)
    }
    return dataclasses.replace(first, **entries)
