"""What a product embeds: choose what a user sees, report what happened.

    async with Client(settings, "banners", store=FileStore("reports.db"), window_s=60) as client:
        shown = client.choose(user)     # never waits for the network
        ...
        client.report(shown, reward)    # from 0 to 1; nothing of it leaves without noise

A user reports once per experiment, ever, and only within the budget. The product says which of two
it was written for, and batches with other terms are refused, since the agent is not trusted:

- `window_s=60`: the report leaves when this attribution window ends, whatever happened, as 0 if no
  reward came.
- `immediate=True`: it leaves at `report`, which is called for every user, whatever happened.

Reports that leave together do so in random order. One whose batch has closed meanwhile is sent all
the same: it is dropped as late, and whether one is sent depends on time only. Rewards and counts of
ones are in no log line, repr or exception.

Call everything from the event loop's thread. All processes of a machine share one `FileStore`; a
forked child makes a client and a store of its own.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Self

import numpy as np

from producers.batches import CheckedBatch, PendingReport, Shown
from producers.client_state import ClientState, Counts
from producers.store import Budget, Store
from producers.transport import KafkaTransport, Transport
from stream_app.core.state import Status
from stream_app.errors import ConfigurationError, InvalidInput, Unavailable
from stream_app.kafka.reconnect import Backoff, Trouble, keep_connected
from stream_app.kafka.record_batches import Rows, rows_in_batch
from stream_app.settings import Settings
from stream_app.wire.report import REPORT_BYTES
from stream_app.wire.report_columns import encode_reports

log = logging.getLogger("shufflebandit.client")

# Reports that become due together leave together: short for a user, long for an event loop.
_LINGER_S = 0.005
# A changed wall clock is noticed within this.
_MOST_SLEEP_S = 10.0
# A product that ends waits so long at most; what is not sent by then is in the store.
_CLOSE_S = 5.0
# Soon after a short outage; in a long one, thousands of clients must not keep Kafka down.
_BACKOFF = Backoff(0.2, 5.0)


class Client:
    """The client of one experiment."""

    def __init__(
        self,
        settings: Settings,
        experiment: str,
        *,
        store: Store,
        window_s: float | None = None,
        immediate: bool = False,
        max_waiting: int = 1_000_000,
        transport: Transport | None = None,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        window_ms = _window_ms(window_s, immediate)
        self.experiment = experiment
        self._settings = settings
        self._store = store
        self._transport = transport or KafkaTransport(settings.kafka, experiment)
        budget = Budget(settings.client.max_user_epsilon, settings.client.max_user_delta)
        self._state = ClientState(
            experiment, settings.limits, store, budget, max_waiting, clock_ms, window_ms
        )
        # See `ClientState`. Products call both for every user: no call of our own is in between.
        self.choose: Callable[[str], Shown] = self._state.choose
        self.report: Callable[[Shown, float], bool] = self._state.report
        self._wake = asyncio.Event()
        self._state.wake = self._wake.set
        self._flushing = asyncio.Lock()
        # So many are made into bytes while those before are on their way.
        self._part = rows_in_batch(experiment.encode(), REPORT_BYTES)
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._bad_assignment = Trouble(log)

    @property
    def status(self) -> Status | None:
        """Where the experiment stands; None before its first assignment."""
        return self._state.batches.status

    @property
    def serve(self) -> str | None:
        """The arm to serve once nothing is collected."""
        return self._state.batches.serve

    @property
    def open(self) -> dict[str, CheckedBatch]:
        """The open batches that this client reports to."""
        return self._state.batches.open

    @property
    def waiting(self) -> int:
        """Users bound to a batch whose report is not acknowledged yet."""
        return self._state.bound

    @property
    def leaving(self) -> int:
        """Reports whose time has come and that are not acknowledged yet."""
        return len(self._state.leaving)

    @property
    def counts(self) -> Counts:
        """What the client did."""
        return self._state.counts

    @property
    def refused_terms(self) -> int:
        """How many batches were refused for their terms."""
        return self._state.batches.refused

    async def __aenter__(self) -> Self:
        """Connect and wait for the first assignment. Raises Unavailable, ConfigurationError."""
        await self._transport.open()
        try:
            self._state.attach()
            self._state.inbox.notify = partial(_wake_soon, asyncio.get_running_loop(), self._wake)
            await asyncio.to_thread(self._store.sync)
            self._take_news()
            self._tasks = [asyncio.create_task(self._follow()), asyncio.create_task(self._send())]
            wait_s = self._settings.kafka.connect_timeout_s
            if self.status is None and not await self.changed(wait_s) and self.status is None:
                raise Unavailable(
                    f"experiment {self.experiment!r}: no assignment for it within {wait_s:g} s; "
                    "see shufflebandit experiment list, and that the service runs: "
                    "shufflebandit run"
                )
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Send what is due within 5 s; the rest stays in the store."""
        try:
            with contextlib.suppress(TimeoutError, Unavailable):
                async with asyncio.timeout(_CLOSE_S):
                    await self.flush()
        finally:
            await self._stop()

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._transport.close()
        self._state.close()
        await asyncio.to_thread(self._store.sync)

    def _take_news(self) -> None:
        for reason in self._state.take_news():
            log.warning("%s: a waiting report is given up: %s", self.experiment, reason)

    async def changed(self, timeout_s: float) -> bool:
        """Wait for the next assignment; False if none came in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
                return True
        return False

    async def flush(self) -> None:
        """Send all that is due, and return once it is acknowledged. Raises Unavailable, OSError.

        A report is durable in the store before it leaves, so no crash makes it leave with another
        count; after a failure the same bytes are sent. Nor does it leave before the store has its
        user for us: those whom another process was faster to bind are dropped here.
        """
        state = self._state
        async with self._flushing:
            self._take_news()
            state.due()
            while state.leaving:
                reports = state.leaving.copy()
                await asyncio.to_thread(self._store.sync)
                self._take_news()
                reports = _in_random_order([report for report in reports if not report.lost])
                state.leaving[: len(reports)] = reports
                await self._transport.send(_encoded(reports, self._part), self._acknowledged)

    def _acknowledged(self, count: int) -> None:
        """The first so many of those that leave have arrived."""
        state = self._state
        state.end(state.leaving[:count])
        del state.leaving[:count]
        state.counts.sent += count

    async def drain(self) -> None:
        """Return once every report that waits for its deadline is acknowledged."""
        while True:
            due_s = self._state.next_due_s()
            if due_s is None and not self.leaving:
                return
            await asyncio.sleep(min(due_s or 0.0, _MOST_SLEEP_S) + _LINGER_S)

    async def _send(self) -> None:
        """Send whatever is due, for ever; the store keeps it while Kafka or the disk fails."""
        trouble = Trouble(log)

        async def live(connected: Callable[[], None]) -> None:
            while True:
                await self._until_due()
                await self.flush()
                connected()

        def lost(error: BaseException) -> None:
            trouble.begins(f"{self.experiment}: reports wait ({error}); choosing goes on")

        def back() -> None:
            trouble.over(f"{self.experiment}: reports are sent again")

        await keep_connected(live, lost, back, _BACKOFF)

    async def _until_due(self) -> None:
        self._wake.clear()
        if not self.leaving and not self._state.inbox:
            due_s = self._state.next_due_s()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_MOST_SLEEP_S if due_s is None else due_s):
                    await self._wake.wait()
        await asyncio.sleep(_LINGER_S)

    async def _follow(self) -> None:
        """Follow the assignments, for ever; the last one stands while Kafka is unreachable."""
        trouble = Trouble(log)

        async def live(connected: Callable[[], None]) -> None:
            async for value in self._transport.follow():
                self._take(value)
                connected()

        def lost(error: BaseException) -> None:
            trouble.begins(f"{self.experiment}: the last assignment stands ({error})")

        def back() -> None:
            trouble.over(f"{self.experiment}: assignments are read again")

        await keep_connected(live, lost, back, _BACKOFF)

    def _take(self, value: bytes | None) -> None:
        try:
            for reason in self._state.follow(value):
                log.warning("%s: terms refused, nobody reports to it: %s", self.experiment, reason)
        except InvalidInput as error:
            self._bad_assignment.begins(f"{self.experiment}: an assignment is ignored ({error})")
            return
        self._bad_assignment.over(f"{self.experiment}: assignments can be used again")
        self._changed.set()
        self._changed = asyncio.Event()


def _window_ms(window_s: float | None, immediate: bool) -> int:
    """The attribution window of the batches that this product can report to; 0: at once."""
    if (window_s is None) is not immediate:
        raise ConfigurationError(
            f"window_s = {window_s}, immediate = {immediate}: give one of the two: window_s as the "
            "experiment's attribution_s if rewards may come until then, immediate=True if report() "
            "is called at once for every user"
        )
    if window_s is None:
        return 0
    if not window_s >= 0.001:
        raise ConfigurationError(
            f"window_s = {window_s}: must be at least 0.001; without a window, give immediate=True"
        )
    return round(window_s * 1000)


def _wake_soon(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    """From another thread, which may outlive the loop."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(event.set)


def _in_random_order(reports: list[PendingReport]) -> list[PendingReport]:
    """So that not even with a log of page views the order of reports tells whose they are."""
    keys = np.frombuffer(secrets.token_bytes(8 * len(reports)), np.uint64)
    return [reports[index] for index in keys.argsort().tolist()]


def _encoded(reports: Sequence[PendingReport], most: int) -> Iterator[Rows]:
    """Their bytes in their order, so many at a time."""
    for first in range(0, len(reports), most):
        part = reports[first : first + most]
        named = [report.shown.batch_id for report in part]
        ids = [report.shown.report_id for report in part]
        ones = [report.noise + (report.bit or 0) for report in part]
        rows_of: dict[str, list[int]] = {batch_id: [] for batch_id in named}
        if len(rows_of) == 1:
            yield encode_reports(named[0], b"".join(ids), ones)
            continue
        for row, batch_id in enumerate(named):
            rows_of[batch_id].append(row)
        encoded = np.empty((len(part), REPORT_BYTES), np.uint8)
        for batch_id, rows in rows_of.items():
            own_ids = b"".join([ids[row] for row in rows])
            encoded[rows] = encode_reports(batch_id, own_ids, [ones[row] for row in rows])
        yield encoded
