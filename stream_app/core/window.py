"""Open windows: reports in, and a release when a window has exactly its scheduled size.

Pure and synchronous: which batches are open is told by `open` and `close`; each report is
`accept`ed or refused with a reason. A window holds the ids it has counted, the total of ones, and
where its first and last report stand in the log; of the rewards nothing else, and nothing leaves
before the window is full (README, "Who sees what").
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from stream_app.core.terms import MAX_INTEGER, Terms

MAX_DELTA_IDS = 32_768  # 512 KB


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
    bits: int
    ids: set[bytes] = field(default_factory=set)
    fresh: list[bytes] = field(default_factory=list)  # accepted since the last checkpoint
    total: int = 0
    fresh_total: int = 0
    first: Place | None = None
    last: Place | None = None
    fresh_first: Place | None = None
    reached: int = 0
    deltas: int = 0

    def accept(self, report_id: bytes, ones: int, offset: int, time_ms: int) -> Refusal | None:
        """Count a report, or say why not. The caller asks `full` next."""
        if not 0 <= ones <= self.bits:
            return Refusal.OUT_OF_RANGE
        if offset < self.reached:
            return Refusal.REREAD
        if report_id in self.ids:
            return Refusal.DUPLICATE
        self.ids.add(report_id)
        self.fresh.append(report_id)
        self.fresh_total += ones
        if self.fresh_first is None:
            self.fresh_first = place(offset, time_ms)
            self.first = self.first or self.fresh_first
        if len(self.ids) == self.size:
            self.last = place(offset, time_ms)
        return None

    def accept_all(self, ids: list[bytes], ones: list[int], first: Place, last: Place) -> bool:
        """Count reports in the order of the log, if `accept` would count each; else do nothing.

        Many times faster than one by one.
        """
        new = set(ids)
        if (
            len(new) < len(ids)
            or len(ids) > self.room
            or first.offset < self.reached
            or min(ones) < 0
            or max(ones) > self.bits
            or not self.ids.isdisjoint(new)
        ):
            return False
        self.ids |= new
        self.fresh += ids
        self.fresh_total += sum(ones)
        self.fresh_first = self.fresh_first or first
        self.first = self.first or first
        self.last = last
        return True

    @property
    def full(self) -> bool:
        """Whether the window has its scheduled size."""
        return len(self.ids) == self.size

    @property
    def room(self) -> int:
        """How many reports are missing."""
        return self.size - len(self.ids)

    def release(self) -> Release:
        """The result of a full window."""
        assert self.full
        assert self.first is not None
        assert self.last is not None
        return Release(
            self.batch_id,
            self.terms,
            self.total + self.fresh_total,
            digest(self.ids if self.deltas else self.fresh),  # the list is faster to walk
            self.first,
            self.last,
        )

    def checkpoint(self, position: int) -> list[Delta]:
        """What was accepted since the last checkpoint, all of it below `position`, in pieces."""
        if self.fresh_first is None:
            return []
        deltas = [
            Delta(
                self.batch_id,
                self.deltas + i,
                b"".join(self.fresh[start : start + MAX_DELTA_IDS]),
                self.fresh_total if start == 0 else 0,
                self.fresh_first,
                position,
            )
            for i, start in enumerate(range(0, len(self.fresh), MAX_DELTA_IDS))
        ]
        self.deltas += len(deltas)
        self.total += self.fresh_total
        self.fresh_total, self.fresh_first, self.reached = 0, None, position
        self.fresh.clear()
        return deltas

    def restore(self, delta: Delta) -> None:
        """Take up a checkpoint; deltas come in the order of their numbers."""
        self.ids.update(delta.ids[i : i + 16] for i in range(0, len(delta.ids), 16))
        self.total += delta.total
        self.first = self.first or delta.first
        self.reached, self.deltas = delta.reached, delta.number + 1


def place(offset: int, time_ms: int) -> Place:
    """A report's place. Its time may be its sender's word: kept within JSON's whole numbers."""
    return Place(offset, min(max(time_ms, 0), MAX_INTEGER))


def open_window(batch_id: str, terms: Terms) -> Window:
    """An empty window for a batch whose terms were checked."""
    mechanism = terms.mechanism
    key, size = terms.experiment.encode(), mechanism.promise.batch_size
    return Window(batch_id, terms, key, size, mechanism.bits)


def digest(ids: Iterable[bytes]) -> str:
    """SHA-256 over the sorted report ids: what an auditor compares."""
    halves = np.frombuffer(b"".join(ids), dtype=">u8").reshape(-1, 2)
    first = halves[:, 0].astype(np.uint64)
    order = np.argsort(first)
    if (np.diff(first[order]) == 0).any():  # two ids with the same first half: hardly ever
        order = np.lexsort((halves[:, 1].astype(np.uint64), first))
    return hashlib.sha256(halves[order].tobytes()).hexdigest()
