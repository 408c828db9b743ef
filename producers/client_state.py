"""Who is bound to which batch, and which reports are due: the client without its network.

Synchronous: `choose`, `report` and `due` decide, the client sends. Time and memory are given from
outside. What a report says is decided once, by `report` before the deadline, or as 0 at it.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from producers.batches import Batch, OpenBatches, Report, Shown, forgets_on_fork
from producers.store import Budget, Saved, Spent, Store
from stream_app.core.terms import Limits
from stream_app.errors import ConfigurationError, IllegalTransition, InvalidInput, Unavailable
from stream_app.wire.assignment import decode_offer

_FEW = 1_000  # users whose report has left are forgotten when there are more


@dataclass(slots=True)
class Counts:
    """What a client did; nothing here depends on a reward."""

    chosen: int = 0  # users bound to a batch
    sent: int = 0  # reports acknowledged
    repeated: int = 0  # choices for a user who has reported
    over_budget: int = 0  # choices for a user who has spent the budget
    full: int = 0  # choices while too many reports wait
    late: int = 0  # rewards after the deadline, given twice, or for no batch


class ClientState:
    """The bookkeeping of one experiment's client."""

    def __init__(
        self,
        experiment: str,
        limits: Limits,
        store: Store,
        budget: Budget,
        max_waiting: int,
        clock_ms: Callable[[], int],
    ) -> None:
        self.counts = Counts()
        self.experiment = experiment
        self.batches = OpenBatches(experiment, limits)
        self.bound = 0  # users whose report is not acknowledged yet
        self.unanswered: dict[bytes, Report] = {}  # those without a reward so far, by report id
        self.leaving: list[Report] = []  # encoded, and their time has come
        self.wake: Callable[[], None] = lambda: None  # called when there is more to do
        self._store = store
        self._budget = budget
        self._max_waiting = max_waiting
        self._clock_ms = clock_ms
        self._by_user: dict[bytes, Report] = {}  # not all of them wait: see `end`
        self._deadlines: list[tuple[int, int, Report]] = []  # a heap
        self._numbers = count()
        self._affordable: dict[tuple[Spent, Batch], bool] = {}
        self._forked = False
        forgets_on_fork(self)

    def discard(self) -> None:
        """In a forked child: connections, file and reports are the parent's."""
        self._forked = True
        self.unanswered.clear()

    def choose(self, user: str) -> Shown:
        """What to show the user; the same again until their report leaves."""
        self._refuse_forked()
        tag = self._store.tag(user)
        waiting = self._by_user.get(tag)
        if waiting is not None and not waiting.left:
            return waiting.shown
        batch = self.batches.pick()
        if batch is None:
            return Shown(self._fallback(), "")
        if not self._may_report(tag, batch):
            return Shown(batch.arm, "")
        window = batch.attribution_ms
        deadline = self._clock_ms() + window if window else None
        shown = Shown(batch.arm, batch.batch_id, self.batches.report_id())
        report = Report(self.experiment, shown, tag, deadline, batch)
        self._store.chosen(report)
        self._keep(report)
        self.counts.chosen += 1
        return shown

    def report(self, shown: Shown, reward: float) -> bool:
        """Take a user's reward, from 0 to 1; False if it cannot count (no batch, late, twice)."""
        if not 0 <= reward <= 1:
            raise ConfigurationError("reward: must be a number from 0 to 1")
        report = self.unanswered.pop(shown.report_id, None)
        if report is None:
            return self._too_late()
        deadline = report.deadline_ms
        if deadline is not None and self._clock_ms() >= deadline:
            return self._too_late()
        # As in `due` and `_leave`: products call this for every user.
        assert report.batch is not None
        report.ones = report.batch.encode(reward)
        self._store.encoded(report)
        if deadline is None:
            if not self.leaving:
                self.wake()
            self.leaving.append(report)
            report.left = True
        return True

    def _too_late(self) -> bool:
        self._refuse_forked()
        self.counts.late += 1
        return False

    def _refuse_forked(self) -> None:
        if self._forked:
            raise IllegalTransition("this client was made before a fork; make one per process")

    def follow(self, value: bytes | None) -> list[str]:
        """Take the newest assignment; returns why terms were refused. Raises InvalidInput."""
        reasons = self.batches.take(decode_offer(value))
        self._affordable.clear()
        # Without a window nobody can tell when a reward comes: give up with the batch.
        given_up = [
            report
            for report in self.unanswered.values()
            if report.deadline_ms is None and report.shown.batch_id not in self.batches.open
        ]
        for report in given_up:
            del self.unanswered[report.shown.report_id]
            report.left = True
        self.end(given_up)
        return reasons

    def due(self) -> None:
        """Move the reports whose deadline has come to `leaving`; without a reward, as 0."""
        now = self._clock_ms()
        while self._deadlines and self._deadlines[0][0] <= now:
            report = heapq.heappop(self._deadlines)[2]
            if report.ones is None:
                self.unanswered.pop(report.shown.report_id, None)
                assert report.batch is not None
                report.ones = report.batch.encode(0)
                self._store.encoded(report)
            self._leave(report)

    def next_due_s(self) -> float | None:
        """Seconds until the next deadline; None if no report waits for one."""
        if not self._deadlines:
            return None
        return max(0.0, (self._deadlines[0][0] - self._clock_ms()) / 1000)

    def end(self, reports: Sequence[Report]) -> None:
        """Forget reports that were acknowledged or given up."""
        if not reports:
            return
        self.bound -= len(reports)
        # All at once now and then: one by one they would have to be found again.
        if len(self._by_user) > 2 * self.bound + _FEW:
            self._by_user = {tag: r for tag, r in self._by_user.items() if not r.left}
        self._store.ended(reports)

    def restore(self) -> list[str]:
        """Take up the reports of an earlier run; returns why some were given up."""
        reasons: list[str] = []
        batches: dict[str, Batch] = {}
        for saved in self._store.unsent(self.experiment):
            report = _restored(self.experiment, saved)
            try:
                if saved.ones is None:
                    report.batch = batches.get(saved.batch_id) or self.batches.readmit(
                        saved.batch_id, saved.terms
                    )
                    batches[saved.batch_id] = report.batch
            except InvalidInput as error:
                reasons.append(str(error))
                self._store.ended([report])
                continue
            self._keep(report)
            if report.deadline_ms is None and report.ones is not None:
                self._leave(report)
        return reasons

    def _fallback(self) -> str:
        arm = self.batches.fallback()
        if arm is None:
            raise Unavailable(
                f"experiment {self.experiment!r}: nothing in its assignment can be used; "
                "see the log for why its terms were refused"
            )
        return arm

    def _may_report(self, tag: bytes, batch: Batch) -> bool:
        if self.bound >= self._max_waiting:
            self.counts.full += 1
            return False
        spent = self._store.spent(tag)
        if self.experiment in spent.experiments:
            self.counts.repeated += 1
            return False
        # Many users share a history, so this is nearly always known.
        affordable = self._affordable.get((spent, batch))
        if affordable is None:
            affordable = self._budget.allows(spent, batch.terms.mechanism.promise)
            self._affordable[spent, batch] = affordable
        if not affordable:
            self.counts.over_budget += 1
        return affordable

    def _keep(self, report: Report) -> None:
        self.bound += 1
        if report.ones is None:
            self.unanswered[report.shown.report_id] = report
        if report.user:
            self._by_user[report.user] = report
        if report.deadline_ms is not None:
            heapq.heappush(self._deadlines, (report.deadline_ms, next(self._numbers), report))
            if self._deadlines[0][2] is report:
                self.wake()

    def _leave(self, report: Report) -> None:
        if not self.leaving:
            self.wake()
        self.leaving.append(report)
        report.left = True


def _restored(experiment: str, saved: Saved) -> Report:
    shown = Shown(saved.arm, saved.batch_id, saved.report_id)
    return Report(experiment, shown, saved.user, saved.deadline_ms, ones=saved.ones)
