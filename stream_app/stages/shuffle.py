"""The shuffle stage: reports in, one noisy sum per full window out.

State of one partition, without I/O except the recovery that reads the log. Nothing that depends on
the ones of an open window leaves it: counts by outcome, not contents. A batch has one value, ever:
a sum that is in the log, even in an aborted transaction, is released again byte for byte.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stream_app.config import Settings
from stream_app.core.terms import Limits, Terms, check
from stream_app.core.window import Delta, Place, Refusal, Window, open_window, place
from stream_app.errors import InvalidInput
from stream_app.messages import (
    MAX_REPORT_BYTES,
    decode_delta,
    decode_offer,
    decode_report,
    delta_key,
    encode_delta,
    encode_sum,
)
from stream_app.metrics.instruments import ACCEPTED, REFUSED, Metrics, Released
from stream_app.reports import Reports, decode_reports
from stream_app.stages import recovery
from stream_app.stages.partition import Log, Output, Record, Stage
from stream_app.stages.runner import Runner

log = logging.getLogger("shufflebandit.shuffle")

# A start may read as many reports again as the settings say, and this many times fewer sums.
_SUMS_SHARE = 50


@dataclass(slots=True)
class _Known:
    """What the stage remembers of an experiment's batches."""

    highest: int = 0  # sequence number
    listed: dict[int, str] = field(default_factory=dict)  # newest assignment: sequence -> batch id
    readable: bool = False  # whether an assignment of it could be read


class ShufflePartition:
    """The open windows of one partition of `reports`."""

    def __init__(
        self, limits: Limits, max_reread_records: int, max_unsaved_s: float = 3600
    ) -> None:
        self._limits, self._max_reread = limits, max_reread_records
        self._max_unsaved_ms = 1000 * max_unsaved_s
        self._windows: dict[bytes | None, Window] = {}  # by batch id
        self._known: dict[bytes, _Known] = {}
        self._outputs: list[Output] = []
        self._released = recovery.Released()
        self._opened_ms: dict[str, int] = {}  # by batch id; not of those found at recovery
        self._warned: set[str] = set()
        self._position = 0
        self._mark = 0
        self.accepted = 0
        self.refused: dict[Refusal, int] = dict.fromkeys(Refusal, 0)
        self.refused_terms = 0

    # -- reports ---------------------------------------------------------------------------------

    def feed(self, records: Sequence[Record], *, refreshed: bool) -> int:
        """Count reports into their windows; stops at a batch that may be newer than what it knows.

        The hot path: reports are taken apart together, and those of one batch are counted together.
        """
        reports = decode_reports([record.value for record in records])
        groups = _groups(reports.batches, [record.key for record in records])
        strange = {
            which: self._without_window(records[members[0]])
            for which, members in groups.items()
            if which[0] is not None and which[0] not in self._windows
        }
        unknown = [groups[w][0] for w, why in strange.items() if why is Refusal.UNKNOWN_BATCH]
        if unknown and not refreshed:
            return self.feed(records[: min(unknown)], refreshed=True) if min(unknown) else 0
        full: list[Window] = []
        for (batch, key), members in groups.items():
            window = self._windows.get(batch)
            if batch is None:
                self._refuse(Counter(self._without_window(records[i]) for i in members))
            elif window is None:
                self._refuse({strange[batch, key]: len(members)})
            elif window.key != key:
                self.refused[Refusal.WRONG_KEY] += len(members)
            else:
                self._fill(window, records, reports, members)
                if window.full:
                    full.append(window)
        for window in sorted(full, key=_completed):
            self._release(window)
        self._advance(records)
        return len(records)

    def _fill(
        self, window: Window, records: Sequence[Record], reports: Reports, members: list[int]
    ) -> None:
        """Count the reports of one batch in their order; those after the last one are late."""
        while members and (room := window.room) > 0:
            taken, members = members[:room], members[room:]

            def where(index: int, taken: Sequence[int] = taken) -> Place:
                record = records[taken[index]]
                return place(record.offset, record.timestamp)

            refused = window.accept_all(
                [reports.ids[i] for i in taken], [reports.ones[i] for i in taken], where
            )
            self.accepted += len(taken)
            if refused:
                self.accepted -= sum(refused.values())
                self._refuse(refused)
        self.refused[Refusal.LATE] += len(members)

    def _refuse(self, counts: Mapping[Refusal, int]) -> None:
        for reason, count in counts.items():
            self.refused[reason] += count

    def _advance(self, records: Sequence[Record]) -> None:
        self._position = records[-1].offset + 1
        if self._behind(self._mark) and self._behind(self.mark()):
            self._checkpoint()

    def _behind(self, mark: int) -> bool:
        """Whether a restart from the mark would read too much again."""
        return self._position - mark > self._max_reread

    def _without_window(self, record: Record) -> Refusal:
        """Late if its sequence number is known, unknown otherwise."""
        key, value = record.key, record.value
        if value is not None and len(value) > MAX_REPORT_BYTES:
            return Refusal.OVERSIZED
        try:
            sequence, _, digest = decode_report(value)[0].partition(".")
        except (ValueError, KeyError, TypeError):
            return Refusal.MALFORMED
        if not sequence.isascii() or not sequence.isdigit() or len(sequence) > 15 or not digest:
            return Refusal.MALFORMED
        known = self._known.get(key) if key is not None else None
        if known is not None and int(sequence) <= known.highest:
            return Refusal.LATE
        return Refusal.UNKNOWN_BATCH

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

    # -- marks and checkpoints -------------------------------------------------------------------

    def _oldest(self) -> int:
        """The first offset that only an open window's memory holds."""
        firsts = [w.fresh_first.offset for w in self._windows.values() if w.fresh_first is not None]
        return min(firsts, default=self._position)

    def mark(self) -> int:
        """The first offset that a restart must read again; never falls."""
        self._mark = max(self._mark, self._oldest())
        return self._mark

    def _checkpoint(self) -> None:
        """Save the windows that hold the mark back; those in its newer half can wait."""
        horizon = self._position - self._max_reread // 2
        for window in self._windows.values():
            if window.fresh_first is not None and window.fresh_first.offset < horizon:
                self._save(window)

    def tick(self, now_ms: int) -> None:
        """Save what windows have held for long: retention must not eat it; and what is released."""
        for window in self._windows.values():
            first = window.fresh_first
            if first is not None and now_ms - first.time_ms > self._max_unsaved_ms:
                self._save(window)
        if self._released.unsaved > self._max_reread // _SUMS_SHARE:
            value = self._released.save()
            if value is not None:
                self._outputs.append(Output("windows", recovery.SAVED, value))

    def wrote(self, ends: Mapping[str, int]) -> None:
        """All sums below this offset are among those that are noted as released."""
        self._released.reached = ends.get("sums", self._released.reached)

    def _save(self, window: Window) -> None:
        for delta in window.checkpoint(self._position):
            key = delta_key(window.key, delta.batch_id, delta.number)
            self._outputs.append(Output("windows", key, encode_delta(delta)))

    # -- assignments -----------------------------------------------------------------------------

    def side(self, records: Sequence[Record]) -> None:
        """Open what the newest assignment lists, close what it no longer lists."""
        for record in records:
            self._assign(record.key, record.value, record.timestamp)

    def _assign(
        self,
        key: bytes | None,
        value: bytes | None,
        at_ms: int | None = None,
        released: recovery.Released | None = None,
    ) -> None:
        """Take an assignment. At recovery `released` tells which sequence numbers have a sum.

        A number is opened once: when it is higher than all before, or at recovery if the newest
        assignment lists it and no sum has it.
        """
        listed = self._listed(key, value)
        if listed is None or key is None:
            return
        known = self._known.setdefault(key, _Known())
        known.readable = True
        fresh: dict[int, str] = {}
        for batch_id, terms in sorted(listed.items(), key=lambda entry: _sequence(entry[0])):
            sequence, again = _sequence(batch_id), terms is None
            new = released is not None or sequence > known.highest
            if sequence in fresh or not (again or new):
                self._warn(f"batch {batch_id}", "second terms under a known sequence number")
                continue
            fresh[sequence] = batch_id
            known.highest = max(known.highest, sequence)
            if terms is not None and (released is None or (key, sequence) not in released):
                self._windows[batch_id.encode()] = open_window(batch_id, terms)
                if at_ms is not None:
                    self._opened_ms[batch_id] = at_ms
        for batch_id in known.listed.values():
            window = self._windows.get(batch_id.encode())
            if batch_id not in fresh.values() and window is not None:
                self._forget(window)
        known.listed = fresh

    def _listed(self, key: bytes | None, value: bytes | None) -> dict[str, Terms | None] | None:
        """The batches of an assignment with their checked terms; None if it cannot be used at all.

        A batch that the last assignment listed too has no terms here: its id certifies them.
        """
        try:
            offer = decode_offer(value)
            if key is None or offer.experiment.encode() != key:
                raise InvalidInput("its key is not its experiment")
        except InvalidInput as error:
            self._warn(f"assignment of {(key or b'')[:80]!r}", str(error))
            return None
        before = set(self._known[key].listed.values()) if key in self._known else set()
        listed: dict[str, Terms | None] = {}
        for batch_id, raw in offer.open:
            if batch_id in before:
                listed[batch_id] = None
                continue
            try:
                terms = check(batch_id, raw, self._limits)
                if terms.experiment.encode() != key:
                    raise InvalidInput(f"batch {batch_id[:80]}: its terms are another experiment's")
            except InvalidInput as error:
                self._warn(f"batch {batch_id[:80]}", str(error))
                continue
            listed[batch_id] = terms
        return listed

    def _warn(self, what: str, why: str) -> None:
        """Count a refusal; name it in the log once (and never more than 1000 of them)."""
        self.refused_terms += 1
        if what not in self._warned and len(self._warned) < 1000:
            self._warned.add(what)
            log.warning("refused %s: %s", what, why)

    # -- numbers for the metrics: nothing that depends on the ones of an open window --------------

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
        outputs, self._outputs = self._outputs, []
        return outputs

    async def recover(self, log: Log, mark: int | None) -> int:
        """Windows that are open and not released, with their checkpoints; aborted sums again.

        Sums first: whatever the assignments say, a sequence number that has a sum, committed or
        aborted, is never opened again, and an aborted sum is released again as it is.
        """
        saved = await recovery.newest(log, "windows")
        released = self._released = self._saved(saved.pop(recovery.SAVED, None))
        gaps = await recovery.released(log, released)
        aborted = await recovery.aborted(log, released, gaps)
        self._outputs += [Output("sums", key, value) for (key, _), value in aborted.items()]
        for key, sequence in aborted:
            released.add(key, sequence)
        for key, sequence in (*released.through.items(), *released.beyond):
            known = self._known.setdefault(key, _Known())
            known.highest = max(known.highest, sequence)
        for key, value in (await recovery.newest(log, "assignments")).items():
            self._assign(key, value, released=released)
        self._restore(saved)
        self._mark = self._position = mark or 0
        return self._mark

    def _saved(self, value: bytes | None) -> recovery.Released:
        """What was saved of the releases; if it cannot be read, all sums are read instead."""
        try:
            return recovery.Released.saved(value)
        except InvalidInput as error:
            self._warn("the saved list of releases, all sums are read", str(error))
            return recovery.Released()

    def _restore(self, deltas: Mapping[bytes, bytes | None]) -> None:
        """Take up checkpoints; those of closed batches get tombstones, damaged ones are named."""
        pieces: defaultdict[bytes, dict[bytes, bytes]] = defaultdict(dict)
        for key, value in deltas.items():
            if value is None:
                continue
            experiment, _, rest = key.partition(b"/")
            batch_id = rest.partition(b"/")[0]
            known = self._known.get(experiment)
            if batch_id in self._windows:
                pieces[batch_id][key] = value
            elif known is not None and known.readable:
                self._outputs.append(Output("windows", key, None))
        for batch_id, found in pieces.items():
            window = self._windows[batch_id]
            try:
                for delta in _in_order(found):
                    window.restore(delta)
            except InvalidInput as error:
                what = f"a checkpoint of batch {window.batch_id}, its window begins anew"
                self._warn(what, str(error))
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


def _groups(
    batches: Sequence[bytes | None], keys: Sequence[bytes | None]
) -> dict[tuple[bytes | None, bytes | None], list[int]]:
    """The places of reports by batch and key; where all are alike, without looking at each."""
    if len(set(batches)) == len(set(keys)) == 1:
        return {(batches[0], keys[0]): list(range(len(batches)))}
    groups: defaultdict[tuple[bytes | None, bytes | None], list[int]] = defaultdict(list)
    for index, which in enumerate(zip(batches, keys, strict=True)):
        groups[which].append(index)
    return groups


def _completed(window: Window) -> int:
    """Where the last report of a full window stands."""
    assert window.last is not None
    return window.last.offset


def _sequence(batch_id: str) -> int:
    return int(batch_id.partition(".")[0])


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
    )
    return Runner(settings.kafka, stage, metrics)
