"""Checkpoints: what a restart would read again, and how little of it there is.

The log is the state: after a crash a window is filled again from `reports`, beginning at the
*restart offset*, the first offset that only an open window's memory holds. One stalled window
beside busy ones would hold that offset back for ever. So a window that does is saved to `windows`:
the ids that it accepted since its last checkpoint, their total, and the offset that they reach.
Checkpoints only add to each other; a restored window ignores reports below the offset reached.
Its release, or its end, writes tombstones in the same transaction (RULES 9, 10).

What is saved is as secret as `reports`. It knows windows, and not why one is open.
"""

from collections import defaultdict
from collections.abc import Mapping

from stream_app.core.window import Delta, Window
from stream_app.errors import InvalidInput
from stream_app.runtime.refusals import Refusals
from stream_app.runtime.stage import Output
from stream_app.shuffler.counting import Windows
from stream_app.shuffler.open_batches import OpenBatches
from stream_app.wire.checkpoint import decode_delta, delta_key, encode_delta


class Checkpoints:
    """The restart offset of one partition, and what is saved so that it moves on."""

    def __init__(self, windows: Windows, max_reread_records: int, max_unsaved_s: float) -> None:
        self._windows = windows
        self._max_reread = max_reread_records
        self._max_unsaved_ms = 1000 * max_unsaved_s
        self._position = 0
        self._restart_offset = 0

    def start(self, position: int) -> None:
        """Counting begins here."""
        self._position = position
        self._restart_offset = position

    def restart_offset(self) -> int:
        """The first offset that a restart must read again; never falls.

        A window whose batch became known late may hold a report from before: whoever restarts
        will know that batch from the start, and a checkpoint reaches at least as far.
        """
        held = [w.unsaved_first.offset for w in self._windows.values() if w.unsaved_first]
        self._restart_offset = max(self._restart_offset, min(held, default=self._position))
        return self._restart_offset

    def advance(self, position: int) -> list[Output]:
        """All before `position` is counted. If a restart would read too much, windows are saved.

        Those that hold the offset back; those in the newer half of what is read again can wait.
        """
        self._position = position
        # The remembered offset is a lower bound: it is asked first, since it costs nothing.
        if not self._behind(self._restart_offset) or not self._behind(self.restart_offset()):
            return []
        horizon = position - self._max_reread // 2
        return [
            output
            for window in self._windows.values()
            if window.unsaved_first is not None and window.unsaved_first.offset < horizon
            for output in self._save(window)
        ]

    def overdue(self, now_ms: int) -> list[Output]:
        """What windows have held for long is saved: retention must not eat it."""
        return [
            output
            for window in self._windows.values()
            if window.unsaved_first is not None
            and now_ms - window.unsaved_first.time_ms > self._max_unsaved_ms
            for output in self._save(window)
        ]

    def _behind(self, offset: int) -> bool:
        """Whether a restart from there would read too much again."""
        return self._position - offset > self._max_reread

    def _save(self, window: Window) -> list[Output]:
        return [
            Output("windows", delta_key(window.key, d.batch_id, d.number), encode_delta(d))
            for d in window.checkpoint(self._position)
        ]

    def restore(
        self, saved: Mapping[bytes, bytes | None], batches: OpenBatches, refusals: Refusals
    ) -> list[Output]:
        """Take up checkpoints; those of closed batches get tombstones, damaged ones are named."""
        outputs: list[Output] = []
        pieces: defaultdict[bytes, dict[bytes, bytes]] = defaultdict(dict)
        for key, value in saved.items():
            if value is None:
                continue
            experiment, _, rest = key.partition(b"/")
            batch_id = rest.partition(b"/")[0]
            if batch_id in self._windows:
                pieces[batch_id][key] = value
            elif batches.readable(experiment):
                outputs.append(Output("windows", key, None))
        for batch_id, found in pieces.items():
            window = self._windows[batch_id]
            try:
                for delta in _in_order(found):
                    window.restore(delta)
            except InvalidInput as error:
                what = f"a checkpoint of batch {window.batch_id}, its window begins anew"
                refusals.add(what, str(error))
                # All go, or those that are left would be taken for the new window's.
                outputs += [Output("windows", key, None) for key in found]
        return outputs


def tombstones(window: Window) -> list[Output]:
    """What removes a window's checkpoints, for the transaction in which it ends."""
    return [
        Output("windows", delta_key(window.key, window.batch_id, number), None)
        for number in range(window.deltas)
    ]


def _in_order(pieces: Mapping[bytes, bytes]) -> list[Delta]:
    """The checkpoints of one window, by key, in the order of their numbers. None may be missing.

    Raises InvalidInput.
    """
    deltas = sorted(map(decode_delta, pieces.values()), key=lambda delta: delta.number)
    for number, delta in enumerate(deltas):
        if delta.number != number:
            raise InvalidInput(f"number {number} is missing")
    return deltas
