"""Whether Kafka answers a session, and since when a transaction waits for it.

Kafka's library waits without a word to us. This says it in the log, once when Kafka is unreachable
and once when it is back, and keeps it for the readiness probe.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from stream_app.kafka.errors import KafkaError
from stream_app.kafka.reconnect import Trouble

log = logging.getLogger("shufflebandit")

# Without a record for so long, Kafka is asked; a broker's pause for a rebalance is shorter.
_PROBE_EVERY_S = 3.0
# A transaction that takes longer makes the worker unready; one takes some 10 ms.
_SLOW_S = 5.0


class KafkaHealth:
    """What a session knows of Kafka's absence."""

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._heard = 0.0
        self.trouble = Trouble(log)  # lasts while Kafka does not answer
        self.begun: list[float] = []  # when the transactions that are under way began

    @property
    def slow(self) -> bool:
        """Whether a transaction has been under way for too long."""
        return self._writing_s > _SLOW_S

    @property
    def _writing_s(self) -> float:
        return time.monotonic() - min(self.begun) if self.begun else 0.0

    async def notice(self, *, quiet: bool, probe: Callable[[], Awaitable[object]] | None) -> None:
        """After each poll: asks Kafka, if there is something to ask, when nothing came lately."""
        now = time.monotonic()
        if not quiet:
            self._heard = now
        elif probe is not None and now - self._heard > _PROBE_EVERY_S:
            try:
                async with asyncio.timeout(_PROBE_EVERY_S):
                    await probe()
            except (KafkaError, TimeoutError):
                self._say(away=True)
                return
            self._heard = time.monotonic()
        if self._heard > now - _PROBE_EVERY_S:
            self._say(away=False)

    def wrote(self, begun: float) -> None:
        """The transaction that began then went through."""
        self.begun.remove(begun)
        self._say(away=False)

    async def watch(self) -> None:
        """A transaction that Kafka does not answer holds the lock, so somebody else must say it."""
        while True:
            await asyncio.sleep(1)
            if self._writing_s > _PROBE_EVERY_S:
                self._say(away=True)

    def _say(self, *, away: bool) -> None:
        if away:
            self.trouble.begins(f"{self._stage}: Kafka is away, waiting for it")
        else:
            self.trouble.over(f"{self._stage}: Kafka is back")
