"""Reports of pages that were left, of one partition, until they are due. Pure: no clock, no Kafka.

Theory of operation
===================

A page that is left hands its report over, and somebody else must send it when the page itself would
have. What is handed over stands in the topic `held` before the page gets its answer. The gateway
that owns the partition reads it in the order of the log, and this class says what is due, and from
where a new owner must read.

1. The newest handover of a report id counts: a page that came back and was clicked in time replaces
   its value. One that comes when the report is leaving or has left changes nothing: no id leaves
   with two values.
2. `restart` is the smallest offset whose report has not left. Nothing below it is needed again.
3. Above it there are reports that have left. `progress` is a note for the log that names them by
   offset and time, and a new owner who reads the note forgets them. It may be missing: then they
   leave again, and the shuffle stage knows their ids.
4. A report leaves the memory only when Kafka has acknowledged it on `reports` (`left`).
"""

import heapq
from collections import deque
from dataclasses import dataclass

from stream_app.wire.held import Handover, Progress

# A page's second handover of one report comes within its window, so a second before the first one
# is due; this is what clocks, networks and a busy reader may add to it.
_REMEMBER_MS = 60_000

Name = tuple[bytes, str]  # the experiment's key and the report's id


@dataclass(frozen=True, slots=True)
class Waiting:
    """One report that waits."""

    name: Name
    offset: int
    due_ms: int
    report: bytes

    @property
    def key(self) -> bytes:
        """The key of its record."""
        return self.name[0]


class HeldReports:
    """What waits of one partition."""

    def __init__(self) -> None:
        self.position = 0  # behind the last record that was taken
        self._waiting: dict[Name, Waiting] = {}
        self._by_due: list[tuple[int, int, Name]] = []  # with stale entries: see `_current`
        self._by_offset: list[tuple[int, Name]] = []  # the same
        self._leaving: set[Name] = set()
        self._left: set[Name] = set()
        self._left_at: deque[tuple[int, Name]] = deque()
        self._noted = True  # nothing has left since the last note

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, offset: int, key: bytes, held: Handover | Progress) -> None:
        """The next record of the log."""
        self.position = offset + 1
        if isinstance(held, Progress):
            self._forget(held)
            return
        name = (key, held.report_id)
        if name in self._leaving or name in self._left:
            return
        self._waiting[name] = Waiting(name, offset, held.due_ms, held.report)
        heapq.heappush(self._by_due, (held.due_ms, offset, name))
        heapq.heappush(self._by_offset, (offset, name))

    def skip(self, offset: int) -> None:
        """The next record says nothing."""
        self.position = offset + 1

    def due(self, now_ms: int) -> list[Waiting]:
        """What is to leave now; each is given back by `left` or `stays`."""
        found = []
        while self._by_due and self._by_due[0][0] <= now_ms:
            _, offset, name = heapq.heappop(self._by_due)
            one = self._current(name, offset)
            if one is not None:
                self._leaving.add(name)
                found.append(one)
        self._forget_left(now_ms)
        return found

    def next_due_ms(self) -> int | None:
        """When something is due next; None if nothing waits."""
        while self._by_due:
            due_ms, offset, name = self._by_due[0]
            if self._current(name, offset) is not None:
                return due_ms
            heapq.heappop(self._by_due)
        return None

    def left(self, one: Waiting) -> None:
        """Kafka has it."""
        self._leaving.discard(one.name)
        self._waiting.pop(one.name, None)
        self._left.add(one.name)
        self._left_at.append((one.due_ms, one.name))
        self._noted = False

    def stays(self, one: Waiting) -> None:
        """It could not be sent, and is still due."""
        self._leaving.discard(one.name)
        heapq.heappush(self._by_due, (one.due_ms, one.offset, one.name))

    def restart(self) -> int:
        """From where a new owner must read."""
        while self._by_offset:
            offset, name = self._by_offset[0]
            if self._current(name, offset, leaving=True) is not None:
                return offset
            heapq.heappop(self._by_offset)
        return self.position

    def progress(self, now_ms: int) -> Progress | None:
        """A note of what has left; None if nothing has since the last one."""
        if self._noted:
            return None
        pending = [self._waiting[name].due_ms for name in self._leaving]
        next_ms = self.next_due_ms()
        if next_ms is not None:
            pending.append(next_ms)
        until_ms = min([now_ms, *(due_ms - 1 for due_ms in pending)])
        self._noted = until_ms == now_ms  # else something left that was due after what waits
        return Progress(self.position, until_ms)

    def _current(self, name: Name, offset: int, *, leaving: bool = False) -> Waiting | None:
        """The report that a heap's entry means; None if it was replaced, has left or is leaving."""
        one = self._waiting.get(name)
        if one is None or one.offset != offset or (name in self._leaving and not leaving):
            return None
        return one

    def _forget(self, progress: Progress) -> None:
        kept = []
        while self._by_due and self._by_due[0][0] <= progress.until_ms:
            entry = heapq.heappop(self._by_due)
            _, offset, name = entry
            one = self._current(name, offset)
            if one is not None and offset < progress.before:
                del self._waiting[name]
            elif one is not None:
                kept.append(entry)
        for entry in kept:
            heapq.heappush(self._by_due, entry)

    def _forget_left(self, now_ms: int) -> None:
        while self._left_at and self._left_at[0][0] + _REMEMBER_MS < now_ms:
            _, name = self._left_at.popleft()
            self._left.discard(name)
