"""Runs a stage until it is told to stop, in one session after another.

Whatever goes wrong with Kafka, the session is thrown away and a new one starts from the log.
"""

import asyncio
import contextlib
import logging
import secrets
import time

from stream_app.kafka.errors import FAILED, FENCED, NO_ANSWER
from stream_app.metrics.instruments import Metrics
from stream_app.runtime.session import Session
from stream_app.runtime.stage import Stage
from stream_app.settings import KafkaSettings

log = logging.getLogger("shufflebandit")


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
        self._session: Session | None = None
        self.restarts = 0

    def unready(self) -> str:
        """What it waits for, in words; empty while it does its work."""
        waiting = "a connection to Kafka" if self._session is None else self._session.unready()
        return f"{self._stage.name}: {waiting}" if waiting else ""

    async def run(self, halt: asyncio.Event) -> None:
        """Until `halt` is set. Errors other than Kafka's are bugs, and come out."""
        away = False
        while not halt.is_set():
            self._session = session = Session(self._settings, self._stage, self._metrics)
            started = time.monotonic()
            try:
                await session.run(halt)
            except FAILED as error:
                self.restarts += 1
                self._metrics.restarted(fenced=isinstance(error, FENCED))
                if not away or time.monotonic() - started > 60:
                    log.warning("%s: %s", self._stage.name, _in_words(error))
                away = True
            finally:
                self._session = None
                await session.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(halt.wait(), 0.1 + secrets.randbelow(900) / 1000)
