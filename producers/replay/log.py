"""A log as checked rows, in chunks: which arm was shown, what came of it, when, how likely.

Rows that say nothing (a value is missing, or is not what its column holds) are counted by reason
and left out. What shows that the columns were named wrongly ends the replay before it begins: an
arm that the experiment does not have, a reward outside [0, 1], a propensity outside (0, 1].
"""

import hashlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from producers.replay import columns as cells
from producers.replay.arrow import timestamps
from producers.replay.columns import Columns
from producers.replay.files import Source
from producers.replay.formats import detect
from producers.replay.log_format import LogFormat
from producers.replay.records import Table
from stream_app.core.experiment import MAX_ARMS
from stream_app.errors import ConfigurationError, InvalidInput

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
_FIRST_FEW = 3  # rows that a reason is shown with: enough to look one up, and still one line
_NO_ARM = -1  # among codes of arms, which count from 0
_LISTED = 8  # arms in a message that is to stay one line


@dataclass(frozen=True, slots=True)
class LoggedRows:
    """Consecutive usable rows."""

    start: int  # the first one's number among all usable rows, from 0
    arms: NDArray[np.int16]
    rewards: Floats
    times: Floats | None = None
    propensities: Floats | None = None

    def __len__(self) -> int:
        return len(self.arms)


@dataclass(slots=True)
class Skipped:
    """Rows that were left out for one reason, and where the first ones stand."""

    rows: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, source: str, numbers: Sequence[int] | NDArray[np.int64]) -> None:
        """Count some more."""
        for number in numbers[: _FIRST_FEW - len(self.first)]:
            self.first.append(f"{source}:{int(number)}")
        self.rows += len(numbers)


class SeenUsers:
    """Which users have had their event: 8 bytes of hash for each, in sorted runs (16 in a merge).

    The simple twin is a set, with which a test compares it; that takes 70 bytes for each user.
    Two users share a hash with probability n^2 / 2^65: 3e-6 for ten million users.
    """

    def __init__(self) -> None:
        self._runs: list[NDArray[np.uint64]] = []

    def first(self, hashes: NDArray[np.uint64]) -> Mask:
        """Which of these are the first of their user; they are seen from now on."""
        fresh = np.zeros(len(hashes), dtype=np.bool_)
        distinct, indices = np.unique(hashes, return_index=True)
        known = np.zeros(len(distinct), dtype=np.bool_)
        for run in self._runs:
            at = np.minimum(np.searchsorted(run, distinct), len(run) - 1)
            known |= run[at] == distinct
        fresh[indices[~known]] = True
        added = distinct[~known]
        if len(added):
            while self._runs and len(self._runs[-1]) <= len(added):
                added = np.concatenate([self._runs.pop(), added])
                added.sort()
            self._runs.append(added)
        return fresh


class _CheckedTable:
    """A table's rows while they are checked: which ones are still kept, and why others are not."""

    def __init__(self, source: str, table: Table, skipped: dict[str, Skipped]) -> None:
        self.source = source
        self.columns = table.columns
        self.numbers = table.numbers
        self.keep = np.ones(len(table.numbers), dtype=np.bool_)
        self._skipped = skipped
        for reason, number in table.unreadable:
            self._skip(reason, [number])

    def _skip(self, reason: str, numbers: Sequence[int] | NDArray[np.int64]) -> None:
        self._skipped.setdefault(reason, Skipped()).add(self.source, numbers)

    def drop(self, bad: Mask, reason: str) -> None:
        """Leave rows out for a reason."""
        dropped = self.keep & bad
        if dropped.any():
            self._skip(reason, self.numbers[dropped])
            self.keep &= ~bad

    def drop_without(self, what: str, column: str, bad: Mask) -> None:
        """Leave out rows that hold nothing in a column, or not what it should hold."""
        if not bad.any():
            return
        absent = self.columns[column].map(cells.missing, True, np.bool_)
        self.drop(bad & absent, f"no {what}")
        self.drop(bad & ~absent, f"not a {what}")

    def within(
        self, what: str, column: str, allowed: str, inside: Callable[[Floats], Mask]
    ) -> Floats:
        """A column's numbers. Raises InvalidInput where one is outside of what is allowed."""
        found: Floats = self.columns[column].map(cells.reward, None, np.float64)
        self.drop_without(what, column, np.isnan(found))
        outside = np.flatnonzero(self.keep & ~inside(found))
        if len(outside):
            first = outside[0]
            raise InvalidInput(
                f"{self.source}:{self.numbers[first]}: {what} = {found[first]:g}: must be {allowed}"
                f"; is --{what}-column {column} the right one?"
            )
        return found


class TrafficLog:
    """A log that can be read again and again; what it left out is of the newest reading."""

    def __init__(
        self,
        sources: Sequence[Source],
        columns: Columns,
        form: LogFormat | None = None,
        arms: Sequence[str] | None = None,
    ) -> None:
        self.sources = list(sources)
        self.form = detect(sources[0], form)
        self.columns = columns.with_defaults(self.form.columns)
        self._asked = form
        self._known_arms = None if arms is None else tuple(arms)
        self.arms: list[str] = list(arms or ())
        self._reset()

    def _reset(self) -> None:
        self.rows = 0
        self.filtered = 0
        self.skipped: dict[str, Skipped] = {}
        self._codes = {arm: i for i, arm in enumerate(self.arms)}
        self._seen = SeenUsers()
        self._usable = 0

    def chunks(self) -> Generator[LoggedRows, None, None]:
        """All usable rows in order; to be closed. Raises ConfigurationError, InvalidInput."""
        self._reset()
        for source in self.sources:
            form = detect(source, self._asked)
            for table in form.read(source, self.columns.named()):
                self.rows += len(table.numbers) + len(table.unreadable)
                chunk = self._checked(_CheckedTable(source.name, table, self.skipped))
                if len(chunk):
                    self._usable += len(chunk)
                    yield chunk
        if not self._usable:
            reasons = "; ".join(f"{r}: {s.rows}" for r, s in self.skipped.items())
            raise InvalidInput(
                f"{self.sources[0].name}: no usable row among {self.rows:,}"
                f"{f' ({reasons})' if reasons else ''}"
                f"{f'; --where left out {self.filtered:,}' if self.filtered else ''}"
            )

    def _checked(self, table: _CheckedTable) -> LoggedRows:
        for kept in self.columns.filters:
            column = table.columns[kept.column]
            table.keep &= column.map(kept.keeps, kept.keeps(None), np.bool_)
        self.filtered += int(np.sum(~table.keep))
        arms = self._arms(table)
        rewards = self._rewards(table)
        propensities = self._propensities(table)
        times = self._times(table)
        self._one_per_user(table)
        keep = table.keep
        return LoggedRows(
            self._usable,
            arms[keep],
            rewards[keep],
            None if times is None else times[keep],
            None if propensities is None else propensities[keep],
        )

    def _arms(self, table: _CheckedTable) -> NDArray[np.int16]:
        assert self.columns.arm is not None
        column = table.columns[self.columns.arm]
        used = np.zeros(len(column.values) + 1, dtype=np.bool_)
        used[column.codes[table.keep]] = True
        codes = [
            self._code(value, table, i) if used[i] else _NO_ARM
            for i, value in enumerate(column.values)
        ]
        arms: NDArray[np.int16] = np.array([*codes, _NO_ARM], dtype=np.int16)[column.codes]
        table.drop(arms == _NO_ARM, "no arm")
        return arms

    def _code(self, value: object, table: _CheckedTable, index: int) -> int:
        """An arm's code; `index` is the value's among the column's."""
        if cells.missing(value):
            return _NO_ARM
        arm = cells.text(value) or ""
        if self._known_arms:
            arm = self.form.arm_name(arm, self._known_arms)
        code = self._codes.get(arm)
        if code is not None:
            return code
        if self._known_arms is not None:
            rows = np.flatnonzero(table.columns[str(self.columns.arm)].codes == index)
            raise InvalidInput(
                f"{table.source}:{table.numbers[rows[0]]}: the experiment has no arm {arm[:80]!r}, "
                f"only {', '.join(self.arms[:_LISTED])}"
                f"{', ...' if len(self.arms) > _LISTED else ''}; "
                f"--where {self.columns.arm}=... keeps some rows only"
            )
        if len(self.arms) == MAX_ARMS:
            raise ConfigurationError(
                f"--arm-column {self.columns.arm}: more than {MAX_ARMS} different arms in "
                f"{table.source}; is it the right column?"
            )
        self.arms.append(arm)
        self._codes[arm] = len(self.arms) - 1
        return self._codes[arm]

    def _rewards(self, table: _CheckedTable) -> Floats:
        assert self.columns.reward is not None
        return table.within(
            "reward", self.columns.reward, "from 0 to 1", lambda r: (r >= 0) & (r <= 1)
        )

    def _propensities(self, table: _CheckedTable) -> Floats | None:
        if self.columns.propensity is None:
            return None
        return table.within(
            "propensity",
            self.columns.propensity,
            "above 0, at most 1",
            lambda p: (p > 0) & (p <= 1),
        )

    def _times(self, table: _CheckedTable) -> Floats | None:
        if self.columns.time is None:
            return None
        found = timestamps(table.columns[self.columns.time])
        table.drop_without("time", self.columns.time, np.isnan(found))
        return found

    def _one_per_user(self, table: _CheckedTable) -> None:
        if self.columns.user is None:
            return
        column = table.columns[self.columns.user]
        table.drop(column.map(cells.missing, True, np.bool_), "no user")
        hashes = np.append(_hashes(column.values), np.uint64(0))[column.codes]
        kept = np.flatnonzero(table.keep)
        again = np.zeros(len(table.keep), dtype=np.bool_)
        again[kept[~self._seen.first(hashes[kept])]] = True
        table.drop(again, "user seen before")


def _hashes(values: Sequence[object]) -> NDArray[np.uint64]:
    texts = [value if type(value) is str else cells.text(value) or "" for value in values]
    digests = [hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts]
    return np.frombuffer(b"".join(digests), dtype=np.uint64)
