"""Open windows: reports in, and a release when a window has exactly its scheduled size.

Pure and synchronous: which batches are open is told by `open` and `close`; each report is
`accept`ed or refused with a reason. A window holds the ids it has counted, the total of ones, and
where its first and last report stand in the log; of the rewards nothing else, and nothing leaves
before the window is full (README, "How it works").
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from stream_app.core.ids import Ids
from stream_app.core.terms import MAX_INTEGER, Terms

MAX_DELTA_IDS = 32_768  # 512 KB
_T = TypeVar("_T")


class Refusal(StrEnum):
    """Why a report was not counted."""

    MALFORMED = "malformed"
    OVERSIZED = "oversized"
    WRONG_KEY = "wrong_key"
    UNKNOWN_BATCH = "unknown_batch"
    LATE = "late"
    DUPLICATE = "duplicate"
    OUT_OF_RANGE = "out_of_range"
    REREAD = "reread"  # in a checkpoint already: read again after a restart, counted once


@dataclass(frozen=True, slots=True)
class Place:
    """Where a report stands in the log."""

    offset: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class Release:
    """A full window's result: the only thing that is ever learned of it."""

    batch_id: str
    terms: Terms
    total: int
    digest: str  # SHA-256 of the sorted report ids
    first: Place
    last: Place


@dataclass(frozen=True, slots=True)
class Delta:
    """What a window accepted since its last checkpoint; together they restore it."""

    batch_id: str
    number: int
    ids: bytes  # 16 bytes each
    total: int
    first: Place
    reached: int  # reports below this offset are in this or an earlier delta, or were refused


@dataclass(slots=True)
class Window:
    """One open batch."""

    batch_id: str
    terms: Terms
    key: bytes
    size: int
    max_ones: int
    ids: Ids = field(default_factory=Ids)
    fresh: bytearray = field(default_factory=bytearray)  # ids since the last checkpoint
    total: int = 0
    unsaved_total: int = 0
    first: Place | None = None
    last: Place | None = None
    unsaved_first: Place | None = None
    reached: int = 0
    deltas: int = 0
    room: int = field(init=False)  # how many reports are missing

    def __post_init__(self) -> None:
        self.room = self.size - len(self.ids)

    def accept(self, report_id: bytes, ones: int, offset: int, time_ms: int) -> Refusal | None:
        """Count a report, or say why not. The caller asks `full` next."""
        where = place(offset, time_ms)
        return next(iter(self.accept_all([report_id], [ones], [0], lambda _: where)), None)

    def accept_all(
        self,
        ids: Sequence[bytes],
        ones: Sequence[int],
        indices: Sequence[int],
        where: Callable[[int], Place],
    ) -> Mapping[Refusal, int]:
        """Count reports in the order of the log, at most as many as there is room for.

        `where` tells the place of each by its index. Returns how many were refused, by reason.
        """
        refused: dict[int, Refusal] = {}
        if (
            min(ones) < 0
            or max(ones) > self.max_ones
            or (self.reached and where(indices[0]).offset < self.reached)
        ):
            refused = self._misfits(ones, indices, where)
            left = [i for i, index in enumerate(indices) if index not in refused]
            ids = _some(ids, left)
            ones = _some(ones, left)
            indices = _some(indices, left)
        if known := self.ids.add_all(ids):
            refused |= {indices[i]: Refusal.DUPLICATE for i in known}
            left = sorted(set(range(len(ids))).difference(known))
            ids = _some(ids, left)
            ones = _some(ones, left)
            indices = _some(indices, left)
        if ids:
            self.room -= len(ids)
            self.fresh += b"".join(ids)
            self.unsaved_total += sum(ones)
            if self.unsaved_first is None:
                self.unsaved_first = where(indices[0])
                self.first = self.first or self.unsaved_first
            if not self.room:
                self.last = where(indices[-1])
        return Counter(refused.values()) if refused else {}

    def _misfits(
        self, ones: Sequence[int], indices: Sequence[int], where: Callable[[int], Place]
    ) -> dict[int, Refusal]:
        """The reports that no window counts, or that this one has seen."""
        seen = [i for i in indices if where(i).offset < self.reached]
        wrong = [
            i for i, count in zip(indices, ones, strict=True) if not 0 <= count <= self.max_ones
        ]
        return dict.fromkeys(seen, Refusal.REREAD) | dict.fromkeys(wrong, Refusal.OUT_OF_RANGE)

    @property
    def full(self) -> bool:
        """Whether the window has its scheduled size."""
        return not self.room

    def release(self) -> Release:
        """The result of a full window."""
        assert self.full
        assert self.first is not None
        assert self.last is not None
        return Release(
            self.batch_id,
            self.terms,
            self.total + self.unsaved_total,
            self.ids.digest(),
            self.first,
            self.last,
        )

    def checkpoint(self, position: int) -> list[Delta]:
        """What was accepted since the last checkpoint, all of it below `position`, in pieces."""
        if self.unsaved_first is None:
            return []
        deltas = [
            Delta(
                self.batch_id,
                self.deltas + i,
                bytes(self.fresh[start : start + 16 * MAX_DELTA_IDS]),
                self.unsaved_total if start == 0 else 0,
                self.unsaved_first,
                position,
            )
            for i, start in enumerate(range(0, len(self.fresh), 16 * MAX_DELTA_IDS))
        ]
        self.deltas += len(deltas)
        self.total += self.unsaved_total
        self.unsaved_total = 0
        self.unsaved_first = None
        self.reached = position
        self.fresh.clear()
        return deltas

    def restore(self, delta: Delta) -> None:
        """Take up a checkpoint; deltas come in the order of their numbers."""
        self.ids.add_all([delta.ids[i : i + 16] for i in range(0, len(delta.ids), 16)])
        self.room = self.size - len(self.ids)
        self.total += delta.total
        self.first = self.first or delta.first
        self.reached = delta.reached
        self.deltas = delta.number + 1


def _some(column: Sequence[_T], places: Sequence[int]) -> list[_T]:
    return [column[i] for i in places]


def place(offset: int, time_ms: int) -> Place:
    """A report's place. Its time may be its sender's word: kept within JSON's whole numbers."""
    return Place(offset, min(max(time_ms, 0), MAX_INTEGER))


def open_window(batch_id: str, terms: Terms) -> Window:
    """An empty window for a batch whose terms were checked."""
    mechanism = terms.mechanism
    key = terms.experiment.encode()
    size = mechanism.promise.batch_size
    return Window(batch_id, terms, key, size, mechanism.max_ones)
