"""Pages that were left: takes their reports, and lets each go when the page itself would have.

Nothing that anybody outside can see moves when a report is handed over: no count, no log line, no
limit that senders share. It is judged and counted when it leaves for `reports`, as the report of a
page that stayed is.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

import orjson

from stream_app.errors import Unavailable
from stream_app.gateway import reports as intake
from stream_app.gateway.assignments import AssignmentCache
from stream_app.gateway.forwarder import Forwarder
from stream_app.gateway.held import Waiting
from stream_app.gateway.mixer import Mixer
from stream_app.gateway.reports import Outcome, Posting
from stream_app.settings import Settings
from stream_app.wire.held import encode_handover

# What became of reports that were handed over, in the words of an answered request.
Judged = Callable[[Sequence[Outcome]], None]


class Handovers:
    """All handed-over reports between the page and `reports`."""

    def __init__(
        self,
        settings: Settings,
        assignments: AssignmentCache,
        mixer: Mixer,
        judged: Judged,
        held: Mixer | None = None,
    ) -> None:
        self._assignments = assignments
        self._mixer = mixer
        self._judged = judged
        self._held = held or Mixer(settings, topic="held")
        self._forwarder = Forwarder(settings, self._held, self.send)

    def put(self, posting: Posting, value: bytes, left_ms: int) -> asyncio.Future[None]:
        """Take a report; the future ends once it is durable. Raises Full and Unavailable."""
        due_ms = int(time.time() * 1000) + left_ms
        return self._held.put(posting.partition, posting.key, [encode_handover(due_ms, value)])

    def send(self, one: Waiting) -> asyncio.Future[None] | None:
        """Judge a report that is due and send it, mixed with those of others; None if refused.

        Raises Full and Unavailable.
        """
        if not self._assignments.loaded.is_set():
            raise Unavailable("the assignments are not read yet")
        posting = self._assignments.find(one.key.decode(errors="replace"))
        if posting is None:
            return None  # the experiment is gone, and its batches with it
        report = orjson.loads(one.report)
        outcomes = [intake.judge(posting, report)]
        if outcomes != [Outcome.ACCEPTED]:
            self._judged(outcomes)
            return None
        sent = self._mixer.put(posting.partition, posting.key, [one.report])
        sent.add_done_callback(lambda done: self._ended(outcomes, done))
        return sent

    def _ended(self, outcomes: Sequence[Outcome], done: asyncio.Future[None]) -> None:
        if not done.cancelled() and done.exception() is None:
            self._judged(outcomes)

    async def run(self) -> None:
        """Write to `held`, read from it and send, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._held.run())
            group.create_task(self._forwarder.run())
