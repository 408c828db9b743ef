"""The shuffle stage: reports in, one noisy sum per full window out.

Theory of operation. State of one partition, without I/O except the recovery that reads the log.

What must stay true, whatever is changed here:
1. *Nothing that depends on the ones of an open window leaves it.* Counts by outcome may, contents
   may not: not in a log line, a metric, a record's size or an error.
2. *A batch has one value, ever.* Its readers are not trusted and may read uncommitted records: two
   values could be subtracted. So a sum that is in the log, even in an aborted transaction, is
   released again byte for byte, and its number is never opened again (RULES 2, `released`).
3. *A window is released at exactly its size*, from the first valid, distinct reports after its
   first one. An incomplete window is never released.
4. *No accepted report is lost, none is counted twice*, across any crash: until a window's release
   or its checkpoint is committed, the restart offset stays at or below its first unsaved report
   (`checkpoints`).

The order of events. `control` opens and closes windows as assignments come. `feed` counts a chunk
(`counting`), then releases what became full, then saves what holds the restart offset back. Their
outputs are taken together and written in one transaction; only when it is committed does the
restart offset go to Kafka. `recover` reads, after the stale worker is fenced: the checkpoints, the
sums (committed, then aborted ones), the assignments; in this order, since a number that has a sum
must be known before an assignment could open it.

A warning for whoever edits: an output that is appended after `take` belongs to the next
transaction. Whatever must be atomic (a sum and its window's tombstones) is appended together.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence

from stream_app.core.terms import Limits
from stream_app.core.window import Window, open_window
from stream_app.errors import InvalidInput
from stream_app.metrics.instruments import ACCEPTED, REFUSED, Metrics, Released
from stream_app.runtime.refusals import Refusals
from stream_app.runtime.runner import Runner
from stream_app.runtime.stage import Log, Output, Record, Stage, newest
from stream_app.settings import Settings
from stream_app.shuffler.checkpoints import Checkpoints, tombstones
from stream_app.shuffler.counting import Counting, Windows
from stream_app.shuffler.open_batches import OpenBatches
from stream_app.shuffler.released import SAVED, ReleasedBatches, aborted_sums, read_released
from stream_app.wire.report import REPORT_BYTES
from stream_app.wire.report_columns import Chunk
from stream_app.wire.sum import encode_sum

log = logging.getLogger("shufflebandit.shuffle")

# A start may read as many reports again as the settings say, and this many times fewer sums: a sum
# costs about as much to read as that many reports.
_SUMS_SHARE = 50


class ShufflePartition:
    """The open windows of one partition of `reports`."""

    def __init__(
        self, limits: Limits, max_reread_records: int, max_unsaved_s: float = 3600
    ) -> None:
        self._max_unsaved_sums = max_reread_records // _SUMS_SHARE
        self._refusals = Refusals(log)
        self._batches = OpenBatches(limits, self._refusals)
        self._windows: Windows = {}
        self._counting = Counting(self._windows, self._batches)
        self._checkpoints = Checkpoints(self._windows, max_reread_records, max_unsaved_s)
        self._released = ReleasedBatches()
        self._opened_ms: dict[str, int] = {}  # by batch id; not of those found at recovery
        self._outputs: list[Output] = []

    @property
    def windows(self) -> Mapping[bytes | None, Window]:
        """The open windows by batch id; for tests, never for a metric."""
        return self._windows

    # -- reports ---------------------------------------------------------------------------------

    def feed(self, records: Sequence[Record] | Chunk, *, refreshed: bool) -> Chunk | None:
        """Count reports into their windows; gives back what assignments must be read for first."""
        counted = self._counting.count(Chunk.of(records), refreshed=refreshed)
        for window in counted.full:
            self._release(window)
        if counted.position is not None:
            self._outputs += self._checkpoints.advance(counted.position)
        return counted.rest

    def _release(self, window: Window) -> None:
        release = window.release()
        opened_ms = self._opened_ms.get(window.batch_id)
        times = Released(opened_ms, release.first.time_ms, release.last.time_ms)
        self._outputs.append(Output("sums", window.key, encode_sum(release), times))
        self._released.add(window.key, release.terms.sequence)
        self._forget(window)

    def _forget(self, window: Window) -> None:
        """Close a window; its checkpoints get tombstones in the same transaction."""
        del self._windows[window.batch_id.encode()]
        self._opened_ms.pop(window.batch_id, None)
        self._outputs += tombstones(window)

    # -- assignments -----------------------------------------------------------------------------

    def control(self, records: Sequence[Record]) -> None:
        """Open what the newest assignment lists, close what it no longer lists."""
        for record in records:
            self._assign(record.key, record.value, record.timestamp)

    def _assign(
        self,
        key: bytes | None,
        value: bytes | None,
        at_ms: int | None = None,
        released: ReleasedBatches | None = None,
    ) -> None:
        """Take an assignment; at recovery `released` tells which sequence numbers have a sum."""
        change = self._batches.take(key, value, released)
        for batch_id, terms in change.opened:
            self._windows[batch_id.encode()] = open_window(batch_id, terms)
            if at_ms is not None:
                self._opened_ms[batch_id] = at_ms
        for batch_id in change.closed:
            window = self._windows.get(batch_id.encode())
            if window is not None:
                self._forget(window)

    # -- what is written, and where a restart begins -----------------------------------------------

    def take(self) -> list[Output]:
        """The outputs since the last call."""
        outputs = self._outputs
        self._outputs = []
        return outputs

    def wrote(self, ends: Mapping[str, int]) -> None:
        """All sums below this offset are among those that are noted as released."""
        self._released.reached = ends.get("sums", self._released.reached)

    def restart_offset(self) -> int:
        """The first offset that a restart must read again; never falls."""
        return self._checkpoints.restart_offset()

    def tick(self, now_ms: int) -> None:
        """Save what windows have held for long, and what is released."""
        self._outputs += self._checkpoints.overdue(now_ms)
        if self._released.unsaved > self._max_unsaved_sums:
            value = self._released.save()
            if value is not None:
                self._outputs.append(Output("windows", SAVED, value))

    # -- numbers for the metrics: nothing that depends on the ones of an open window --------------

    def counts(self) -> dict[str, int]:
        """Reports by outcome, and terms, assignments and checkpoints that were refused."""
        refused = {str(reason): count for reason, count in self._counting.refused.items()}
        return {ACCEPTED: self._counting.accepted, **refused, REFUSED: self._refusals.count}

    def levels(self) -> dict[str, int]:
        """The open windows, the reports in them, and how many they will have."""
        windows = self._windows.values()
        filled = sum(len(window.ids) for window in windows)
        wanted = sum(window.size for window in windows)
        return {"windows": len(windows), "filled": filled, "wanted": wanted}

    # -- recovery --------------------------------------------------------------------------------

    async def recover(self, log: Log, restart_offset: int | None) -> int:
        """Windows that are open and not released, with their checkpoints; aborted sums again.

        Sums first: whatever the assignments say, a sequence number that has a sum, committed or
        aborted, is never opened again, and an aborted sum is released again as it is.
        """
        saved = await newest(log, "windows")
        released = self._released = self._saved_releases(saved.pop(SAVED, None))
        gaps = await read_released(log, released)
        aborted = await aborted_sums(log, released, gaps)
        self._outputs += [Output("sums", key, value) for (key, _), value in aborted.items()]
        for key, sequence in aborted:
            released.add(key, sequence)
        self._batches.note((*released.through.items(), *released.beyond))
        for key, value in (await newest(log, "assignments")).items():
            self._assign(key, value, released=released)
            await asyncio.sleep(0)  # heartbeats go on, whatever the agent wrote
        self._outputs += self._checkpoints.restore(saved, self._batches, self._refusals)
        start = restart_offset or 0
        self._checkpoints.start(start)
        return start

    def _saved_releases(self, value: bytes | None) -> ReleasedBatches:
        """What was saved of the releases; if it cannot be read, all sums are read instead."""
        try:
            return ReleasedBatches.saved(value)
        except InvalidInput as error:
            self._refusals.add("the saved list of releases, all sums are read", str(error))
            return ReleasedBatches()


def make_runner(settings: Settings, metrics: Metrics | None = None) -> Runner:
    """The shuffle stage of a worker."""
    shuffle = settings.shuffle

    def make() -> ShufflePartition:
        return ShufflePartition(settings.limits, shuffle.max_reread_records, shuffle.max_unsaved_s)

    stage = Stage(
        "shuffle",
        "reports",
        "assignments",
        False,
        shuffle.group,
        shuffle.instance_id,
        make,
        delete_input=not shuffle.retain_reports_for_audit,
        value_bytes=REPORT_BYTES,
    )
    return Runner(settings.kafka, stage, metrics)
