"""The shuffle stage: reports in, one noisy sum per full window out.

State of one partition, without I/O except the recovery that reads the log. Nothing that depends on
the ones of an open window leaves it: counts by outcome, not contents. A batch has one value, ever:
a sum that is in the log, even in an aborted transaction, is released again byte for byte.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from stream_app.core.batch_id import stated_sequence
from stream_app.core.terms import Limits
from stream_app.core.window import Delta, Place, Refusal, Window, open_window, place
from stream_app.errors import InvalidInput
from stream_app.metrics.instruments import ACCEPTED, REFUSED, Metrics, Released
from stream_app.runtime.refusals import Refusals
from stream_app.runtime.runner import Runner
from stream_app.runtime.stage import Log, Output, Record, Stage, newest
from stream_app.settings import Settings
from stream_app.shuffler.open_batches import OpenBatches
from stream_app.shuffler.released import SAVED, ReleasedBatches, aborted_sums, read_released
from stream_app.wire.checkpoint import decode_delta, delta_key, encode_delta
from stream_app.wire.report import MAX_REPORT_BYTES, REPORT_BYTES, decode_report
from stream_app.wire.report_columns import Chunk, Group, Sorted
from stream_app.wire.sum import encode_sum

log = logging.getLogger("shufflebandit.shuffle")

# A start may read as many reports again as the settings say, and this many times fewer sums.
_SUMS_SHARE = 50


class ShufflePartition:
    """The open windows of one partition of `reports`."""

    def __init__(
        self, limits: Limits, max_reread_records: int, max_unsaved_s: float = 3600
    ) -> None:
        self._max_reread = max_reread_records
        self._max_unsaved_ms = 1000 * max_unsaved_s
        self._refusals = Refusals(log)
        self._offers = OpenBatches(limits, self._refusals)
        self._windows: dict[bytes | None, Window] = {}  # by batch id
        self._outputs: list[Output] = []
        self._released = ReleasedBatches()
        self._opened_ms: dict[str, int] = {}  # by batch id; not of those found at recovery
        self._position = 0
        self._restart_offset = 0
        self.accepted = 0
        self.refused: dict[Refusal, int] = dict.fromkeys(Refusal, 0)

    # -- reports ---------------------------------------------------------------------------------

    def feed(self, records: Sequence[Record] | Chunk, *, refreshed: bool) -> Chunk | None:
        """Count reports into their windows; stops at a batch that may be newer than what it knows.

        The hot path: reports are taken apart together, and those of one batch are counted together.
        """
        chunk = Chunk.of(records)
        reports = chunk.by_batch()
        windows = self._windows
        strange = [
            found
            for group in reports.groups
            if group.batch is not None and group.batch not in windows
            for found in self._strange(chunk, reports, group)
        ]
        unknown = [first for first, why, _ in strange if why is Refusal.UNKNOWN_BATCH]
        if unknown and not refreshed:
            known = min(unknown)
            if known:
                self.feed(chunk.part(0, known), refreshed=True)
            return chunk.part(known, len(chunk))
        for _, why, count in strange:
            self.refused[why] += count

        def where(index: int) -> Place:
            return place(*chunk.place(index))

        full: list[Window] = []
        for group in reports.groups:
            window = windows.get(group.batch)
            if window is not None:
                self._fill(window, reports, group, where)
                if window.full:
                    full.append(window)
            elif group.batch is None:
                for index in reports.places[group.first : group.last]:
                    self.refused[self._without_window(chunk, index)] += 1
        for window in sorted(full, key=_completed):
            self._release(window)
        self._advance(chunk.place(-1)[0] + 1)
        return None

    def _fill(
        self, window: Window, reports: Sorted, group: Group, where: Callable[[int], Place]
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
                reports.ids[first:stop], reports.ones[first:stop], reports.places[first:stop], where
            )
            self.accepted += stop - first
            for why, count in refused.items():
                self.accepted -= count
                self.refused[why] += count
            first = stop
        self.refused[Refusal.LATE] += last - first

    def _strange(
        self, chunk: Chunk, reports: Sorted, group: Group
    ) -> Iterator[tuple[int, Refusal, int]]:
        """Reports to a batch that has no window, by key: the first one's place, why, how many."""
        keys = reports.keys[group.first : group.last]
        places = reports.places[group.first : group.last]
        first = dict(zip(reversed(keys), reversed(places), strict=True))
        for key, count in Counter(keys).items():
            yield first[key], self._without_window(chunk, first[key]), count

    def _advance(self, position: int) -> None:
        self._position = position
        if self._behind(self._restart_offset) and self._behind(self.restart_offset()):
            self._checkpoint()

    def _behind(self, offset: int) -> bool:
        """Whether a restart from the offset would read too much again."""
        return self._position - offset > self._max_reread

    def _without_window(self, chunk: Chunk, index: int) -> Refusal:
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
        had = self._offers.has_had(chunk.keys[index], sequence)
        return Refusal.LATE if had else Refusal.UNKNOWN_BATCH

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
        for number in range(window.deltas):
            key = delta_key(window.key, window.batch_id, number)
            self._outputs.append(Output("windows", key, None))

    # -- restart offset and checkpoints ----------------------------------------------------------

    def _oldest(self) -> int:
        """The first offset that only an open window's memory holds."""
        firsts = [
            w.unsaved_first.offset for w in self._windows.values() if w.unsaved_first is not None
        ]
        return min(firsts, default=self._position)

    def restart_offset(self) -> int:
        """The first offset that a restart must read again; never falls."""
        self._restart_offset = max(self._restart_offset, self._oldest())
        return self._restart_offset

    def _checkpoint(self) -> None:
        """Save the windows that hold the offset back; those in its newer half can wait."""
        horizon = self._position - self._max_reread // 2
        for window in self._windows.values():
            if window.unsaved_first is not None and window.unsaved_first.offset < horizon:
                self._save(window)

    def tick(self, now_ms: int) -> None:
        """Save what windows have held for long: retention must not eat it; and what is released."""
        for window in self._windows.values():
            first = window.unsaved_first
            if first is not None and now_ms - first.time_ms > self._max_unsaved_ms:
                self._save(window)
        if self._released.unsaved > self._max_reread // _SUMS_SHARE:
            value = self._released.save()
            if value is not None:
                self._outputs.append(Output("windows", SAVED, value))

    def wrote(self, ends: Mapping[str, int]) -> None:
        """All sums below this offset are among those that are noted as released."""
        self._released.reached = ends.get("sums", self._released.reached)

    def _save(self, window: Window) -> None:
        for delta in window.checkpoint(self._position):
            key = delta_key(window.key, delta.batch_id, delta.number)
            self._outputs.append(Output("windows", key, encode_delta(delta)))

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
        change = self._offers.take(key, value, released)
        for batch_id, terms in change.opened:
            self._windows[batch_id.encode()] = open_window(batch_id, terms)
            if at_ms is not None:
                self._opened_ms[batch_id] = at_ms
        for batch_id in change.closed:
            window = self._windows.get(batch_id.encode())
            if window is not None:
                self._forget(window)

    # -- numbers for the metrics: nothing that depends on the ones of an open window --------------

    @property
    def refused_terms(self) -> int:
        """Terms, assignments and checkpoints that were refused."""
        return self._refusals.count

    def counts(self) -> dict[str, int]:
        """Reports by outcome, and terms and assignments that were refused."""
        refused = {str(reason): count for reason, count in self.refused.items()}
        return {ACCEPTED: self.accepted, **refused, REFUSED: self.refused_terms}

    def levels(self) -> dict[str, int]:
        """The open windows, the reports in them, and how many they will have."""
        windows = self._windows.values()
        filled = sum(len(window.ids) for window in windows)
        wanted = sum(window.size for window in windows)
        return {"windows": len(windows), "filled": filled, "wanted": wanted}

    # -- recovery --------------------------------------------------------------------------------

    def take(self) -> list[Output]:
        """The outputs since the last call."""
        outputs = self._outputs
        self._outputs = []
        return outputs

    async def recover(self, log: Log, restart_offset: int | None) -> int:
        """Windows that are open and not released, with their checkpoints; aborted sums again.

        Sums first: whatever the assignments say, a sequence number that has a sum, committed or
        aborted, is never opened again, and an aborted sum is released again as it is.
        """
        saved = await newest(log, "windows")
        released = self._released = self._saved(saved.pop(SAVED, None))
        gaps = await read_released(log, released)
        aborted = await aborted_sums(log, released, gaps)
        self._outputs += [Output("sums", key, value) for (key, _), value in aborted.items()]
        for key, sequence in aborted:
            released.add(key, sequence)
        self._offers.note((*released.through.items(), *released.beyond))
        for key, value in (await newest(log, "assignments")).items():
            self._assign(key, value, released=released)
        self._restore(saved)
        self._restart_offset = self._position = restart_offset or 0
        return self._restart_offset

    def _saved(self, value: bytes | None) -> ReleasedBatches:
        """What was saved of the releases; if it cannot be read, all sums are read instead."""
        try:
            return ReleasedBatches.saved(value)
        except InvalidInput as error:
            self._refusals.add("the saved list of releases, all sums are read", str(error))
            return ReleasedBatches()

    def _restore(self, deltas: Mapping[bytes, bytes | None]) -> None:
        """Take up checkpoints; those of closed batches get tombstones, damaged ones are named."""
        pieces: defaultdict[bytes, dict[bytes, bytes]] = defaultdict(dict)
        for key, value in deltas.items():
            if value is None:
                continue
            experiment, _, rest = key.partition(b"/")
            batch_id = rest.partition(b"/")[0]
            if batch_id in self._windows:
                pieces[batch_id][key] = value
            elif self._offers.readable(experiment):
                self._outputs.append(Output("windows", key, None))
        for batch_id, found in pieces.items():
            window = self._windows[batch_id]
            try:
                for delta in _in_order(found):
                    window.restore(delta)
            except InvalidInput as error:
                what = f"a checkpoint of batch {window.batch_id}, its window begins anew"
                self._refusals.add(what, str(error))
                # All go, or those that are left would be taken for the new window's.
                self._outputs += [Output("windows", key, None) for key in found]


def _in_order(pieces: Mapping[bytes, bytes]) -> list[Delta]:
    """The checkpoints of one window, by key, in the order of their numbers. None may be missing.

    Raises InvalidInput.
    """
    deltas = sorted(map(decode_delta, pieces.values()), key=lambda delta: delta.number)
    for number, delta in enumerate(deltas):
        if delta.number != number:
            raise InvalidInput(f"number {number} is missing")
    return deltas


def _completed(window: Window) -> int:
    """Where the last report of a full window stands."""
    assert window.last is not None
    return window.last.offset


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
