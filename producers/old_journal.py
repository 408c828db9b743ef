"""The journal of version 0.1.0, read once and replaced by the store of today.

A line is a JSON array: `user` (hash, epsilon, delta, experiments), `batch` (id, terms), `chosen`
(report, what it costs), `waiting` (report), `encoded` (report id, ones), `ended` (report ids). A
damaged end is what a crash left, and nothing of it was sent; damage before the end is refused.
Its users must not report a second time: so their hashes stay, and with them the key.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson

from producers.key_file import load_key
from producers.sealing import Sealing
from producers.store import Spent
from producers.store_tables import Tables
from stream_app.errors import ConfigurationError

_MAGIC = "shufflebandit-store"
_VERSION = 1
# The block of those that are encoded goes when nothing waits any more: their windows are unknown.
_FOR_EVER_MS = 1 << 62
_FIRST_BYTES = f'["{_MAGIC}",'.encode()


@dataclass(frozen=True, slots=True)
class _Waiting:
    experiment: str
    batch_id: str
    arm: str
    user: bytes
    deadline_ms: int | None
    ones: int | None = field(repr=False)


@dataclass(slots=True)
class _Journal:
    """What a journal says."""

    salt: bytes = b""
    users: dict[bytes, Spent] = field(default_factory=dict)
    terms: dict[str, Any] = field(default_factory=dict)
    waiting: dict[bytes, _Waiting] = field(default_factory=dict)  # by report id

    def replay(self, line: bytes) -> None:
        """Apply one line; ValueError, KeyError, TypeError or ArithmeticError if it is damaged."""
        kind, *rest = orjson.loads(line)
        if kind == "user":
            user, epsilon, delta, names = rest
            spent = Spent(Decimal(epsilon), Decimal(delta), frozenset(names))
            self.users[bytes.fromhex(user)] = spent
        elif kind == "batch":
            self.terms[rest[0]] = rest[1]
        elif kind == "chosen":
            report_id, name, batch_id, arm, user, deadline_ms, epsilon, delta = rest
            self._wait(report_id, name, batch_id, arm, user, deadline_ms, None)
            self._charge(bytes.fromhex(user), name, Decimal(epsilon), Decimal(delta))
        elif kind == "waiting":
            self._wait(*rest)
        elif kind == "encoded":
            report_id = bytes.fromhex(rest[0])
            self.waiting[report_id] = replace(self.waiting[report_id], ones=int(rest[1]))
        elif kind == "ended":
            for report_id in rest:
                self.waiting.pop(bytes.fromhex(report_id), None)
        elif kind == _MAGIC and rest[0] == _VERSION:
            self.salt = bytes.fromhex(rest[1])
        else:
            raise ValueError

    def _wait(
        self,
        report_id: str,
        name: str,
        batch_id: str,
        arm: str,
        user: str,
        deadline_ms: int | None,
        ones: int | None,
    ) -> None:
        waiting = _Waiting(name, batch_id, arm, bytes.fromhex(user), deadline_ms, ones)
        self.waiting[bytes.fromhex(report_id)] = waiting

    def _charge(self, user: bytes, name: str, epsilon: Decimal, delta: Decimal) -> None:
        before = self.users.get(user, Spent())
        names = before.experiments | {name}
        self.users[user] = Spent(before.epsilon + epsilon, before.delta + delta, names)


def import_journal(path: Path, key_path: Path) -> None:
    """Replace a journal at this path by a store with the same users and waiting reports."""
    try:
        if not _is_journal(path):
            return
        with _alone(path):
            # Another process may have done it meanwhile.
            if _is_journal(path):
                _replace(path, key_path, _load(path))
    except OSError as error:
        raise ConfigurationError(
            f"{path}: cannot be opened: {error.strerror}; check folder and rights"
        ) from None


def _is_journal(path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        return file.read(len(_FIRST_BYTES)) == _FIRST_BYTES
    return False


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """The lock that clients of 0.1.0 hold for as long as they live."""
    lock = path.with_name(f"{path.name}.lock")
    guard = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise ConfigurationError(
            f"{path}: a client of version 0.1.0 uses it, or another process imports it; end the "
            "one, or start again when the other is done"
        ) from None
    finally:
        os.close(guard)


def _load(path: Path) -> _Journal:
    journal = _Journal()
    lines = path.read_bytes().split(b"\n")
    damaged = 0
    for number, line in enumerate(lines, 1):
        try:
            if line:
                journal.replay(line)
        except (ValueError, KeyError, TypeError, ArithmeticError):
            damaged = damaged or number
        else:
            if line and damaged:
                break
    else:
        if damaged != 1 and journal.salt:
            return journal
    raise ConfigurationError(
        f"{path}: damaged at line {damaged or 1}; restore it from a copy (with a new file, users "
        "could report a second time)"
    )


def _replace(path: Path, key_path: Path, journal: _Journal) -> None:
    """All of it or nothing: the journal stands until the store is complete."""
    if load_key(key_path, path, journal.salt) != journal.salt:
        raise ConfigurationError(
            f"{key_path}: not the key of the journal {path}; move it away, the import makes it anew"
        )
    fresh = path.with_name(f"{path.name}.new")
    for suffix in ("", "-wal", "-shm"):
        fresh.with_name(fresh.name + suffix).unlink(missing_ok=True)
    fresh.touch(0o600)
    sealing = Sealing(journal.salt)
    tables = Tables(fresh, sealing)
    with tables.transaction():
        _fill(tables, sealing, journal)
    tables.truncate_log()
    tables.database.close()
    fresh.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def _fill(tables: Tables, sealing: Sealing, journal: _Journal) -> None:
    numbers: dict[tuple[Decimal, Decimal, frozenset[str]], int] = {}
    for user, spent in journal.users.items():
        content = (spent.epsilon, spent.delta, spent.experiments)
        if content not in numbers:
            numbers[content] = tables.history(spent)
        tables.charge([user], None, numbers[content])
    encoded: list[tuple[bytes, int]] = []
    for report_id, waiting in journal.waiting.items():
        terms = journal.terms.get(waiting.batch_id)
        raw = terms or {"arm": waiting.arm, "attribution_ms": 0}
        batch = tables.batch(waiting.experiment, waiting.batch_id, raw["attribution_ms"], raw)
        final = waiting.ones is not None and waiting.deadline_ms is None
        count = None
        if waiting.ones is not None:
            count = sealing.masked(report_id, [waiting.ones], final)
            encoded.append((report_id, 0))
        row = (report_id, batch, waiting.user, waiting.deadline_ms, final, count)
        tables.database.execute("INSERT INTO pending VALUES (?, 0, ?, ?, ?, ?, ?)", row)
    # These had their reward, which is in the count; they wait for their deadline like the others.
    if encoded:
        tables.add_rewards(0, _FOR_EVER_MS, sealing.sealed(encoded, len(encoded)))
