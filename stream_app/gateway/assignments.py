"""The newest assignment of every experiment, followed from Kafka and given to whoever waits.

Of an assignment only what a client needs is shown: not the arms' results, the horizon or the
definition. While Kafka is unreachable the last one stands.
"""

import asyncio
import base64
import hashlib
from collections.abc import Callable, Sequence

import orjson

from stream_app import kafka
from stream_app.core.terms import parse
from stream_app.errors import InvalidInput
from stream_app.gateway.reports import Posting
from stream_app.kafka import PartitionReader, Record, TopicPartition
from stream_app.kafka.reading import read_to_end
from stream_app.kafka.reconnect import Backoff, Trouble, keep_connected
from stream_app.logs import log
from stream_app.settings import KafkaSettings
from stream_app.wire.assignment import Offer, decode_offer
from stream_app.wire.envelope import VERSION

# A fetch that brings something ends a poll at once; this is how often an idle loop turns.
_POLL_MS = 500
# While Kafka is unreachable the last assignments stand, so there is no haste.
_BACKOFF = Backoff(1.0, 1.0)


class AssignmentCache:
    """What is posted for clients."""

    def __init__(self, settings: KafkaSettings) -> None:
        self.loaded = asyncio.Event()  # all assignments were read once
        self.partitions = 0
        self._settings = settings
        self._postings: dict[str, Posting] = {}
        self._changed: dict[str, asyncio.Event] = {}

    def find(self, experiment: str) -> Posting | None:
        """The newest assignment; None if there is no such experiment."""
        return self._postings.get(experiment)

    async def changed(self, experiment: str, etag: str, timeout_s: float) -> bool:
        """Wait until another assignment than `etag` is posted; False if none came in time."""
        changed = self._changed.setdefault(experiment, asyncio.Event())
        posting = self.find(experiment)
        if posting is None or posting.etag != etag:
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await changed.wait()
        except TimeoutError:
            return False
        return True

    def take(self, record: Record) -> None:
        """Post a record of `assignments`; one that cannot be read leaves the last one standing."""
        name = (record.key or b"").decode(errors="replace")
        if record.value is None:
            self._postings.pop(name, None)
        else:
            try:
                offer = decode_offer(record.value)
            except InvalidInput:
                log.warning("gateway: the assignment at offset %d is not valid", record.offset)
                return
            if offer.experiment != name:
                return
            self._postings[name] = posted(offer, record.partition, self._postings.get(name))
        waiting = self._changed.pop(name, None)
        if waiting is not None:
            waiting.set()

    async def run(self) -> None:
        """Follow the assignments, for ever."""
        trouble = Trouble(log)

        def lost(error: BaseException) -> None:
            name = type(error).__name__
            trouble.begins(f"gateway: Kafka is away ({name}), the last assignments stand")

        def back() -> None:
            trouble.over("gateway: assignments are read again")

        await keep_connected(self._live, lost, back, _BACKOFF)

    async def _live(self, connected: Callable[[], None]) -> None:
        names = ("assignments", "reports", "held")
        self.partitions = await kafka.partition_count(self._settings, names)
        async with kafka.consumer(self._settings) as consumer:
            await self._read(consumer)
            connected()
            await self._follow(consumer)

    async def _read(self, consumer: PartitionReader) -> None:
        topic = kafka.topic(self._settings, "assignments")
        partitions = [TopicPartition(topic, number) for number in range(self.partitions)]
        consumer.assign(partitions)
        for partition in partitions:
            newest: dict[bytes, Record] = {}
            async for records in read_to_end(consumer, partition):
                newest.update((record.key, record) for record in records)
            self._take(list(newest.values()))
        self.loaded.set()

    async def _follow(self, consumer: PartitionReader) -> None:
        while True:
            for records in (await consumer.getmany(timeout_ms=_POLL_MS)).values():
                self._take(records)

    def _take(self, records: Sequence[Record]) -> None:
        for record in records:
            self.take(record)


def posted(offer: Offer, partition: int, before: Posting | None = None) -> Posting:
    """What is served of an assignment."""
    body = orjson.dumps(
        {
            "version": VERSION,
            "experiment": offer.experiment,
            "state": str(offer.status),
            "serve": offer.serve,
            "open": [{"batch": batch_id, "terms": terms} for batch_id, terms in offer.open],
        }
    )
    max_ones: dict[str, int | None] = {}
    newest = -1 if before is None else before.newest
    for batch_id, raw in offer.open:
        try:
            terms = parse(raw)
        except InvalidInput:
            max_ones[batch_id] = None
            continue
        max_ones[batch_id] = terms.mechanism.max_ones if terms.batch_id == batch_id else None
        newest = max(newest, terms.sequence)
    digest = base64.urlsafe_b64encode(hashlib.sha256(body).digest()[:18]).decode()
    return Posting(offer.experiment, partition, body, f'"{digest}"', offer.status, max_ones, newest)
