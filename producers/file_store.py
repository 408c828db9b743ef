"""The client's memory in a sqlite file that all processes of one machine share.

Theory of operation. `choose` waits for nobody: it looks at what this process has claimed since the
last commit, then at the user's row as of the last commit of anybody (a reader of a write-ahead log
never waits), and claims in memory. A thread commits at every tick (100 ms), and `sync` does so at
once, in one short transaction:

1. Claims. A user's row moves from the history that `choose` saw to the next one. Where it has
   another one by now, somebody was faster: the claim is lost, and its report is dropped. So a user
   reports once, whatever processes they come to. No report leaves before its claim is committed.
2. Reports. A row has the noise, drawn with the choice, and nothing of a reward until the deadline;
   then all that are due get their final count, alike. Acknowledged rows are deleted: overwritten in
   the file, and the log is truncated within a second.
3. Rewards. To change the row of a user at the moment of a click would name those who click. So
   rewards of a tick go together into one sealed block. A block is written at every tick for as long
   as any report waits, whether there are rewards or not, and its size follows from the number of
   choices and reports only; what does not fit waits for the next one. Other processes read the
   blocks: a reward may be given to any of them.

A process that dies leaves a lock file that nobody holds: whoever sees it first gives its reports
away, and a client of the same experiment takes them over, with the rewards that blocks have.
A kill loses the choices and rewards of one tick at most, and of those nothing had left.

Whoever has only the file learns who of a list of users has taken part if they also have the key;
without it nothing but numbers and times of choices. See `producers.sealing`.
"""

import math
import sqlite3
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import orjson

from producers.batches import PendingReport, Shown, forgets_on_fork
from producers.key_file import load_key
from producers.old_journal import import_journal
from producers.process_lock import ProcessLock
from producers.sealing import Sealing
from producers.store import NOTHING, Inbox, Ledger, Spent
from producers.store_commits import TICK_S, Commits, Histories, Work
from producers.store_tables import Tables, connect
from stream_app.errors import ConfigurationError, IllegalTransition, Unavailable

# Two ticks of two processes, and a slow disk: a reward that was given in time is known by then.
_SETTLE_MS = 400
# How often dead processes are looked for, and the log is truncated.
_TIDY_S = 1.0
# Connections that a forked child must not even close.
_PARENTS: list[object] = []


class FileStore:
    """A file for all processes of a machine, and for all clients in each of them."""

    settle_ms = _SETTLE_MS

    def __init__(self, path: Path | str, key_file: Path | str | None = None) -> None:
        self._path = Path(path)
        beside = self._path.with_name(f"{self._path.name}.key")
        key_path = beside if key_file is None else Path(key_file)
        import_journal(self._path, key_path)
        self._sealing = Sealing(load_key(key_path, self._path))
        self._inboxes: list[Inbox] = []
        self._adding = threading.Lock()  # of `_work`, for moments
        self._committing = threading.Lock()
        self._work = Work()
        self._in_flight = Work()
        self._ledger = Ledger()
        self._histories = Histories()
        self._over: set[str] = set()
        self._last = (b"", NOTHING)  # the user that was looked up last
        self._last_tidy = -math.inf
        self._forked = False
        self._closing = threading.Event()
        self._open()
        self._thread = threading.Thread(target=self._run, name="file-store", daemon=True)
        self._thread.start()
        forgets_on_fork(self)

    def _open(self) -> None:
        try:
            self._path.touch(0o600)
            self._tables = Tables(self._path, self._sealing)
            self._reader = connect(self._path)
            self._lock = ProcessLock(self._path)
            owner = self._tables.join(self._lock.name)
        except sqlite3.OperationalError as error:
            raise ConfigurationError(
                f"{self._path}: cannot be written: {error}; check rights and free space"
            ) from None
        except sqlite3.DatabaseError as error:
            raise ConfigurationError(
                f"{self._path}: not a store of reports: {error}; give another path, or restore it "
                "from a copy (with a new file, users could report a second time)"
            ) from None
        except OSError as error:
            raise ConfigurationError(
                f"{self._path}: cannot be opened: {error.strerror}; check folder and rights"
            ) from None

        self._commits = Commits(self._path, self._sealing, self._tables, owner)

    def discard(self) -> None:
        """In a forked child: connections and lock are the parent's."""
        self._forked = True
        _PARENTS.extend((self._tables, self._reader))
        self._lock.forget()

    # --- For the event loop ----------------------------------------------------------------------

    def attach(self, experiment: str) -> Inbox:
        """A client begins."""
        inbox = Inbox(experiment)
        self._inboxes = [*self._inboxes, inbox]
        self._last_tidy = -math.inf
        return inbox

    def detach(self, inbox: Inbox, reports: Sequence[PendingReport]) -> None:
        """A client ends: others may have these, after the next `sync`."""
        self._inboxes = [each for each in self._inboxes if each is not inbox]
        ids = [report.shown.report_id for report in reports]
        ids += [saved.report_id for saved in inbox.adopted]
        with self._adding:
            self._work.given_up += ids

    def tag(self, user: str) -> bytes:
        """The user's keyed hash."""
        if self._forked:
            raise IllegalTransition("this store was opened before a fork; open one per process")
        return self._sealing.tag(user)

    def spent(self, user: bytes) -> Spent:
        """A user's history, with what this process has claimed since the last commit."""
        # In this order: `_swap` moves a claim to the second before it leaves the first.
        claimed = self._work.claimed.get(user) or self._in_flight.claimed.get(user)
        if claimed is not None:
            return claimed
        try:
            query = "SELECT history FROM users WHERE tag = ?"
            row = self._reader.execute(query, (user,)).fetchone()
            spent = NOTHING if row is None else self._histories.spent(row[0], self._reader)
        except sqlite3.Error as error:
            raise self._unavailable(error) from None
        self._last = (user, spent)
        return spent

    def shown(self, user: bytes, experiment: str) -> Shown | None:
        """What another client has shown this user, as long as a reward may come."""
        query = (
            "SELECT terms, batch_id, report_id, due_ms FROM pending JOIN batches "
            "ON batches.id = batch WHERE tag = ? AND experiment = ? AND final = 0"
        )
        try:
            row = self._reader.execute(query, (user, experiment)).fetchone()
        except sqlite3.Error as error:
            raise self._unavailable(error) from None
        if row is None:
            return None
        terms, batch_id, report_id, due_ms = row
        return Shown(orjson.loads(terms)["arm"], batch_id, report_id, due_ms)

    def chosen(self, report: PendingReport) -> None:
        """Claim the user."""
        user = report.user
        with self._adding:
            work = self._work
            claimed = work.claimed.get(user) or self._in_flight.claimed.get(user)
            before = claimed or (self._last[1] if self._last[0] == user else self.spent(user))
            after = self._ledger.after(before, report)
            work.claims.append((report, before, after))
            work.claimed[user] = after

    def answered(self, report_id: bytes, bit: int) -> None:
        """Have the reward in one of the next blocks."""
        self._commits.rewards.append((report_id, bit))

    def forward(self, shown: Shown, bit: int) -> bool:
        """A reward for another client's report; its choice may not be committed yet."""
        query = "SELECT final FROM pending WHERE report_id = ?"
        try:
            row = self._reader.execute(query, (shown.report_id,)).fetchone()
        except sqlite3.Error as error:
            raise self._unavailable(error) from None
        if shown.deadline_ms is None if row is None else row[0]:
            return False
        self._commits.rewards.append((shown.report_id, bit))
        for inbox in self._inboxes:
            inbox.rewards.append((shown.report_id, bit))
            inbox.notify()
        return True

    def encoded(self, report: PendingReport) -> None:
        """Its count is final."""
        with self._adding:
            self._work.final.append(report)

    def ended(self, reports: Sequence[PendingReport]) -> None:
        """Delete them with the next commit."""
        with self._adding:
            self._work.ended += [report.shown.report_id for report in reports]

    def over(self, experiment: str) -> None:
        """Forget who took part, not what they spent."""
        if experiment not in self._over:
            self._over.add(experiment)
            with self._adding:
                self._work.over.add(experiment)

    def _unavailable(self, error: sqlite3.Error) -> Unavailable:
        return Unavailable(f"{self._path}: cannot be read: {error}")

    # --- For threads -----------------------------------------------------------------------------

    def sync(self) -> None:
        """Commit what was told so far. Raises OSError; nothing is lost then."""
        with self._committing:
            work = self._swap()
            try:
                if work or self._tables.pending():
                    self._commit(work)
                self._deliver(self._commits.read_rewards())
                if time.monotonic() >= self._last_tidy + _TIDY_S:
                    self._tidy()
            except sqlite3.Error as error:
                raise OSError(f"{self._path}: cannot be written: {error}") from None

    def close(self) -> None:
        """Commit the rest, leave what waits to others, and close. Raises OSError."""
        self._closing.set()
        self._thread.join()
        self.sync()
        with self._committing:
            self._reader.close()
            self._commits.leave()
            self._tables.database.close()
            self._lock.release()

    def _run(self) -> None:
        while not self._closing.wait(TICK_S):
            try:
                self.sync()
            except OSError:
                # It is kept for the next try, and whoever wants to send meets the same error.
                continue

    def _swap(self) -> Work:
        with self._adding:
            work = self._work
            self._in_flight = work
            self._work = Work()
        return work

    def _commit(self, work: Work) -> None:
        try:
            lost = self._commits.write(work, self._histories)
        except BaseException:
            with self._adding:
                self._work = work.before(self._work)
                self._in_flight = Work()
            raise
        self._in_flight = Work()
        if work.over:
            with self._adding:
                self._ledger = Ledger()
                self._histories = Histories()
                self._last = (b"", NOTHING)
        for inbox in self._inboxes:
            ids = [r.shown.report_id for r in lost if r.experiment == inbox.experiment]
            if ids:
                inbox.lost.extend(ids)
                inbox.notify()

    def _deliver(self, entries: list[tuple[bytes, int]]) -> None:
        if entries:
            for inbox in self._inboxes:
                inbox.rewards.extend(entries)
                inbox.notify()

    def _tidy(self) -> None:
        self._last_tidy = time.monotonic()
        inboxes = {inbox.experiment: inbox for inbox in self._inboxes}
        for name, reports in self._commits.tidy(inboxes).items():
            if reports:
                inboxes[name].adopted.extend(reports)
                inboxes[name].notify()
