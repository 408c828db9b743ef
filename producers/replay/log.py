"""A log as checked rows, in chunks: which arm was shown, what came of it, when, how likely.

Rows that say nothing (a value is missing, or is not what its column holds) are counted by reason
and left out. What shows that the columns were named wrongly ends the replay before it begins: an
arm that the experiment does not have, a reward outside [0, 1], a propensity outside (0, 1].
"""

import hashlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from producers.replay import columns as cells
from producers.replay.arrow import timestamps
from producers.replay.columns import Columns
from producers.replay.files import Source
from producers.replay.formats import detect
from producers.replay.log_format import LogFormat
from producers.replay.records import Column, Table
from stream_app.core.experiment import MAX_ARMS
from stream_app.errors import ConfigurationError, InvalidInput

Floats = NDArray[np.float64]
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

    def first(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
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
                chunk = self._checked(source.name, table)
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

    def _checked(self, name: str, table: Table) -> LoggedRows:
        numbers = table.numbers
        columns = self.columns
        self.rows += len(numbers) + len(table.unreadable)
        for reason, number in table.unreadable:
            self._skip(reason, name, [number])
        keep = np.ones(len(numbers), dtype=np.bool_)
        for kept in columns.filters:
            keep &= table.columns[kept.column].map(kept.keeps, kept.keeps(None), np.bool_)
        self.filtered += int(np.sum(~keep))
        arms = self._arms(name, table, keep)
        rewards = self._rewards(name, table, keep)
        propensities = self._propensities(name, table, keep)
        times = self._times(name, table, keep)
        self._one_per_user(name, table, keep)
        return LoggedRows(
            self._usable,
            arms[keep],
            rewards[keep],
            None if times is None else times[keep],
            None if propensities is None else propensities[keep],
        )

    def _skip(self, reason: str, name: str, numbers: Sequence[int] | NDArray[np.int64]) -> None:
        self.skipped.setdefault(reason, Skipped()).add(name, numbers)

    def _drop(
        self, keep: NDArray[np.bool_], bad: NDArray[np.bool_], reason: str, name: str, table: Table
    ) -> None:
        """Leave rows out for a reason; `keep` changes."""
        dropped = keep & bad
        if dropped.any():
            self._skip(reason, name, table.numbers[dropped])
            keep &= ~bad

    def _arms(self, name: str, table: Table, keep: NDArray[np.bool_]) -> NDArray[np.int16]:
        assert self.columns.arm is not None
        column = table.columns[self.columns.arm]
        used = np.zeros(len(column.values) + 1, dtype=np.bool_)
        used[column.codes[keep]] = True
        codes = [
            self._code(value, name, table, column, i) if used[i] else _NO_ARM
            for i, value in enumerate(column.values)
        ]
        arms: NDArray[np.int16] = np.array([*codes, _NO_ARM], dtype=np.int16)[column.codes]
        self._drop(keep, arms == _NO_ARM, "no arm", name, table)
        return arms

    def _code(self, value: object, name: str, table: Table, column: Column, index: int) -> int:
        """An arm's code; `index` is the value's among the column's."""
        if cells.missing(value):
            return _NO_ARM
        arm = cells.text(value) or ""
        if self._known_arms:
            arm = self.form.arm_name(arm, self._known_arms)
        code = self._codes.get(arm)
        if code is not None:
            return code
        line = int(table.numbers[np.flatnonzero(column.codes == index)[0]])
        if self._known_arms is not None:
            raise InvalidInput(
                f"{name}:{line}: the experiment has no arm {arm[:80]!r}, only "
                f"{', '.join(self.arms[:_LISTED])}{', ...' if len(self.arms) > _LISTED else ''}; "
                f"--where {self.columns.arm}=... keeps some rows only"
            )
        if len(self.arms) == MAX_ARMS:
            raise ConfigurationError(
                f"--arm-column {self.columns.arm}: more than {MAX_ARMS} different arms in {name}; "
                "is it the right column?"
            )
        self.arms.append(arm)
        self._codes[arm] = len(self.arms) - 1
        return self._codes[arm]

    def _rewards(self, name: str, table: Table, keep: NDArray[np.bool_]) -> Floats:
        assert self.columns.reward is not None
        rewards = table.columns[self.columns.reward].map(cells.reward, None, np.float64)
        self._no_value(self.columns.reward, "reward", np.isnan(rewards), keep, name, table)
        bad = keep & ~((rewards >= 0) & (rewards <= 1))
        self._refuse(bad, "reward", "from 0 to 1", rewards, name, table)
        found: Floats = rewards
        return found

    def _propensities(self, name: str, table: Table, keep: NDArray[np.bool_]) -> Floats | None:
        if self.columns.propensity is None:
            return None
        found: Floats = table.columns[self.columns.propensity].map(cells.reward, None, np.float64)
        self._no_value(self.columns.propensity, "propensity", np.isnan(found), keep, name, table)
        bad = keep & ~((found > 0) & (found <= 1))
        self._refuse(bad, "propensity", "above 0, at most 1", found, name, table)
        return found

    def _times(self, name: str, table: Table, keep: NDArray[np.bool_]) -> Floats | None:
        if self.columns.time is None:
            return None
        found = timestamps(table.columns[self.columns.time])
        self._no_value(self.columns.time, "time", np.isnan(found), keep, name, table)
        return found

    def _no_value(
        self,
        column: str,
        what: str,
        bad: NDArray[np.bool_],
        keep: NDArray[np.bool_],
        name: str,
        table: Table,
    ) -> None:
        if not bad.any():
            return
        absent = table.columns[column].map(cells.missing, True, np.bool_)
        self._drop(keep, bad & absent, f"no {what}", name, table)
        self._drop(keep, bad & ~absent, f"not a {what}", name, table)

    def _refuse(
        self,
        bad: NDArray[np.bool_],
        what: str,
        allowed: str,
        values: Floats,
        name: str,
        table: Table,
    ) -> None:
        if bad.any():
            first = int(np.flatnonzero(bad)[0])
            raise InvalidInput(
                f"{name}:{int(table.numbers[first])}: {what} = {values[first]:g}: must be {allowed}"
                f"; is --{what}-column {getattr(self.columns, what)} the right one?"
            )

    def _one_per_user(self, name: str, table: Table, keep: NDArray[np.bool_]) -> None:
        if self.columns.user is None:
            return
        column = table.columns[self.columns.user]
        absent = column.map(cells.missing, True, np.bool_)
        self._drop(keep, absent, "no user", name, table)
        hashes = np.append(_hashes(column.values), np.uint64(0))[column.codes]
        kept = np.flatnonzero(keep)
        again = np.zeros(len(keep), dtype=np.bool_)
        again[kept[~self._seen.first(hashes[kept])]] = True
        self._drop(keep, again, "user seen before", name, table)


def _hashes(values: Sequence[object]) -> NDArray[np.uint64]:
    texts = [value if type(value) is str else cells.text(value) or "" for value in values]
    digests = [hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts]
    return np.frombuffer(b"".join(digests), dtype=np.uint64)
