"""How a client draws its share of the noise: samplers over the operating system's randomness.

Every sampler takes 64 random bits at a time, each used once, so that a client in another language
gets the same noise from the same draws (producers/PROTOCOL.md, "Noise"). What holds for one
mechanism only is in its own module; here is what several can use.
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from stream_app.core import accounting
from stream_app.errors import ConfigurationError

# So many random bytes. For a person's report always the operating system's (`secrets`); a replay
# and the tests give others.
Entropy = Callable[[int], bytes]
# So many users' shares at once, in the order in which a `Sampler` over the same entropy draws them.
ManyShares = Callable[[int], npt.NDArray[np.int64]]
# 256 draws: the system call is shared by so many reports, and a forked child discards little.
_BLOCK_BYTES = 2048


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
    """Inversion: the number of table entries that are at most the draw, for a block at once.

    Its simple twin is `bisect_right` for every draw (tests/core/test_samplers.py compares).
    """

    __slots__ = ("_block", "_shares", "_steps")

    def __init__(self, table: tuple[int, ...], entropy: Entropy) -> None:
        super().__init__(entropy)
        self._steps = _steps(table)
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


def many_by_table(table: tuple[int, ...], bits: int, entropy: Entropy) -> ManyShares:
    """The shares that a sampler with this table would draw from this entropy, many at once."""
    steps = _steps(table)

    def narrow(count: int) -> npt.NDArray[np.int64]:
        return np.searchsorted(steps, np.frombuffer(entropy(8 * count), "<u8"), side="right")

    def wide(count: int) -> npt.NDArray[np.int64]:
        drawn = entropy(16 * count)
        numbers = [int.from_bytes(drawn[i : i + 16], "little") for i in range(0, len(drawn), 16)]
        return np.array([bisect_right(table, number) for number in numbers], np.int64)

    return narrow if bits == 64 else wide


def _steps(table: tuple[int, ...]) -> npt.NDArray[np.uint64]:
    """The entries that a 64-bit draw can reach: one of 2**64 is above all draws."""
    return np.array([entry for entry in table if entry < 1 << 64], np.uint64)


def _draws(randomness: bytes) -> npt.NDArray[np.uint64]:
    """A block of draws, the next one last."""
    return np.frombuffer(randomness, "<u8")[::-1]
