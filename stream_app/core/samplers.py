"""How a client draws its share of the noise: tables, and samplers over the system's randomness.

Every sampler takes 64 random bits at a time, each used once, so that a client in another language
gets the same noise from the same draws (producers/PROTOCOL.md, "Noise").
"""

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from stream_app.core import accounting
from stream_app.errors import ConfigurationError

Entropy = Callable[[int], bytes]
_BLOCK_BYTES = 2048


@lru_cache(maxsize=64)
def laplace_table(honest: int, epsilon: Decimal, clip: int, bits: int) -> tuple[int, ...]:
    """2**bits P(c + clip(X - Y, -c, c) <= j) for j = 0..2c-1, each rounded to nearest.

    a_d = P(X - Y = d) satisfies, by its generating function ((1-p)^2 / ((1-pz)(1-p/z)))^r, r = 1/h:
    p (d-1+r) a_(d-1) = (1+p^2) d a_d - p (d+1-r) a_(d+1). It is the decaying solution, so the
    recurrence is run downward from far out (Miller's algorithm), where it is stable, and divided
    by its sum. With 48 bits and 10 digits to spare, every entry is right to the last bit.
    """
    with localcontext() as context:
        context.prec = int(bits * 0.302) + 40
        eps = min(epsilon, Decimal(accounting.MAX_EPSILON))
        r = Decimal(1) / honest
        p = (-eps).exp()
        centre = 1 + p * p
        start = clip + math.ceil((bits + 48) * math.log(2) / float(eps)) + 2
        above = Decimal(0)
        here = Decimal(1)
        tail = Decimal(0)
        tails = [Decimal(0)] * (clip + 1)
        for d in range(start, 0, -1):
            tail += here
            if d <= clip:
                tails[d] = tail
            below = (centre * d * here - p * (d + 1 - r) * above) / (p * (d - 1 + r))
            above = here
            here = below
        whole = here + 2 * tail
        scale = Decimal(1 << bits) / whole
        lower = [int((tail * scale).to_integral_value(ROUND_HALF_EVEN)) for tail in tails[1:]]
    return tuple(reversed(lower)) + tuple((1 << bits) - entry for entry in lower)


class Sampler(ABC):
    """Encodes rewards with fresh noise, drawing randomness in blocks (one system call for many)."""

    __slots__ = ("_draws", "_entropy")

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy
        self._draws: list[int] = []  # the next one last

    def draw(self) -> int:
        """64 random bits, each used once."""
        if not self._draws:
            self._draws = _draws(self._entropy(_BLOCK_BYTES)).tolist()
        return self._draws.pop()

    def discard(self) -> None:
        """Forget drawn randomness: a forked process must not use its parent's."""
        self._draws.clear()

    @abstractmethod
    def noise(self) -> int:
        """The user's own share of the noise."""

    def encode(self, reward: float) -> int:
        """The report: the reward, rounded to one bit at random (MATH 8), plus the noise share."""
        if reward == 0:
            return self.noise()
        if reward == 1:
            return 1 + self.noise()
        if not 0 < reward < 1:
            raise ConfigurationError("reward: must be in [0, 1]")
        return (self.draw() < int(reward * accounting.ONE)) + self.noise()


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


class WideTableSampler(Sampler):
    """Inversion by 128 bits, low half first: the number of table entries that are at most those."""

    __slots__ = ("_table",)

    def __init__(self, table: tuple[int, ...], entropy: Entropy) -> None:
        super().__init__(entropy)
        self._table = table

    def noise(self) -> int:
        """See `Sampler`."""
        low = self.draw()
        return bisect_right(self._table, low | self.draw() << 64)


class TableSampler(Sampler):
    """Inversion: the number of table entries that are at most the draw, for a block at once."""

    __slots__ = ("_block", "_shares", "_steps")

    def __init__(self, table: tuple[int, ...], entropy: Entropy) -> None:
        super().__init__(entropy)
        # An entry of 2**64 is above all draws.
        self._steps = np.array([entry for entry in table if entry < 1 << 64], np.uint64)
        self._block = _draws(b"")
        self._shares: list[int] = []  # of the draws that are left

    def draw(self) -> int:
        """See `Sampler`."""
        self.noise()
        return int(self._block[len(self._shares)])

    def discard(self) -> None:
        """See `Sampler`."""
        self._shares.clear()

    def noise(self) -> int:
        """See `Sampler`."""
        if not self._shares:
            self._block = _draws(self._entropy(_BLOCK_BYTES))
            self._shares = np.searchsorted(self._steps, self._block, side="right").tolist()
        return self._shares.pop()

    def encode(self, reward: float) -> int:
        """See `Sampler`; for every user, so that the usual case calls nothing."""
        if self._shares:
            if reward == 0:
                return self._shares.pop()
            if reward == 1:
                return 1 + self._shares.pop()
        return super().encode(reward)


def _draws(randomness: bytes) -> npt.NDArray[np.uint64]:
    """A block of draws, the next one last."""
    return np.frombuffer(randomness, "<u8")[::-1]
