"""Deletes input records from the log that no restart will need: data minimisation.

It is told only offsets that the consumer group has committed, and deletes nothing at or above them.
Such an offset is committed after the transaction of all outputs that it rests on, so below it no
record is needed by anybody: its batch has a sum in the log, or its window a checkpoint, or it was
refused. And it stays so: a new owner begins at the committed offset, which never falls. A stale
worker therefore does no harm. The group takes no offset from it any more, and what it may still
delete lies below an offset that the group took before, so below the new owner's.

One request a second at most, for all partitions. A failure is said once and counted, and tried
again later; nothing waits for it.
"""

import asyncio
import logging
import time

from stream_app.kafka.clients import Startable, delete_before
from stream_app.kafka.errors import FAILED
from stream_app.kafka.reconnect import Trouble
from stream_app.metrics.instruments import StageMetrics

log = logging.getLogger("shufflebandit")

# As often as offsets are committed: nothing can have become free in between.
_EVERY_S = 1.0
# What fails is mostly a right or a setting, which nobody changes within seconds.
_AFTER_FAILURE_S = 10.0
# A broker that crashed may have forgotten where a partition's log begins (it writes that down
# about once a minute): what was deleted is deleted again.
_REPEAT_S = 60.0


class Deletion:
    """What is to be deleted of the partitions of one topic, and the loop that does it."""

    def __init__(self, client: Startable, topic: str, metrics: StageMetrics) -> None:
        self._client = client
        self._topic = topic
        self._metrics = metrics
        self._allowed: dict[int, int] = {}
        self._deleted: dict[int, int] = {}
        self._trouble = Trouble(log)

    def allow(self, partition: int, offset: int) -> None:
        """The group has committed this offset: all below it may go."""
        self._allowed[partition] = offset

    def forget(self, partition: int) -> None:
        """The partition is another worker's now."""
        self._allowed.pop(partition, None)
        self._deleted.pop(partition, None)

    def repeat(self) -> None:
        """Ask for all again that was deleted."""
        self._deleted.clear()

    async def run(self) -> None:
        """Delete until cancelled."""
        next_repeat = time.monotonic() + _REPEAT_S
        while True:
            await asyncio.sleep(_AFTER_FAILURE_S if self._trouble.lasts else _EVERY_S)
            if time.monotonic() > next_repeat:
                self.repeat()
                next_repeat = time.monotonic() + _REPEAT_S
            due = {
                n: offset for n, offset in self._allowed.items() if offset > self._deleted.get(n, 0)
            }
            if due:
                await self._try(due)

    async def _try(self, due: dict[int, int]) -> None:
        try:
            async with asyncio.timeout(_AFTER_FAILURE_S):
                await delete_before(self._client, self._topic, due)
        except FAILED as error:
            self._metrics.deleted(failed=True)
            self._trouble.begins(
                f"{self._topic}: records that no open batch needs cannot be deleted "
                f"({type(error).__name__}); they stay until that works, or until their retention "
                "ends"
            )
            return
        self._deleted |= due
        self._metrics.deleted(failed=False)
        self._trouble.over(f"{self._topic}: records are deleted again")
