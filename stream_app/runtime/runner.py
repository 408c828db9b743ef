"""Runs a stage until it is told to stop, in one session after another.

Whatever goes wrong with Kafka, the session is thrown away and a new one starts from the log
(RULES 4). The stop flag lives here, so that no session can lose it.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from stream_app.kafka.errors import FAILED, FENCED, NO_ANSWER
from stream_app.kafka.reconnect import Backoff, Trouble, keep_connected
from stream_app.metrics.instruments import Metrics
from stream_app.runtime.session import Session
from stream_app.runtime.stage import Stage
from stream_app.settings import KafkaSettings

log = logging.getLogger("shufflebandit")

# Workers that lost the same broker do not come back all at once.
_BACKOFF = Backoff(0.1, 0.1, jitter_s=0.9)
# A session that lived so long had its work: what ends it is news.
_NEWS_AFTER_S = 60


def _in_words(error: BaseException) -> str:
    if isinstance(error, NO_ANSWER):
        return "Kafka is away, waiting for it; then from the log again"
    return f"{type(error).__name__}: {str(error)[:200]}; starting again from the log"


class Runner:
    """Runs a stage until it is told to stop; starts anew from the log after any Kafka error."""

    def __init__(
        self, settings: KafkaSettings, stage: Stage, metrics: Metrics | None = None
    ) -> None:
        self._settings = settings
        self._stage = stage
        self._metrics = (metrics or Metrics()).stage(stage.name)
        self._trouble = Trouble(log)
        self.session: Session | None = None
        self.restarts = 0

    def unready(self) -> str:
        """What it waits for, in words; empty while it does its work."""
        waiting = "a connection to Kafka" if self.session is None else self.session.unready()
        return f"{self._stage.name}: {waiting}" if waiting else ""

    async def run(self, halt: asyncio.Event) -> None:
        """Until `halt` is set. Errors other than Kafka's are bugs, and come out."""

        async def live(_connected: Callable[[], None]) -> None:
            await self._live(halt)

        await keep_connected(live, self._lost, lambda: None, _BACKOFF, halt)

    async def _live(self, halt: asyncio.Event) -> None:
        self.session = session = Session(self._settings, self._stage, self._metrics)
        started = time.monotonic()
        try:
            await session.run(halt)
        except FAILED:
            if time.monotonic() - started > _NEWS_AFTER_S:
                self._trouble.lasts = False
            raise
        finally:
            self.session = None
            await session.close()

    def _lost(self, error: BaseException) -> None:
        self.restarts += 1
        self._metrics.restarted(fenced=isinstance(error, FENCED))
        self._trouble.begins(f"{self._stage.name}: {_in_words(error)}")
