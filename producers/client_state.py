"""Who is bound to which batch, and which reports are due: the client without its network.

Synchronous: `choose`, `report` and `due` decide, the client sends. Time and memory are given from
outside.

Theory of operation. A report goes one way, and never back:

    choose           bound to a batch: its user is charged, its noise is drawn, it is in `waiting`
    report           the reward, rounded to a bit, is added to the noise
    due, or report   leaving: at the deadline, or at once where the product reports at once
    end              acknowledged by Kafka, or given up: forgotten, but not its user

What must hold, whoever edits this:

1. One draw of noise for a user, and one reward. The noise is drawn with the choice and kept by the
   store. `bit` is set once and only where it is None. The store has what leaves on disk
   (`encoded`, `Store.sync`) before it is sent: after a crash or a failed send the same bytes leave.
   Of two counts for one user whoever sees both would know more than promised.
2. One report of a user and experiment, ever. The user is charged when bound, not when the report
   leaves: a crash in between costs a report, never a second one. So `choose` asks the store, and
   nothing here ever gives a charge back, not even for a report that is given up. Where another
   process was first, the store says so (`Inbox.lost`) before `sync` returns, and ours never leaves.
3. Whether and when a report leaves tells nothing of the reward. With a window it leaves at the
   deadline, click or not. Without one it leaves at `report`, which the product calls for every
   user. Which of the two is for the product to say: batches that differ are refused. A report to a
   batch that has closed meanwhile leaves too. Only a report without window and without answer is
   given up, with its batch: nobody can say when an answer would come.
4. Until the report leaves, its user sees what they saw before, whichever process asks; afterwards
   an arm that nobody reports on.
5. A reward is in no log line or exception, and before the deadline the store is told of it in a way
   that shows nobody when it came.
6. A forked child has its parent's reports but may send none of them: it refuses to work.

A pending report is in `waiting` (with a deadline also on the heap), or in `leaving`; `bound` counts
both. Products call `choose` and `report` for every user: no call, object or lookup is there that
could be spared, which is why `report` repeats the lines of `_leave`.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from producers.batches import (
    CheckedBatch,
    OpenBatches,
    PendingReport,
    Shown,
    forgets_on_fork,
    rounded,
)
from producers.store import Budget, Inbox, Spent, Store
from stream_app.core.state import Status
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
    lost: int = 0  # users whom another process had bound a moment before
    adopted: int = 0  # reports taken over from a client that ended


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
        window_ms: int | None = None,
    ) -> None:
        self.counts = Counts()
        self.experiment = experiment
        self.batches = OpenBatches(experiment, limits, window_ms=window_ms)
        self.bound = 0  # users whose report is not acknowledged yet
        self.waiting: dict[bytes, PendingReport] = {}  # their time has not come, by report id
        self.leaving: list[PendingReport] = []  # their time has come
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
        self.inbox = Inbox(experiment)
        forgets_on_fork(self)

    def attach(self) -> None:
        """Begin to take news from the store; after its next `sync`, the reports of earlier runs."""
        self.inbox = self._store.attach(self.experiment)

    def discard(self) -> None:
        """In a forked child: connections, file and reports are the parent's."""
        self._forked = True
        self.waiting.clear()

    def choose(self, user: str) -> Shown:
        """What to show the user; the same again until their report leaves."""
        self._refuse_forked()
        tag = self._store.tag(user)
        waiting = self._by_user.get(tag)
        if waiting is not None and not waiting.left:
            return waiting.shown
        batch = self.batches.pick()
        if batch is None:
            return self._store.shown(tag, self.experiment) or Shown(self._fallback(), "")
        if not self._may_report(tag, batch):
            return self._store.shown(tag, self.experiment) or Shown(batch.arm, "")
        window = batch.attribution_ms
        deadline = self._clock_ms() + window if window else None
        shown = Shown(batch.arm, batch.batch_id, self.batches.report_id(), deadline)
        report = PendingReport(self.experiment, shown, tag, deadline, batch.noise(), batch)
        self._store.chosen(report)
        self._keep(report)
        self.counts.chosen += 1
        return shown

    def report(self, shown: Shown, reward: float) -> bool:
        """Take a user's reward, from 0 to 1; False if it cannot count (no batch, late, twice)."""
        if not 0 <= reward <= 1:
            raise ConfigurationError("reward: must be a number from 0 to 1")
        bit = rounded(reward)
        report = self.waiting.get(shown.report_id)
        if report is None:
            return self._reported_elsewhere(shown, bit)
        if report.bit is not None:
            return self._too_late()
        deadline = report.deadline_ms
        if deadline is None:
            report.bit = bit
            del self.waiting[shown.report_id]
            self._store.encoded(report)
            if not self.leaving:
                self.wake()
            self.leaving.append(report)
            report.left = True
            return True
        if self._clock_ms() >= deadline:
            return self._too_late()
        report.bit = bit
        self._store.answered(shown.report_id, bit)
        return True

    def _reported_elsewhere(self, shown: Shown, bit: int) -> bool:
        """The choice was another client's, in this process or in another one."""
        deadline = shown.deadline_ms
        if not shown.report_id or (deadline is not None and self._clock_ms() >= deadline):
            return self._too_late()
        self._refuse_forked()
        return self._store.forward(shown, bit) or self._too_late()

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
            for report in self.waiting.values()
            if report.deadline_ms is None and report.shown.batch_id not in self.batches.open
        ]
        for report in given_up:
            del self.waiting[report.shown.report_id]
            report.left = True
        self.end(given_up)
        if self.batches.status is not Status.RUNNING:
            self._store.over(self.experiment)
        return reasons

    def due(self) -> None:
        """Move the reports whose deadline has come to `leaving`; without a reward, as 0."""
        latest = self._clock_ms() - self._store.settle_ms
        while self._deadlines and self._deadlines[0][0] <= latest:
            report = heapq.heappop(self._deadlines)[2]
            if not report.left:
                del self.waiting[report.shown.report_id]
                self._store.encoded(report)
                self._leave(report)

    def next_due_s(self) -> float | None:
        """Seconds until the next deadline; None if no report waits for one."""
        if not self._deadlines:
            return None
        due_ms = self._deadlines[0][0] + self._store.settle_ms
        return max(0.0, (due_ms - self._clock_ms()) / 1000)

    def end(self, reports: Sequence[PendingReport]) -> None:
        """Forget reports that were acknowledged or given up."""
        if not reports:
            return
        self._unbind(len(reports))
        self._store.ended(reports)

    def _unbind(self, reports: int) -> None:
        self.bound -= reports
        # All at once now and then: one by one they would have to be found again.
        if len(self._by_user) > 2 * self.bound + _FEW:
            self._by_user = {tag: r for tag, r in self._by_user.items() if not r.left}

    def take_news(self) -> list[str]:
        """Take what other clients of the store did; returns why reports of theirs are given up."""
        inbox = self.inbox
        lost: set[bytes] = set()
        while inbox.lost:
            lost.add(inbox.lost.popleft())
        if lost:
            self._lose(lost)
        reasons = self._adopt() if inbox.adopted else []
        while inbox.rewards:
            report_id, bit = inbox.rewards.popleft()
            self._take_reward(report_id, bit)
        return reasons

    def _lose(self, lost: set[bytes]) -> None:
        """Another process has these users: ours never leave."""
        ours = [self.waiting.pop(report_id) for report_id in lost if report_id in self.waiting]
        ours += [report for report in self.leaving if report.shown.report_id in lost]
        for report in ours:
            report.left = True
            report.lost = True
            self._by_user.pop(report.user, None)
        self.leaving[:] = [report for report in self.leaving if not report.lost]
        self.counts.lost += len(ours)
        self._unbind(len(ours))

    def _take_reward(self, report_id: bytes, bit: int) -> None:
        report = self.waiting.get(report_id)
        if report is None or report.bit is not None:
            return
        report.bit = bit
        if report.deadline_ms is None:
            del self.waiting[report_id]
            self._store.encoded(report)
            self._leave(report)

    def _adopt(self) -> list[str]:
        """Take up the reports of a client that ended; returns why some were given up."""
        reasons: list[str] = []
        while self.inbox.adopted:
            saved = self.inbox.adopted.popleft()
            shown = Shown(saved.arm, saved.batch_id, saved.report_id, saved.deadline_ms)
            noise = saved.noise or 0
            report = PendingReport(self.experiment, shown, saved.user, saved.deadline_ms, noise)
            report.bit = saved.bit
            self.counts.adopted += 1
            try:
                if saved.noise is None:
                    report.noise = self.batches.readmit(saved.batch_id, saved.terms).noise()
            except InvalidInput as error:
                reasons.append(str(error))
                self._store.ended([report])
                continue
            if saved.final:
                self.bound += 1
                self._leave(report)
            else:
                self._keep(report)
        return reasons

    def close(self) -> None:
        """What has not left is for other clients of the store, after its next `sync`."""
        self._store.detach(self.inbox, [*self.waiting.values(), *self.leaving])

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
        self.waiting[report.shown.report_id] = report
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
