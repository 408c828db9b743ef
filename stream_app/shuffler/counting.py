"""Counting: which report goes into which open window, and why some go into none.

The hot path of the service. Reports are taken apart by column (`wire.report_columns`), those of one
batch are counted together, and nothing is looked up, logged or allocated for a single report. Its
simple twin is the model in tests/shuffler/test_model.py, which counts one report after the other.

It knows windows and reports, and neither the log's restart nor what is written.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from stream_app.core.batch_id import stated_sequence
from stream_app.core.window import LogPosition, Refusal, Window, log_position
from stream_app.shuffler.open_batches import OpenBatches
from stream_app.wire.report import MAX_REPORT_BYTES, decode_report
from stream_app.wire.report_columns import Chunk, Group, Sorted

# By batch id. A malformed report has no batch id, and so never finds a window.
Windows = dict[bytes | None, Window]


@dataclass(frozen=True, slots=True)
class CountedChunk:
    """What became of a chunk of reports."""

    full: list[Window]  # in the order in which they became full
    position: int | None  # behind the last report that was looked at; None if none was
    rest: Chunk | None  # not looked at yet: assignments must be read first


class Counting:
    """The counts of one partition of `reports`."""

    def __init__(self, windows: Windows, batches: OpenBatches) -> None:
        self._windows = windows
        self._batches = batches
        self.accepted = 0
        self.refused: dict[Refusal, int] = dict.fromkeys(Refusal, 0)

    def count(self, chunk: Chunk, *, refreshed: bool) -> CountedChunk:
        """Count reports into their windows; stops at a batch that may be newer than what it knows.

        With `refreshed` the assignments were just read to their end: what is still unknown is
        refused. A client may be ahead of this stage, and such a report must not be lost.
        """
        reports = chunk.by_batch()
        homeless = [
            found
            for group in reports.groups
            if group.batch is not None and group.batch not in self._windows
            for found in self._without_window(chunk, reports, group)
        ]
        unknown = [first for first, why, _ in homeless if why is Refusal.UNKNOWN_BATCH]
        if unknown and not refreshed:
            known = min(unknown)
            rest = chunk.part(known, len(chunk))
            if not known:
                return CountedChunk([], None, rest)
            before = self.count(chunk.part(0, known), refreshed=True)
            return CountedChunk(before.full, before.position, rest)
        for _, why, count in homeless:
            self.refused[why] += count
        full = self._fill_all(chunk, reports)
        return CountedChunk(full, chunk.position(-1)[0] + 1, None)

    def _fill_all(self, chunk: Chunk, reports: Sorted) -> list[Window]:
        """Count what has a window; the windows that are full now."""

        def where(index: int) -> LogPosition:
            return log_position(*chunk.position(index))

        full: list[Window] = []
        for group in reports.groups:
            window = self._windows.get(group.batch)
            if window is not None:
                self._fill(window, reports, group, where)
                if window.full:
                    full.append(window)
            elif group.batch is None:
                for index in reports.indices[group.first : group.last]:
                    self.refused[self._why_homeless(chunk, index)] += 1
        return sorted(full, key=_completed)

    def _fill(
        self, window: Window, reports: Sorted, group: Group, where: Callable[[int], LogPosition]
    ) -> None:
        """Count the reports of one batch in their order; those after the last one are late."""
        _, first, last = group
        if reports.keys[first:last].count(window.key) < last - first:
            reports = reports.only(group, window.key)
            self.refused[Refusal.WRONG_KEY] += last - first - len(reports.ids)
            first = 0
            last = len(reports.ids)
        while first < last and (room := window.room) > 0:
            stop = min(last, first + room)
            refused = window.accept_all(
                reports.ids[first:stop],
                reports.ones[first:stop],
                reports.indices[first:stop],
                where,
            )
            self.accepted += stop - first
            for why, count in refused.items():
                self.accepted -= count
                self.refused[why] += count
            first = stop
        self.refused[Refusal.LATE] += last - first

    def _without_window(
        self, chunk: Chunk, reports: Sorted, group: Group
    ) -> Iterator[tuple[int, Refusal, int]]:
        """Reports to a batch that has no window, by key: the first one's index, why, how many.

        By key, since whoever may write reports can put another experiment's batch under any key.
        """
        keys = reports.keys[group.first : group.last]
        indices = reports.indices[group.first : group.last]
        first = dict(zip(reversed(keys), reversed(indices), strict=True))
        for key, count in Counter(keys).items():
            yield first[key], self._why_homeless(chunk, first[key]), count

    def _why_homeless(self, chunk: Chunk, index: int) -> Refusal:
        """Late if its sequence number is known, unknown otherwise."""
        value = chunk.value(index)
        if len(value) > MAX_REPORT_BYTES:
            return Refusal.OVERSIZED
        try:
            sequence = stated_sequence(decode_report(value)[0])
        except (ValueError, KeyError, TypeError):
            return Refusal.MALFORMED
        if sequence is None:
            return Refusal.MALFORMED
        had = self._batches.has_had(chunk.keys[index], sequence)
        return Refusal.LATE if had else Refusal.UNKNOWN_BATCH


def _completed(window: Window) -> int:
    """Where the last report of a full window stands."""
    assert window.last is not None
    return window.last.offset
