"""The client's memory in a file: an append-only journal, compacted when it is opened.

A line is a JSON array: `user` (hash, epsilon, delta, experiments), `batch` (id, terms), `chosen`
(report, what it costs), `waiting` (report), `encoded` (report id, ones), `ended` (report ids).
Lines are durable before anything that they describe is sent, so a damaged end is what a crash
leaves and nobody has seen it; damage before the end is refused.
"""

import contextlib
import fcntl
import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson

from producers.batches import PendingReport
from producers.store import Ledger, MemoryStore, SavedReport
from stream_app.core.promise import plain
from stream_app.errors import ConfigurationError

# The first line's kind: another file, or one of a later version, is refused and not overwritten.
_MAGIC = "shufflebandit-store"
_VERSION = 1


@dataclass(slots=True)
class _JournalState:
    """What a journal says."""

    salt: bytes = b""
    ledger: Ledger = field(default_factory=Ledger)
    terms: dict[str, Any] = field(default_factory=dict)
    waiting: dict[str, tuple[str, SavedReport]] = field(default_factory=dict)  # by report id

    def replay(self, line: bytes) -> None:
        """Apply one line; ValueError, KeyError, TypeError or ArithmeticError if it is damaged."""
        kind, *rest = orjson.loads(line)
        if kind == "user":
            user, epsilon, delta, names = rest
            self.ledger.restore(bytes.fromhex(user), Decimal(epsilon), Decimal(delta), names)
        elif kind == "batch":
            self.terms[rest[0]] = rest[1]
        elif kind == "chosen":
            report_id, name, batch_id, arm, user, deadline_ms, epsilon, delta = rest
            self._wait(report_id, name, batch_id, arm, user, deadline_ms, None)
            self.ledger.charge(bytes.fromhex(user), name, Decimal(epsilon), Decimal(delta))
        elif kind == "waiting":
            self._wait(*rest)
        elif kind == "encoded":
            name, saved = self.waiting[rest[0]]
            self.waiting[rest[0]] = (name, saved._replace(ones=int(rest[1])))
        elif kind == "ended":
            for report_id in rest:
                self.waiting.pop(report_id, None)
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
        saved = SavedReport(
            batch_id, arm, bytes.fromhex(report_id), bytes.fromhex(user), deadline_ms, ones, None
        )
        self.waiting[report_id] = (name, saved)

    def compact(self) -> Iterator[list[Any]]:
        """The same content in as few lines as it takes."""
        yield [_MAGIC, _VERSION, self.salt.hex()]
        for user, spent in self.ledger.users.items():
            names = sorted(spent.experiments)
            yield ["user", user.hex(), plain(spent.epsilon), plain(spent.delta), names]
        for batch_id in {s.batch_id for _, s in self.waiting.values() if s.ones is None}:
            yield ["batch", batch_id, self.terms[batch_id]]
        for report_id, (name, s) in self.waiting.items():
            user_hex = s.user.hex()
            yield ["waiting", report_id, name, s.batch_id, s.arm, user_hex, s.deadline_ms, s.ones]


class FileStore(MemoryStore):
    """A journal on disk, for one process at a time; several clients in it may share one store."""

    def __init__(self, path: Path | str) -> None:
        super().__init__()
        self._path = Path(path)
        self._lock = threading.Lock()
        self._lines: deque[bytes] = deque()
        self._guard = self._claim()
        state = self._load()
        state.salt = state.salt or self._salt
        self._salt = state.salt
        self._ledger = state.ledger
        self._earlier = state
        self._costs: dict[str, tuple[str, str]] = {}  # of the batches in the journal
        self._rewrite(state)
        self._file = self._path.open("ab", buffering=0)
        self._size = self._file.tell()

    def chosen(self, report: PendingReport) -> None:
        """Charge the user and journal the report."""
        assert report.batch is not None
        terms = report.batch.terms
        arm, batch_id, report_id = report.shown
        costs = self._costs.get(batch_id)
        if costs is None:
            self._add(["batch", batch_id, terms.as_json()])
            promise = terms.mechanism.promise
            costs = self._costs[batch_id] = plain(promise.epsilon), plain(promise.delta)
        binding = (report.experiment, batch_id, arm, report.user.hex(), report.deadline_ms)
        self._add(["chosen", report_id.hex(), *binding, *costs])
        super().chosen(report)

    def encoded(self, report: PendingReport) -> None:
        """Journal the count of ones."""
        self._add(["encoded", report.shown.report_id.hex(), report.ones])

    def ended(self, reports: Sequence[PendingReport]) -> None:
        """Journal that the reports are done with; durable with the next `sync` or never."""
        self._add(["ended", *(report.shown.report_id.hex() for report in reports)])

    def sync(self) -> None:
        """Write and fsync what was added; if that fails, nothing is written and all is kept."""
        with self._lock:
            lines = [self._lines.popleft() for _ in range(len(self._lines))]
            if not lines:
                return
            data = memoryview(b"".join(lines))
            try:
                while data:
                    data = data[self._file.write(data) :]
                os.fsync(self._file.fileno())
            except OSError:
                self._lines.extendleft(reversed(lines))
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file.fileno(), self._size)
                raise
            self._size += sum(map(len, lines))

    def unsent(self, experiment: str) -> list[SavedReport]:
        """The reports of earlier runs that have not ended."""
        found = [saved for name, saved in self._earlier.waiting.values() if name == experiment]
        return [
            s._replace(terms=self._earlier.terms[s.batch_id] if s.ones is None else None)
            for s in found
        ]

    def close(self) -> None:
        """Write the rest and let another process use the file."""
        self.sync()
        self._file.close()
        os.close(self._guard)

    def _add(self, line: list[Any]) -> None:
        self._lines.append(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    def _claim(self) -> int:
        """A lock beside the file: the file itself is replaced on start."""
        path = self._path.with_name(f"{self._path.name}.lock")
        try:
            guard = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigurationError(f"{path}: cannot be opened: {error.strerror}") from None
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(guard)
            raise ConfigurationError(
                f"{self._path}: another process uses it; give each process its own file, and each "
                "user to one process"
            ) from None
        return guard

    def _load(self) -> _JournalState:
        """Replay the journal; a damaged end is what a crash leaves, and nothing of it was sent."""
        state = _JournalState()
        try:
            lines = self._path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return state
        damaged = 0
        for number, line in enumerate(lines, 1):
            try:
                if line:
                    state.replay(line)
            except (ValueError, KeyError, TypeError, ArithmeticError):
                damaged = damaged or number
            else:
                if line and damaged:
                    break
        else:
            if damaged != 1 and (state.salt or not any(lines)):
                return state
        raise ConfigurationError(
            f"{self._path}: damaged at line {damaged or 1}; restore it from a copy (with a new "
            "file, users could report a second time)"
        )

    def _rewrite(self, state: _JournalState) -> None:
        """Replace the journal by its compact form, all of it or nothing."""
        fresh = self._path.with_name(f"{self._path.name}.new")
        with open(fresh, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            for line in state.compact():
                file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
