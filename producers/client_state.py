"""Who is bound to which batch, and which reports are due: the client without its network.

Synchronous: `choose`, `report` and `due` decide, the client sends. Time and memory are given from
outside.

Theory of operation. A report goes one way, and never back:

    choose           bound to a batch: its user is charged, it waits in `unanswered`
    report, or due   encoded: the reward, or 0 at the deadline, gets its noise; the reward is gone
    due, or report   leaving: at the deadline, or at once where the batch has no window
    end              acknowledged by Kafka, or given up: forgotten, but not its user

What must hold, whoever edits this:

1. One draw of noise for a reward. `ones` is set once and only where it is None: `report` takes the
   report out of `unanswered` first, so a second reward finds none. The store is told (`encoded`),
   and the client has it on disk (`Store.sync`) before it sends: after a crash or a failed send the
   same bytes leave. Of two draws for one reward whoever sees both would know more than promised.
2. One report of a user and experiment, ever. The user is charged when bound, not when the report
   leaves: a crash in between costs a report, never a second one. So `choose` asks the store, and
   nothing here ever gives a charge back, not even for a report that is given up.
3. Whether and when a report leaves tells nothing of the reward. With a window it leaves at the
   deadline, click or not. Without one it leaves at `report`, which the product calls for every
   user. A report to a batch that has closed meanwhile leaves too. Only a report without window and
   without answer is given up, with its batch: nobody can say when an answer would come.
4. Until the report leaves, its user sees what they saw before; afterwards an arm that nobody
   reports on.
5. A reward is in no attribute, store, log line or exception: it is encoded at once.
6. A forked child has its parent's reports but may send none of them: it refuses to work.

A pending report is in `unanswered`, or encoded and on the heap of deadlines, or in `leaving`;
`bound` counts all three. Products call `choose` and `report` for every user: no call, object or
lookup is there that could be spared, which is why `report` repeats the lines of `_leave`.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from producers.batches import CheckedBatch, OpenBatches, PendingReport, Shown, forgets_on_fork
from producers.store import Budget, SavedReport, Spent, Store
from stream_app.core.terms import Limits
from stream_app.errors import ConfigurationError, IllegalTransition, InvalidInput, Unavailable
from stream_app.wire.assignment import decode_offer

# Users whose report has left are forgotten when more than this many of them are still listed: few
# enough to be no memory, enough that looking for them is rare.
_FEW = 1_000


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
        self.unanswered: dict[bytes, PendingReport] = {}  # without a reward so far, by report id
        self.leaving: list[PendingReport] = []  # encoded, and their time has come
        self.wake: Callable[[], None] = lambda: None  # called when there is more to do
        self._store = store
        self._budget = budget
        self._max_waiting = max_waiting
        self._clock_ms = clock_ms
        self._by_user: dict[bytes, PendingReport] = {}  # not all of them wait: see `end`
        self._deadlines: list[tuple[int, int, PendingReport]] = []  # a heap
        self._numbers = count()
        self._affordable: dict[tuple[Spent, CheckedBatch], bool] = {}
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
        report = PendingReport(self.experiment, shown, tag, deadline, batch)
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

    def end(self, reports: Sequence[PendingReport]) -> None:
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
        batches: dict[str, CheckedBatch] = {}
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

    def _may_report(self, tag: bytes, batch: CheckedBatch) -> bool:
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

    def _keep(self, report: PendingReport) -> None:
        self.bound += 1
        if report.ones is None:
            self.unanswered[report.shown.report_id] = report
        if report.user:
            self._by_user[report.user] = report
        if report.deadline_ms is not None:
            heapq.heappush(self._deadlines, (report.deadline_ms, next(self._numbers), report))
            if self._deadlines[0][2] is report:
                self.wake()

    def _leave(self, report: PendingReport) -> None:
        if not self.leaving:
            self.wake()
        self.leaving.append(report)
        report.left = True


def _restored(experiment: str, saved: SavedReport) -> PendingReport:
    shown = Shown(saved.arm, saved.batch_id, saved.report_id)
    return PendingReport(experiment, shown, saved.user, saved.deadline_ms, ones=saved.ones)
