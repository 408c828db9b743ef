"""Holds reports of several senders together and sends them to Kafka in random order.

A hold leaves when enough requests are in it, or when its time has come; all of it shares one
acknowledgement, so a request is never half sent. What waits is bounded: when Kafka is slow or
unreachable, senders are told to come again (they send the same bytes, and the shuffle stage counts
a report once). A record's time is that of its hold, the same for all in it.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from stream_app import kafka
from stream_app.errors import Unavailable
from stream_app.kafka import Writer
from stream_app.kafka.reconnect import Backoff, Trouble, keep_connected
from stream_app.logs import log
from stream_app.settings import Settings

T = TypeVar("T")

# Holds on their way; while all are, the next one waits and grows: fewer, better mixed batches.
_IN_FLIGHT = 2
# A hold of full size in one request; Kafka takes 1 MiB.
_BATCH_BYTES = 1 << 19
# Until the next try, while senders are told to come again.
_BACKOFF = Backoff(0.5, 0.5)
# Of a request that Kafka did not take; well within the time that senders wait.
_RETRY_MS = 50
_SILENT = logging.Logger("silent", logging.CRITICAL + 1)


class Full(Exception):
    """No more reports can wait."""


@dataclass(slots=True, eq=False)
class Hold:
    """Reports that wait together."""

    sent: asyncio.Future[None]
    since: float  # of the loop's clock
    requests: int = 0
    due: bool = False  # it has enough requests, or its time has come
    reports: list[tuple[int, bytes, bytes]] = field(default_factory=list)  # partition, key, value
    timer: asyncio.TimerHandle | None = None


class Mixer:
    """All reports between their sender and one topic of Kafka: `reports`, or `held`."""

    def __init__(
        self,
        settings: Settings,
        acknowledged: Callable[[float], None] = lambda _seconds: None,
        topic: str = "reports",
    ) -> None:
        self._acknowledged = acknowledged
        self.connected = False
        self.waiting = 0  # reports held or in flight
        self._kafka = settings.kafka
        self._settings = settings.gateway
        self._topic = kafka.topic(settings.kafka, topic)
        # Of `held` nothing is said: a write that fails would tell that a page was left.
        self._log = log if topic == "reports" else _SILENT
        self._open: Hold | None = None
        self._leaving = 0
        self._closed: asyncio.Queue[Hold] = asyncio.Queue()

    def put(self, partition: int, key: bytes, values: Sequence[bytes]) -> asyncio.Future[None]:
        """Take a request's reports; the future ends once Kafka has them, or with Unavailable.

        Raises Unavailable while Kafka is unreachable, and Full.
        """
        if not self.connected:
            raise Unavailable("Kafka is away")
        if self.waiting + len(values) > self._settings.max_waiting_reports:
            raise Full
        hold = self._open
        if hold is None:
            loop = asyncio.get_running_loop()
            hold = self._open = Hold(loop.create_future(), loop.time())
            hold.timer = loop.call_later(self._settings.hold_ms / 1000, self._time, hold)
        hold.requests += 1
        hold.reports.extend([(partition, key, value) for value in values])
        self.waiting += len(values)
        if hold.requests >= self._settings.hold_requests:
            hold.due = True
            self._let_go()
        return hold.sent

    async def run(self) -> None:
        """Send, for ever."""
        trouble = Trouble(self._log)

        def lost(error: BaseException) -> None:
            trouble.begins(f"gateway: Kafka takes no reports ({type(error).__name__})")

        def back() -> None:
            trouble.over("gateway: reports are sent again")

        await keep_connected(self._live, lost, back, _BACKOFF)

    async def _live(self, connected: Callable[[], None]) -> None:
        try:
            async with kafka.producer(
                self._kafka,
                compression_type=None,
                max_batch_size=_BATCH_BYTES,
                retry_backoff_ms=_RETRY_MS,
            ) as producer:
                self.connected = True
                connected()
                await self._send_until_it_fails(producer)
        finally:
            self._give_up()

    async def _send_until_it_fails(self, producer: Writer) -> None:
        senders = [asyncio.ensure_future(self._send_all(producer)) for _ in range(_IN_FLIGHT)]
        try:
            done, _ = await asyncio.wait(senders, return_when=asyncio.FIRST_COMPLETED)
            # Before the producer is stopped, which may take seconds: nobody waits for that.
            self._give_up()
            for sender in done:
                sender.result()
        finally:
            for sender in senders:
                sender.cancel()
            await asyncio.gather(*senders, return_exceptions=True)

    async def _send_all(self, producer: Writer) -> None:
        while True:
            hold = await self._closed.get()
            try:
                async with asyncio.timeout(self._settings.acknowledge_s):
                    await self._send(producer, hold)
            except BaseException:
                self._end(hold, Unavailable("Kafka did not acknowledge"))
                raise
            self._end(hold, None)
            self._acknowledged(asyncio.get_running_loop().time() - hold.since)
            self._leaving -= 1
            self._let_go()

    async def _send(self, producer: Writer, hold: Hold) -> None:
        acknowledgements = []
        for partition, batch in self._batches(producer, shuffled(hold.reports)):
            sent = await producer.send_batch(batch, self._topic, partition=partition)
            sent.add_done_callback(_seen)
            acknowledgements.append(sent)
        for sent in acknowledgements:
            await sent

    def _batches(
        self, producer: Writer, reports: Sequence[tuple[int, bytes, bytes]]
    ) -> list[tuple[int, Any]]:
        now_ms = int(time.time() * 1000)
        batches: list[tuple[int, Any]] = []
        current: dict[int, Any] = {}
        for partition, key, value in reports:
            batch = current.get(partition)
            if batch is None or batch.append(timestamp=now_ms, key=key, value=value) is None:
                batch = current[partition] = producer.create_batch()
                batches.append((partition, batch))
                batch.append(timestamp=now_ms, key=key, value=value)
        for _, batch in batches:
            batch.close()
        return batches

    def _time(self, hold: Hold) -> None:
        hold.due = True
        self._let_go()

    def _let_go(self) -> None:
        """Close the hold that is open if it is due and can be sent at once."""
        hold = self._open
        if hold is not None and hold.due and self._leaving < _IN_FLIGHT:
            self._open = None
            self._leaving += 1
            if hold.timer is not None:
                hold.timer.cancel()
            self._closed.put_nowait(hold)

    def _end(self, hold: Hold, error: Unavailable | None) -> None:
        if hold.sent.done():
            return
        self.waiting -= len(hold.reports)
        if error is None:
            hold.sent.set_result(None)
        else:
            hold.sent.set_exception(error)
            hold.sent.exception()  # seen: a sender may have gone

    def _give_up(self) -> None:
        """Nothing that waits is sent any more."""
        self.connected = False
        if self._open is not None:
            self._end(self._open, Unavailable("Kafka is away"))
            self._open = None
        self._leaving = 0
        while not self._closed.empty():
            self._end(self._closed.get_nowait(), Unavailable("Kafka is away"))


def shuffled(items: Sequence[T], entropy: Callable[[int], bytes] = secrets.token_bytes) -> list[T]:
    """The items in random order, by the operating system's randomness: a sort by 64-bit draws."""
    draws = np.frombuffer(entropy(8 * len(items)), dtype="<u8")
    return [items[i] for i in np.argsort(draws).tolist()]


def _seen(sent: "asyncio.Future[Any]") -> None:
    """Mark a failure as seen: the first one is raised, the rest say the same."""
    if not sent.cancelled():
        sent.exception()
