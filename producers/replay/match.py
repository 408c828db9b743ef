"""Which rows of a log an agent gets: the three modes. No agent, noise or Kafka here.

The agent asks for so many users of some arms at once; a matcher gives it rows of its log.

- `rejection` (Li, Chu, Langford and Wang 2011): rows in order; one counts when its arm is asked
  for and still needed, else it is gone. Where several arms are asked for at once, the log's own
  random choice stands for the client's.
- `weighted`: a row of arm a first survives with probability c_a / p, p its propensity and c_a the
  least of that arm. Then P(survives with arm a | user) = c_a for every user, so that whoever was
  shown what and why, an arm's surviving rows are a fair sample of all users; `rejection` follows.
- `queue`: every arm's rows wait in line; none is lost. For logs whose order does not matter.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import IO, Protocol

import numpy as np
from numpy.typing import NDArray

from producers.replay.log import Floats, LoggedRows

_SPOOL_BYTES = 1 << 22  # of all lines in memory; the rest is in temporary files
# A row that waits in line: 24 bytes, with little-endian numbers wherever it runs.
_WAITING = np.dtype([("reward", "<f8"), ("row", "<i8"), ("time", "<f8")])
# c_a / p is 1 for the row that has the least p; more than this above 1 is not rounding.
_ROUNDING = 1e-9


class Mode(StrEnum):
    """How rows are matched with what the agent asks for."""

    REJECTION = "rejection"
    WEIGHTED = "weighted"
    QUEUE = "queue"


@dataclass(frozen=True, slots=True)
class Taken:
    """Rows of one arm that the agent gets, in order."""

    rewards: Floats
    rows: NDArray[np.int64]  # numbers among all usable rows, from 0
    times: Floats  # nan without a time column


@dataclass(frozen=True, slots=True)
class RowPosition:
    """How far a matcher has come: rows behind it, and rows it gave of each arm."""

    row: int
    taken: tuple[int, ...]


class Matcher(Protocol):
    """Gives an agent the rows it asks for."""

    @property
    def position(self) -> RowPosition:
        """Where it stands; a new matcher that `begins` there goes on the same."""

    def feed(self, chunk: LoggedRows) -> None:
        """The log's next rows; the ones before must be used up."""

    def take(self, needs: Mapping[int, int]) -> dict[int, Taken]:
        """Up to so many rows of each arm; less means that it must be fed."""


def make(mode: Mode, arms: int, floors: Floats | None, seed: int, begins: RowPosition) -> Matcher:
    """The matcher of a mode; `floors` are the c_a of `weighted`."""
    if mode is Mode.QUEUE:
        return Queues(arms, begins)
    thinning = None
    if mode is Mode.WEIGHTED:
        assert floors is not None
        thinning = Thinning(floors, seed)
    return RowsInOrder(arms, thinning, begins)


class Thinning:
    """Keeps a row with probability c_a / p, by a seeded draw that belongs to its number."""

    def __init__(self, floors: Floats, seed: int) -> None:
        self._floors = floors
        self._seed = seed
        self.kept = 0
        self.seen = 0
        self.capped = 0

    def keeps(self, chunk: LoggedRows) -> NDArray[np.bool_]:
        """Which rows stay."""
        assert chunk.propensities is not None
        draws = np.random.Generator(np.random.PCG64(self._seed).advance(chunk.start))
        chance = self._floors[chunk.arms] / chunk.propensities
        kept: NDArray[np.bool_] = draws.random(len(chunk)) < chance
        self.seen += len(chunk)
        self.kept += int(kept.sum())
        self.capped += int(np.sum(chance > 1 + _ROUNDING))
        return kept


class RowsInOrder:
    """`rejection` and `weighted`: rows in order, each used or gone."""

    def __init__(self, arms: int, thinning: Thinning | None, begins: RowPosition) -> None:
        self.thinning = thinning
        self._begins = begins.row
        self._row = begins.row
        self._taken = list(begins.taken)
        self._chunk = LoggedRows(0, np.empty(0, np.int16), np.empty(0))
        self._of: list[NDArray[np.int64]] = [np.empty(0, np.int64)] * arms

    @property
    def position(self) -> RowPosition:
        """The next row to look at."""
        return RowPosition(self._row, tuple(self._taken))

    def feed(self, chunk: LoggedRows) -> None:
        """The log's next rows."""
        kept = np.arange(len(chunk)) + chunk.start >= self._begins
        if self.thinning is not None:
            kept &= self.thinning.keeps(chunk)
        indices = np.flatnonzero(kept)
        order = indices[np.argsort(chunk.arms[indices], kind="stable")]
        bounds = np.searchsorted(chunk.arms[order], np.arange(len(self._of) + 1))
        self._of = [order[a:b] for a, b in pairwise(bounds.tolist())]
        self._chunk = chunk
        self._row = max(chunk.start, self._begins)

    def take(self, needs: Mapping[int, int]) -> dict[int, Taken]:
        """The next rows of these arms; the cursor ends behind the last of them."""
        chunk = self._chunk
        here = self._row - chunk.start
        found = {}
        last = here
        satisfied = True
        for arm, need in needs.items():
            first = int(np.searchsorted(self._of[arm], here))
            indices = self._of[arm][first : first + need]
            satisfied &= len(indices) == need
            if len(indices):
                found[arm] = _taken(chunk, indices)
                self._taken[arm] += len(indices)
                last = max(last, int(indices[-1]) + 1)
        self._row = chunk.start + (last if satisfied else len(chunk))
        return found


class Queues:
    """`queue`: a line of waiting rows for each arm."""

    def __init__(self, arms: int, begins: RowPosition) -> None:
        self._lines = [_Line(_SPOOL_BYTES // arms) for _ in range(arms)]
        self._taken = list(begins.taken)
        self._row = 0
        self._skip = list(begins.taken)

    @property
    def position(self) -> RowPosition:
        """How many of each arm are used."""
        return RowPosition(self._row, tuple(self._taken))

    def feed(self, chunk: LoggedRows) -> None:
        """More rows for the lines."""
        for arm in np.unique(chunk.arms).tolist():
            indices = np.flatnonzero(chunk.arms == arm)
            gone = min(self._skip[arm], len(indices))
            self._skip[arm] -= gone
            self._lines[arm].put(_taken(chunk, indices[gone:]))
        self._row = chunk.start + len(chunk)

    def take(self, needs: Mapping[int, int]) -> dict[int, Taken]:
        """From the heads of the lines."""
        found = {}
        for arm, need in needs.items():
            given = self._lines[arm].get(need)
            if len(given.rows):
                found[arm] = given
                self._taken[arm] += len(given.rows)
        return found


class _Line:
    """A line of rows, first in first out; a long one waits on disk, so that memory stays flat."""

    def __init__(self, spool_bytes: int) -> None:
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(spool_bytes)  # noqa: SIM115
        self._read = 0
        self._written = 0

    def put(self, rows: Taken) -> None:
        """At the end."""
        block = np.empty(len(rows.rows), dtype=_WAITING)
        block["reward"] = rows.rewards
        block["row"] = rows.rows
        block["time"] = rows.times
        self._file.seek(self._written * _WAITING.itemsize)
        self._file.write(block.tobytes())
        self._written += len(block)

    def get(self, count: int) -> Taken:
        """From the beginning; fewer if there are no more."""
        count = min(count, self._written - self._read)
        self._file.seek(self._read * _WAITING.itemsize)
        block = np.frombuffer(self._file.read(count * _WAITING.itemsize), dtype=_WAITING)
        self._read += count
        return Taken(block["reward"], block["row"], block["time"])


def _taken(chunk: LoggedRows, indices: NDArray[np.int64]) -> Taken:
    times = np.full(len(indices), np.nan) if chunk.times is None else chunk.times[indices]
    return Taken(chunk.rewards[indices], indices + chunk.start, times)
