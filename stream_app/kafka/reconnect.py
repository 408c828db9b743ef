"""Kafka is unreachable: say it once, try again, say once that it is back.

Whoever follows or feeds Kafka for ever does it in `keep_connected`. What is said is the caller's.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from stream_app.errors import Unavailable
from stream_app.kafka.errors import FAILED

# Of the first wait: any last one is reached by then, and the number stays small in long outages.
_MOST_DOUBLINGS = 30


class Trouble:
    """Something that goes on for a while: said when it begins and when it is over."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self.lasts = False

    def begins(self, text: str) -> None:
        """Say it, unless it lasts already."""
        if not self.lasts:
            self._log.warning("%s", text)
        self.lasts = True

    def over(self, text: str) -> None:
        """Say that it is over, if it lasted."""
        if self.lasts:
            self._log.info("%s", text)
        self.lasts = False


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before the next try: twice as long after each, and a random part more."""

    first_s: float
    last_s: float
    jitter_s: float = 0.0

    def wait_s(self, failures: int) -> float:
        """After so many tries in a row."""
        doublings = min(failures - 1, _MOST_DOUBLINGS)
        random_s = self.jitter_s * secrets.randbelow(1000) / 1000
        return min(self.first_s * (1 << doublings), self.last_s) + random_s


async def keep_connected(
    live: Callable[[Callable[[], None]], Awaitable[None]],
    lost: Callable[[BaseException], None],
    back: Callable[[], None],
    backoff: Backoff,
    halt: asyncio.Event | None = None,
) -> None:
    """Call `live` again and again, until `halt` is set; without it, for ever.

    `live` connects, calls what it is given once it is connected, and works until Kafka fails, which
    is told to `lost`. Errors other than Kafka's are bugs, and come out.
    """
    halt = halt or asyncio.Event()
    tries = 0

    def connected() -> None:
        nonlocal tries
        tries = 0
        back()

    while not halt.is_set():
        try:
            await live(connected)
        except (Unavailable, *FAILED) as error:
            lost(error)
        tries += 1
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(halt.wait(), backoff.wait_s(tries))
