"""Sets of report ids, 16 bytes each, in a third of the memory that a Python set of them takes.

The simple twin is that Python set; a test compares the two, id by id.
"""

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

# A Python set, up to here: at most half a megabyte (a test holds it), and nothing to sort.
_SMALL = 4_096

_Words = NDArray[np.uint64]
_NONE: _Words = np.empty(0, np.uint64)


class Ids:
    """A set that only grows: its newest ids in a Python set, once there are many at most a fifth
    of all; the others in two arrays, their first and second halves, sorted.
    """

    __slots__ = ("_high", "_low", "_recent")

    def __init__(self, ids: Iterable[bytes] = ()) -> None:
        self._recent = set(ids)
        self._high = _NONE
        self._low = _NONE

    def __len__(self) -> int:
        return len(self._recent) + len(self._high)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ids) and self.sorted() == other.sorted()

    __hash__ = None  # type: ignore[assignment]

    def add_all(self, ids: Sequence[bytes]) -> list[int]:
        """Add ids; the indices of those that were there already, or earlier in the list."""
        recent = self._recent
        known = self._indices_in_arrays(ids) if self._high is not _NONE else ()
        again: list[int] = []
        if not known and recent.isdisjoint(ids):
            before = len(recent)
            recent.update(ids)
            if len(recent) - before < len(ids):
                first = {one: index for index, one in reversed([*enumerate(ids)])}
                again = [index for index, one in enumerate(ids) if first[one] != index]
        else:
            for index, one in enumerate(ids):
                if index in known or one in recent:
                    again.append(index)
                else:
                    recent.add(one)
        if len(recent) > _SMALL and len(recent) > len(self._high) // 4:
            self._high, self._low = self._all()
            self._recent = set()
        return again

    def _indices_in_arrays(self, ids: Sequence[bytes]) -> set[int]:
        """The indices of the ids that are in the arrays."""
        high, low = _halves(ids)
        # As a rule there is none, and in order that is found sooner.
        if not self._first_halves(np.sort(high))[1].any():
            return set()
        rows, matches = self._first_halves(high)
        found = matches & (self._low[rows] == low)
        return {i for i in np.flatnonzero(matches).tolist() if found[i] or self._holds(ids[i])}

    def _first_halves(self, high: _Words) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """The rows where first halves are in the arrays, or would be, and which of them are."""
        rows = np.minimum(np.searchsorted(self._high, high), len(self._high) - 1)
        return rows, self._high[rows] == high

    def _holds(self, one: bytes) -> bool:
        """Whether an id is in the arrays, where others share its first half: hardly ever asked."""
        [high], [low] = _halves([one])
        start, stop = (int(np.searchsorted(self._high, high, side)) for side in ("left", "right"))
        row = start + int(np.searchsorted(self._low[start:stop], low))
        return row < stop and bool(self._low[row] == low)

    def _all(self) -> tuple[_Words, _Words]:
        """All ids, in order: the newest are sorted, then merged, which is fast."""
        merged = _ordered(*_halves(self._recent))
        if len(self._high):
            pairs = zip((self._high, self._low), merged, strict=True)
            merged = _ordered(*(np.concatenate(pair) for pair in pairs))
        return merged

    def sorted(self) -> bytes:
        """All ids in their order, one after the other."""
        return np.stack(self._all(), axis=1).astype(">u8").tobytes()

    def digest(self) -> str:
        """SHA-256 over the sorted ids: what an auditor compares."""
        return hashlib.sha256(self.sorted()).hexdigest()


def _ordered(high: _Words, low: _Words) -> tuple[_Words, _Words]:
    order = np.argsort(high, kind="stable")
    if (np.diff(high[order]) == 0).any():  # two ids with the same first half: hardly ever
        order = np.lexsort((low, high))
    return high[order], low[order]


def _halves(ids: Iterable[bytes]) -> tuple[_Words, _Words]:
    words = np.frombuffer(b"".join(ids), ">u8").astype(np.uint64)
    return words[::2], words[1::2]
