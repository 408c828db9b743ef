# ruff: noqa: S608 - all parts of a statement are constants of this module.
"""The tables of the file store, and the statements on them. Knows SQL; no threads, no clients.

Whole columns go into one statement as one value each, cut up inside sqlite: Python steps through no
rows, so a commit of thousands waits for the event loop's thread a few times only.

    users       a row for every user: keyed hash, and which history; about 30 bytes
    histories   what was spent, and in which running experiments; shared by users
    over        experiments that ended: their names stand in no history any more
    batches     terms, as long as a report waits
    pending     a row for every report that is not acknowledged; all look the same
    rewards     sealed blocks of rewards, written at every tick whether there are any or not
    owners      the processes, by their locks; a pending report of owner 0 is for anybody
"""

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson

from producers.batches import CheckedBatch, PendingReport
from producers.sealing import Sealing
from producers.store import SavedReport, Spent
from stream_app.core.promise import plain
from stream_app.errors import ConfigurationError

# "sbst" in ASCII: tells a store from other databases.
_APPLICATION = 0x73627374
_VERSION = 2
# RETURNING and UPDATE ... FROM; of March 2021.
_OLDEST_SQLITE = (3, 35, 0)
# How long a process waits for another one's commit; one takes milliseconds.
_BUSY_S = 10.0
_TABLES = """
CREATE TABLE users (tag BLOB PRIMARY KEY, history INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE histories (
    id INTEGER PRIMARY KEY, epsilon TEXT NOT NULL, delta TEXT NOT NULL, experiments TEXT NOT NULL
);
CREATE INDEX histories_content ON histories (epsilon, delta, experiments);
CREATE TABLE over (experiment TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE batches (
    id INTEGER PRIMARY KEY AUTOINCREMENT, batch_id TEXT NOT NULL, experiment TEXT NOT NULL,
    window_ms INTEGER NOT NULL, terms TEXT NOT NULL, UNIQUE (experiment, batch_id)
);
CREATE TABLE pending (
    report_id BLOB PRIMARY KEY, owner INTEGER NOT NULL, batch INTEGER NOT NULL, tag BLOB NOT NULL,
    due_ms INTEGER, final INTEGER NOT NULL, count BLOB
) WITHOUT ROWID;
CREATE INDEX pending_tag ON pending (tag);
CREATE INDEX pending_free ON pending (owner) WHERE owner = 0;
CREATE TABLE rewards (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, owner INTEGER NOT NULL, until_ms INTEGER NOT NULL,
    sealed BLOB NOT NULL
);
CREATE TABLE owners (id INTEGER PRIMARY KEY AUTOINCREMENT, lock TEXT NOT NULL);
CREATE TABLE made_with (proof BLOB NOT NULL);
"""
# The numbers 0 to :rows - 1, and the rows of a column of 16 bytes each.
_NUMBERS = (
    "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :rows) SELECT "
)
_TAGS = _NUMBERS + "substr(:tags, 16 * i + 1, 16) FROM n"
_IDS = _NUMBERS + "substr(:ids, 16 * i + 1, 16) FROM n"
_SAVED = (
    "SELECT batch_id, terms, report_id, tag, due_ms, final, count FROM pending "
    "JOIN batches ON batches.id = batch WHERE experiment = ? AND owner = 0"
)


def connect(path: Path) -> sqlite3.Connection:
    """A connection that commits what it is told, and nothing by itself."""
    database = sqlite3.connect(
        path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False, cached_statements=64
    )
    # A claim that a power failure undoes is a second report of somebody: NORMAL would lose the
    # commits since the last checkpoint then, FULL loses none that was waited for.
    database.execute("PRAGMA synchronous = FULL")
    database.execute("PRAGMA secure_delete = ON")
    return database


class Tables:
    """The writing connection of one process."""

    def __init__(self, path: Path, sealing: Sealing) -> None:
        self._sealing = sealing
        self._path = path
        if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
            raise ConfigurationError(
                f"{path}: needs sqlite 3.35 or later, this Python has {sqlite3.sqlite_version}; "
                "use a newer build of Python"
            )
        self.database = connect(path)
        try:
            self._create()
        except BaseException:
            self.database.close()
            raise

    def _create(self) -> None:
        run = self.database.execute
        run("PRAGMA auto_vacuum = INCREMENTAL")
        run("PRAGMA journal_mode = WAL")
        with self.transaction():
            application = run("PRAGMA application_id").fetchone()[0]
            empty = not run("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if empty:
                for statement in _TABLES.split(";"):
                    run(statement)
                run(f"PRAGMA application_id = {_APPLICATION}")
                run(f"PRAGMA user_version = {_VERSION}")
                run("INSERT INTO made_with VALUES (?)", (self._sealing.proof,))
            elif application != _APPLICATION:
                raise ConfigurationError(
                    f"{self._path}: a database, but not a store of reports; give another path"
                )
        version = run("PRAGMA user_version").fetchone()[0]
        if version != _VERSION:
            raise ConfigurationError(
                f"{self._path}: a store of version {version}, this client reads {_VERSION}; use "
                "the client that made it"
            )
        if run("SELECT proof FROM made_with").fetchall() != [(self._sealing.proof,)]:
            raise ConfigurationError(
                f"{self._path}: made with another key than that of its key_file; restore both from "
                "copies of one time (with another key, users could report a second time)"
            )

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing; waits for other processes."""
        self.database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.database.execute("COMMIT")
        except BaseException:
            if self.database.in_transaction:
                self.database.execute("ROLLBACK")
            raise

    def join(self, lock: str) -> int:
        """A new process; returns its number."""
        made = self.database.execute("INSERT INTO owners (lock) VALUES (?)", (lock,))
        assert made.lastrowid is not None
        return made.lastrowid

    # --- Users -----------------------------------------------------------------------------------

    def history(self, spent: Spent) -> int:
        """The row of a history with this content; inside or outside of a transaction."""
        names = sorted(spent.experiments - over(self.database))
        content = (plain(spent.epsilon), plain(spent.delta), orjson.dumps(names).decode())
        found = self.database.execute(
            "SELECT id FROM histories WHERE epsilon = ? AND delta = ? AND experiments = ?", content
        ).fetchone()
        if found is None:
            found = self.database.execute(
                "INSERT INTO histories (epsilon, delta, experiments) VALUES (?, ?, ?) RETURNING id",
                content,
            ).fetchone()
        number: int = found[0]
        return number

    def end_experiment(self, name: str) -> None:
        """Take its name out of all histories, so that they stay few; what was spent stays."""
        run = self.database.execute
        run("INSERT OR IGNORE INTO over VALUES (?)", (name,))
        for number, text in run("SELECT id, experiments FROM histories").fetchall():
            names = orjson.loads(text)
            if name in names:
                names.remove(name)
                left = orjson.dumps(names).decode()
                run("UPDATE histories SET experiments = ? WHERE id = ?", (left, number))

    def charge(self, tags: Sequence[bytes], before: int | None, after: int | None) -> bool:
        """Move users from one history to the next; False if some were not there any more."""
        given = {"tags": b"".join(tags), "rows": len(tags), "before": before, "after": after}
        if before is None:
            tagged = _NUMBERS + "substr(:tags, 16 * i + 1, 16), :after FROM n"
            statement = f"INSERT OR IGNORE INTO users {tagged}"
        else:
            statement = (
                f"UPDATE users SET history = :after WHERE history = :before AND tag IN ({_TAGS})"
            )
        return self.database.execute(statement, given).rowcount == len(tags)

    # --- Pending reports -------------------------------------------------------------------------

    def batch(self, experiment: str, batch_id: str, window_ms: int, terms: Any) -> int:
        """The row of a batch."""
        row = (batch_id, experiment, window_ms, orjson.dumps(terms).decode())
        run = self.database.execute
        run(
            "INSERT OR IGNORE INTO batches (batch_id, experiment, window_ms, terms) "
            "VALUES (?, ?, ?, ?)",
            row,
        )
        number: int = run(
            "SELECT id FROM batches WHERE experiment = ? AND batch_id = ?", (experiment, batch_id)
        ).fetchone()[0]
        return number

    def add(self, owner: int, batch: CheckedBatch, reports: Sequence[PendingReport]) -> None:
        """Keep reports of one batch: noise only, whether a reward has come or not."""
        experiment = reports[0].experiment
        window = batch.attribution_ms
        ids = b"".join([report.shown.report_id for report in reports])
        due = [report.deadline_ms or 0 for report in reports]
        noise = [report.noise for report in reports]
        self.database.execute(
            f"INSERT INTO pending {_NUMBERS} substr(:ids, 16 * i + 1, 16), :owner, :batch, "
            "substr(:tags, 16 * i + 1, 16), "
            "nullif(CAST(substr(:due, 15 * i + 1, 15) AS INTEGER), 0), 0, "
            "substr(:counts, 8 * i + 1, 8) FROM n",
            {
                "rows": len(reports),
                "ids": ids,
                "owner": owner,
                "batch": self.batch(experiment, batch.batch_id, window, batch.terms.as_json()),
                "tags": b"".join([report.user for report in reports]),
                # Bytes: characters of a text would be counted from its beginning for every row.
                "due": b"".join([b"%015d" % each for each in due]),
                "counts": self._sealing.masked(ids, noise, final=False),
            },
        )

    def finish(self, reports: Sequence[PendingReport]) -> None:
        """Their time has come: what they say will not change any more."""
        ids = b"".join([report.shown.report_id for report in reports])
        counts = [report.ones for report in reports]
        self.database.execute(
            "UPDATE pending SET final = 1, count = new FROM ("
            f"{_NUMBERS} substr(:ids, 16 * i + 1, 16) AS named, "
            "substr(:counts, 8 * i + 1, 8) AS new FROM n) WHERE report_id = named",
            {
                "rows": len(reports),
                "ids": ids,
                "counts": self._sealing.masked(ids, counts, final=True),
            },
        )

    def remove(self, ids: Sequence[bytes]) -> None:
        """Forget reports, and whatever only they needed."""
        given = {"ids": b"".join(ids), "rows": len(ids)}
        self.database.execute(f"DELETE FROM pending WHERE report_id IN ({_IDS})", given)

    def give_up(self, ids: Sequence[bytes]) -> None:
        """These are for whoever takes them."""
        given = {"ids": b"".join(ids), "rows": len(ids)}
        self.database.execute(f"UPDATE pending SET owner = 0 WHERE report_id IN ({_IDS})", given)

    def adopt(self, experiment: str, owner: int) -> list[SavedReport]:
        """Take the reports that are for anybody, with the rewards that have come for them."""
        found = self.database.execute(_SAVED, (experiment,)).fetchall()
        if not found:
            return []
        self.database.execute(
            "UPDATE pending SET owner = ? WHERE owner = 0 "
            "AND batch IN (SELECT id FROM batches WHERE experiment = ?)",
            (owner, experiment),
        )
        first: dict[bytes, int] = {}
        for report_id, bit in self.rewards(0)[1]:
            first.setdefault(report_id, bit)
        return [self._saved(row, first) for row in found]

    def _saved(self, row: tuple[Any, ...], rewards: dict[bytes, int]) -> SavedReport:
        batch_id, terms, report_id, tag, due_ms, final, masked = row
        raw = orjson.loads(terms)
        count = None
        if masked is not None:
            [count] = self._sealing.unmasked(report_id, masked, bool(final))
        bit = None if final else rewards.get(report_id)
        saved = (batch_id, raw["arm"], report_id, tag, due_ms, count, bit, bool(final), raw)
        return SavedReport(*saved)

    # --- Rewards ---------------------------------------------------------------------------------

    def pending(self) -> bool:
        """Whether any report waits."""
        return self.database.execute("SELECT 1 FROM pending LIMIT 1").fetchone() is not None

    def load(self) -> tuple[int, set[int]]:
        """How many reports wait, and the windows of their batches."""
        reports: int = self.database.execute("SELECT count(*) FROM pending").fetchone()[0]
        windows = self.database.execute("SELECT DISTINCT window_ms FROM batches")
        return reports, {window for (window,) in windows}

    def add_rewards(self, owner: int, until_ms: int, sealed: bytes) -> None:
        """Keep a block."""
        row = (owner, until_ms, sealed)
        self.database.execute("INSERT INTO rewards (owner, until_ms, sealed) VALUES (?, ?, ?)", row)

    def rewards(self, after: int, but_of: int = 0) -> tuple[int, list[tuple[bytes, int]]]:
        """What the blocks after this one say, and the number of the last of them."""
        query = "SELECT seq, sealed FROM rewards WHERE seq > ? AND owner != ? ORDER BY seq"
        blocks = self.database.execute(query, (after, but_of)).fetchall()
        entries = [entry for _, sealed in blocks for entry in self._sealing.opened(sealed)]
        return blocks[-1][0] if blocks else after, entries

    # --- Tidying up ------------------------------------------------------------------------------

    def tidy(self, now_ms: int, batches: bool) -> int:
        """Delete what nobody needs; returns how many rows. Looking for batches takes long."""
        run = self.database.execute
        if self.pending():
            removed = run("DELETE FROM rewards WHERE until_ms < ?", (now_ms,)).rowcount
        else:
            batches = True
            removed = run("DELETE FROM rewards").rowcount
        if batches:
            waiting = "SELECT batch FROM pending"
            removed += run(f"DELETE FROM batches WHERE id NOT IN ({waiting})").rowcount
        return removed

    def truncate_log(self) -> bool:
        """Move the write-ahead log into the file; False if a reader was in the way."""
        self.database.execute("PRAGMA incremental_vacuum(256)").fetchall()
        busy: int = self.database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        return not busy

    def others(self, owner: int) -> list[tuple[int, str]]:
        """The other processes, with their locks."""
        query = "SELECT id, lock FROM owners WHERE id != ?"
        return self.database.execute(query, (owner,)).fetchall()

    def leave(self, owner: int) -> None:
        """A process has ended: its reports are for anybody."""
        self.database.execute("UPDATE pending SET owner = 0 WHERE owner = ?", (owner,))
        self.database.execute("DELETE FROM owners WHERE id = ?", (owner,))


def over(database: sqlite3.Connection) -> frozenset[str]:
    """The experiments that have ended."""
    return frozenset(name for (name,) in database.execute("SELECT experiment FROM over"))


def load_history(database: sqlite3.Connection, number: int) -> Spent:
    """A history's content. Whoever spent anything may not report to what is over."""
    query = "SELECT epsilon, delta, experiments FROM histories WHERE id = ?"
    epsilon, delta, text = database.execute(query, (number,)).fetchone()
    names = over(database).union(orjson.loads(text))
    return Spent(Decimal(epsilon), Decimal(delta), names)
