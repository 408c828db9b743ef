"""What the file store does in a transaction: claims, final counts, blocks of rewards, tidying up.

Called by one thread at a time; waits for the disk and for other processes. Knows no clients: it
returns what they have to be told. Why it is as it is stands in `producers.file_store`.
"""

import math
import sqlite3
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from producers.batches import CheckedBatch, PendingReport
from producers.process_lock import is_dead, remove
from producers.sealing import Sealing
from producers.store import NOTHING, SavedReport, Spent
from producers.store_tables import Tables, load_history

# What a kill can cost; a person does not come back, or click, much faster.
TICK_S = 0.1
# A tick that came a little early still writes its block.
_ABOUT_A_TICK_S = 0.9 * TICK_S
# Every so many times batches without reports are looked for, which reads all reports.
_SELDOM = 60
# A block outlives the longest window by this: an hour without any process of the store.
_SPARE_MS = 3_600_000
# Rewards in a block: at least these, and so many times what choices or waiting reports would give
# if all of them had one and they came evenly.
_LEAST = 4
_TIMES = 4
# How fast a burst of choices is forgotten, at every tick: half in a second.
_FADES = 0.93

# A report, and its user's history before and after; None: nothing was spent so far.
Step = tuple[PendingReport, int | None, int | None]


@dataclass(slots=True)
class Work:
    """What was told since the last commit."""

    claims: list[tuple[PendingReport, Spent, Spent]] = field(default_factory=list)
    claimed: dict[bytes, Spent] = field(default_factory=dict)  # the newest of each user
    final: list[PendingReport] = field(default_factory=list)
    ended: list[bytes] = field(default_factory=list)
    given_up: list[bytes] = field(default_factory=list)
    over: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.claims or self.final or self.ended or self.given_up or self.over)

    def before(self, later: "Work") -> "Work":
        """This and what came later."""
        return Work(
            self.claims + later.claims,
            self.claimed | later.claimed,
            self.final + later.final,
            self.ended + later.ended,
            self.given_up + later.given_up,
            self.over | later.over,
        )


class Histories:
    """Which row has which history; for the event loop and the commits."""

    def __init__(self) -> None:
        self._spent: dict[int, Spent] = {}
        self._numbers: dict[Spent, int] = {}

    def spent(self, number: int, reader: sqlite3.Connection) -> Spent:
        """A row's content."""
        history = self._spent.get(number)
        if history is None:
            history = load_history(reader, number)
            self._numbers[history] = number
            self._spent[number] = history
        return history

    def number(self, spent: Spent, tables: Tables) -> int | None:
        """The row of a content, made if need be; outside of a transaction, which may fail."""
        if spent is NOTHING:
            return None
        if spent not in self._numbers:
            self._numbers[spent] = tables.history(spent)
        return self._numbers[spent]


class Commits:
    """The writing side of one process."""

    def __init__(self, path: Path, sealing: Sealing, tables: Tables, owner: int) -> None:
        self.rewards: deque[tuple[bytes, int]] = deque()  # for the next blocks
        self._path = path
        self._sealing = sealing
        self._tables = tables
        self._owner = owner
        self._choices = 0  # since the last block
        self._recent = 0.0  # choices of a tick, lately
        self._waiting = 0  # reports of all processes
        self._windows: set[int] = set()  # of their batches
        self._read = 0  # the last block of others
        self.last_block = -math.inf
        self._tidied = 0
        self._deleted = False

    def write(self, work: Work, histories: Histories) -> list[PendingReport]:
        """Commit all of it or nothing; returns the claims that are lost. Raises sqlite3.Error."""
        tables = self._tables
        steps = [
            (report, histories.number(before, tables), histories.number(after, tables))
            for report, before, after in work.claims
        ]
        self._choices += len(steps)
        entries: list[tuple[bytes, int]] = []
        try:
            with tables.transaction():
                for name in work.over:
                    tables.end_experiment(name)
                lost = self._claim(steps)
                if work.final:
                    tables.finish(work.final)
                if work.ended:
                    tables.remove(work.ended)
                if work.given_up:
                    tables.give_up(work.given_up)
                if time.monotonic() >= self.last_block + _ABOUT_A_TICK_S:
                    self._write_block(entries)
        except BaseException:
            self.rewards.extendleft(reversed(entries))
            self._choices -= len(steps)
            raise
        self._deleted = self._deleted or bool(work.ended)
        return lost

    def _claim(self, steps: Sequence[Step]) -> list[PendingReport]:
        """Charge users and keep their reports; returns those whose user somebody else has."""
        tables = self._tables
        together: dict[tuple[int | None, int | None], list[bytes]] = {}
        for report, before, after in steps:
            together.setdefault((before, after), []).append(report.user)
        lost: set[PendingReport] = set()
        tables.database.execute("SAVEPOINT claims")
        if not all(tables.charge(tags, *step) for step, tags in together.items()):
            # Rare: somebody was faster, or one user came to two experiments within a tick.
            tables.database.execute("ROLLBACK TO claims")
            lost = {r for r, before, after in steps if not tables.charge([r.user], before, after)}
        tables.database.execute("RELEASE claims")
        kept: dict[CheckedBatch, list[PendingReport]] = {}
        for report, _, _ in steps:
            if report not in lost:
                assert report.batch is not None
                kept.setdefault(report.batch, []).append(report)
        for batch, reports in kept.items():
            tables.add(self._owner, batch, reports)
            self._windows.add(batch.attribution_ms)
        return list(lost)

    def _write_block(self, entries: list[tuple[bytes, int]]) -> None:
        """Move rewards from the queue into a block; how large it is does not depend on them."""
        windows = self._windows - {0}
        if windows:
            evenly = self._waiting * 1000 * TICK_S / min(windows)
            self._recent = max(self._recent * _FADES, self._choices)
            capacity = _LEAST + int(_TIMES * max(self._recent, evenly))
        else:
            # Every user is reported at once: nothing is to be hidden.
            capacity = len(self.rewards)
        while self.rewards and len(entries) < capacity:
            entries.append(self.rewards.popleft())
        if capacity:
            until_ms = _now_ms() + max(self._windows, default=0) + _SPARE_MS
            self._tables.add_rewards(self._owner, until_ms, self._sealing.sealed(entries, capacity))
        self._choices = 0
        self.last_block = time.monotonic()

    def read_rewards(self) -> list[tuple[bytes, int]]:
        """What other processes were told since the last call."""
        self._read, entries = self._tables.rewards(self._read, self._owner)
        return entries

    def tidy(self, experiments: Iterable[str]) -> dict[str, list[SavedReport]]:
        """Give away what dead processes had, take what clients here can use, delete the rest."""
        tables = self._tables
        dead = [each for each in tables.others(self._owner) if is_dead(self._path, each[1])]
        with tables.transaction():
            for number, _ in dead:
                tables.leave(number)
            adopted = {name: tables.adopt(name, self._owner) for name in experiments}
            seldom = self._tidied % _SELDOM == 0
            self._deleted = bool(tables.tidy(_now_ms(), batches=seldom)) or self._deleted
        self._tidied += 1
        for _, lock in dead:
            remove(self._path, lock)
        self._waiting, self._windows = tables.load()
        if not self._waiting:
            self.rewards.clear()
        if self._deleted and tables.truncate_log():
            self._deleted = False
        return adopted

    def leave(self) -> None:
        """This process ends: what waits is for others."""
        with self._tables.transaction():
            self._tables.leave(self._owner)
            self._tables.tidy(_now_ms(), batches=True)
        self._tables.truncate_log()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
