"""The transactional loop that both stages share: consume, feed the pure stage, release.

It knows partitions, producers and transactions, and nothing of reports or arms. A stage's state
for one partition is a `Partition`: synchronous, fed with records, asked for outputs. The outputs
of a chunk go into one transaction; input offsets stay outside it (a mark that is a lower bound, or
a position that stands in the output itself). One transactional id per input partition fences stale
workers. Whatever goes wrong with Kafka, the session is thrown away and a new one starts from the
log.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import (
    CommitFailedError,
    IllegalStateError,
    InvalidProducerEpoch,
    KafkaError,
    ProducerFenced,
)

from stream_app.config import KafkaSettings
from stream_app.kafka import client_options, make_consumer, stop, topic
from stream_app.metrics.instruments import Metrics, StageMetrics, Times
from stream_app.reading import read_to_end

log = logging.getLogger("shufflebandit")
Record = Any  # aiokafka's ConsumerRecord

_TRANSACTION_TIMEOUT_S = 20
_OPEN_TIMEOUT_S = 300
_STOP_TIMEOUT_S = 2
_COMMIT_EVERY_S = 1.0
_PROBE_EVERY_S = 3.0
# A transaction that takes longer makes the worker unready.
_SLOW_S = 5.0


@dataclass(frozen=True, slots=True)
class Output:
    """A record to write, to the same partition number as the input's."""

    topic: str
    key: bytes
    value: bytes | None
    times: Times | None = field(default=None, compare=False)  # for the metrics only


class Log:
    """What a partition reads to recover: this partition of any topic, from its beginning."""

    def __init__(self, settings: KafkaSettings, partition: int, readers: "Readers") -> None:
        self._settings, self._readers = settings, readers
        self.partition = partition
        self.ends: dict[str, int] = {}

    async def read(
        self, name: str, *, committed: bool = True, start: int = 0
    ) -> AsyncIterator[Sequence[Record]]:
        """All records of a topic's partition up to its end as of now; `ends` remembers the end."""
        reader = self._readers.committed if committed else self._readers.uncommitted
        place = TopicPartition(topic(self._settings, name), self.partition)
        reader.assign([place])
        self.ends[name] = start
        async for records in read_to_end(reader, place, start):
            self.ends[name] = records[-1].offset + 1
            yield records


class Partition(Protocol):
    """A stage's state for one input partition. Only `recover` waits for anything."""

    async def recover(self, log: Log, mark: int | None) -> int:
        """Build the state from the log; returns the input offset to begin at."""

    def feed(self, records: Sequence[Record], *, refreshed: bool) -> int:
        """Take input records; fewer taken than given means: read the side topic first."""

    def side(self, records: Sequence[Record]) -> None:
        """Take records of the side topic."""

    def take(self) -> list[Output]:
        """The outputs since the last call, for one transaction."""

    def mark(self) -> int | None:
        """The first input offset that a restart needs; None if no mark is kept."""

    def counts(self) -> Mapping[str, int]:
        """Totals since it was made; see `metrics.instruments.Counted`."""

    def levels(self) -> Mapping[str, int]:
        """How things stand now."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What makes a stage: its topics, its group, its partitions' state."""

    name: str
    input: str
    side: str
    input_committed: bool
    group: str
    instance_id: str
    make: Callable[[], Partition]


@dataclass(slots=True)
class Readers:
    """Consumers without a group, for recovery and refreshes; used under the session's lock."""

    committed: AIOKafkaConsumer
    uncommitted: AIOKafkaConsumer


@dataclass(slots=True, eq=False)
class _Slot:
    """One open partition."""

    number: int
    state: Partition
    producer: AIOKafkaProducer
    side_position: int = 0
    committed: int | None = None


class Runner:
    """Runs a stage until it is told to stop; starts anew from the log after any Kafka error."""

    def __init__(
        self, settings: KafkaSettings, stage: Stage, metrics: Metrics | None = None
    ) -> None:
        self._settings, self._stage = settings, stage
        self._metrics = (metrics or Metrics()).stage(stage.name)
        self._session: _Session | None = None
        self.restarts = 0

    def unready(self) -> str:
        """What it waits for, in words; empty while it does its work."""
        waiting = "a connection to Kafka" if self._session is None else self._session.unready()
        return f"{self._stage.name}: {waiting}" if waiting else ""

    async def run(self, halt: asyncio.Event) -> None:
        """Until `halt` is set. Errors other than Kafka's are bugs, and come out."""
        away = False
        while not halt.is_set():
            self._session = session = _Session(self._settings, self._stage, self._metrics)
            started = time.monotonic()
            try:
                await session.run(halt)
            except (KafkaError, TimeoutError, OSError) as error:
                self.restarts += 1
                self._metrics.restarted(
                    fenced=isinstance(error, ProducerFenced | InvalidProducerEpoch)
                )
                if not away or time.monotonic() - started > 60:
                    log.warning(
                        "%s: %s: %s; starting again from the log",
                        self._stage.name, type(error).__name__, str(error)[:200],
                    )  # fmt: skip
                away = True
            finally:
                self._session = None
                await session.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(halt.wait(), random.uniform(0.1, 1.0))  # noqa: S311


@dataclass
class _Session:
    """One life of a stage's clients; discarded whole on any error."""

    settings: KafkaSettings
    stage: Stage
    metrics: StageMetrics
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _slots: dict[int, _Slot] = field(default_factory=dict)
    _assigned: set[int] = field(default_factory=set)
    _joined: bool = False
    _writing: float | None = None  # since when a transaction is under way
    _clients: list[Any] = field(default_factory=list)
    _next_commit: float = 0.0
    _tailed: frozenset[int] = frozenset()
    _heard: float = 0.0
    _away: bool = False

    async def run(self, halt: asyncio.Event) -> None:
        """Consume and process until `halt` is set or something fails."""
        self._input = self._client(self._group_consumer())
        self._readers = Readers(
            self._client(make_consumer(self.settings, committed=True)),
            self._client(make_consumer(self.settings, committed=False)),
        )
        self._side = self._client(make_consumer(self.settings, committed=True))
        async with asyncio.timeout(_TRANSACTION_TIMEOUT_S):
            for client in list(self._clients):
                await client.start()
        self._input.subscribe([topic(self.settings, self.stage.input)], listener=_Listener(self))
        work = [asyncio.ensure_future(loop) for loop in (self._consume(), self._tail())]
        halted = asyncio.ensure_future(halt.wait())
        try:
            done, _ = await asyncio.wait([halted, *work], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            # Under the lock no transaction is under way: the loops can be cut off.
            async with asyncio.timeout(_STOP_TIMEOUT_S), self._lock:
                await _cancel(work)
                await self._commit_marks()
        finally:
            await _cancel([halted, *work])

    def unready(self) -> str:
        """What it waits for, in words; empty while it does its work."""
        if self._away:
            return "Kafka is away"
        if not self._joined:
            return "its share of the partitions"
        if self._assigned:
            return f"{len(self._assigned)} partitions to be opened"
        slow = self._writing is not None and time.monotonic() - self._writing > _SLOW_S
        return "a transaction to go through" if slow else ""

    def _client(self, client: Any) -> Any:
        self._clients.append(client)
        return client

    def _group_consumer(self) -> AIOKafkaConsumer:
        return make_consumer(
            self.settings,
            committed=self.stage.input_committed,
            group_id=self.stage.group,
            group_instance_id=self.stage.instance_id or None,
            session_timeout_ms=6_000,
            heartbeat_interval_ms=1_000,
            rebalance_timeout_ms=30_000,
            request_timeout_ms=40_000,
        )

    async def close(self) -> None:
        """Stop every client; the log has all that matters."""
        async with self._lock:
            producers = [slot.producer for slot in self._slots.values()]
            for number in self._slots:
                self.metrics.closed(number)
            self._slots.clear()
        await asyncio.gather(*(stop(client) for client in (*producers, *self._clients)))

    async def _consume(self) -> None:
        while True:
            if self._assigned:
                await self._open_assigned()
            before = dict(self._slots)
            chunks = await self._input.getmany(timeout_ms=100)
            await self._notice_outage(quiet=not chunks)
            async with self._lock:
                for place, records in chunks.items():
                    slot = self._slots.get(place.partition)
                    if slot is not None and slot is before.get(place.partition):
                        await self._process(slot, records)
                await self._commit_marks_if_due()

    async def _notice_outage(self, *, quiet: bool) -> None:
        """aiokafka waits for Kafka without a word to us: ask when nothing came for a while."""
        now = time.monotonic()
        if not quiet:
            self._heard = now
        elif self._slots and now - self._heard > _PROBE_EVERY_S:
            try:
                async with asyncio.timeout(_PROBE_EVERY_S):
                    await self._input.end_offsets(self._input.assignment())
            except (KafkaError, TimeoutError):
                if not self._away:
                    log.warning("%s: Kafka is away, waiting for it", self.stage.name)
                self._away = True
                return
            self._heard = time.monotonic()
        if self._away and self._heard > now - _PROBE_EVERY_S:
            log.info("%s: Kafka is back", self.stage.name)
            self._away = False

    async def _process(self, slot: _Slot, records: Sequence[Record]) -> None:
        taken = slot.state.feed(records, refreshed=False)
        if taken < len(records):
            await self._refresh(slot)
            slot.state.feed(records[taken:], refreshed=True)
        await self._flush(slot)

    async def _tail(self) -> None:
        """Follow the side topic of the open partitions."""
        while True:
            if self._tailed != frozenset(self._slots):
                async with self._lock:
                    self._follow()
            if not self._tailed:
                await asyncio.sleep(0.05)
                continue
            chunks = await self._side.getmany(timeout_ms=100)
            async with self._lock:
                for place, records in chunks.items():
                    slot = self._slots.get(place.partition)
                    if slot is not None:
                        self._take_side(slot, records)
                        await self._flush(slot)

    def _follow(self) -> None:
        self._tailed = frozenset(self._slots)
        name = topic(self.settings, self.stage.side)
        self._side.assign([TopicPartition(name, number) for number in sorted(self._tailed)])
        for slot in self._slots.values():
            self._side.seek(TopicPartition(name, slot.number), slot.side_position)

    async def _refresh(self, slot: _Slot) -> None:
        """Read the side topic to its end: the input may be ahead of what was tailed."""
        place = TopicPartition(topic(self.settings, self.stage.side), slot.number)
        reader = self._readers.committed
        reader.assign([place])
        async with asyncio.timeout(_TRANSACTION_TIMEOUT_S):
            async for records in read_to_end(reader, place, slot.side_position):
                self._take_side(slot, records)

    def _take_side(self, slot: _Slot, records: Sequence[Record]) -> None:
        fresh = [record for record in records if record.offset >= slot.side_position]
        if fresh:
            slot.state.side(fresh)
            slot.side_position = fresh[-1].offset + 1

    async def _open_assigned(self) -> None:
        """Take over newly assigned partitions: fence first, then read the log, then consume."""
        async with self._lock:
            while self._assigned:
                await self._open(min(self._assigned))

    async def _open(self, number: int) -> None:
        producer = AIOKafkaProducer(
            **client_options(self.settings),
            transactional_id=f"{self.stage.group}-{number}",
            transaction_timeout_ms=10_000,
            retry_backoff_ms=10,
            max_request_size=4 << 20,
        )
        place = TopicPartition(topic(self.settings, self.stage.input), number)
        history = Log(self.settings, number, self._readers)
        slot = _Slot(number, self.stage.make(), producer)
        try:
            async with asyncio.timeout(_OPEN_TIMEOUT_S):
                await producer.start()
                mark = await self._input.committed(place)
                begin = await slot.state.recover(history, mark)
                slot.side_position = history.ends.get(self.stage.side, 0)
                first = (await self._input.beginning_offsets([place]))[place]
        except BaseException:
            await stop(producer)
            raise
        self._assigned.discard(number)
        self._slots[number] = slot
        self.metrics.opened(number, slot.state)
        await self._flush(slot)
        self._input.seek(place, max(begin, first))
        self._input.resume(place)
        log.info("%s: partition %d opened at offset %d", self.stage.name, number, max(begin, first))

    async def _flush(self, slot: _Slot) -> None:
        """Write the outputs in one transaction; every send is awaited before the commit."""
        outputs = slot.state.take()
        if not outputs:
            return
        producer = slot.producer
        self._writing = started = time.monotonic()
        async with asyncio.timeout(_TRANSACTION_TIMEOUT_S):
            await producer.begin_transaction()
            sent = [
                await producer.send(
                    topic(self.settings, output.topic),
                    value=output.value,
                    key=output.key,
                    partition=slot.number,
                )
                for output in outputs
            ]
            written = await asyncio.gather(*sent)
            await producer.commit_transaction()
        self._writing = None
        self.metrics.committed(time.monotonic() - started)
        for output, place in zip(outputs, written, strict=True):
            self.metrics.wrote(
                output.times, output.topic, len(output.value or b""), place.timestamp
            )

    async def _commit_marks_if_due(self) -> None:
        if time.monotonic() >= self._next_commit:
            self._next_commit = time.monotonic() + _COMMIT_EVERY_S
            await self._commit_marks()
            await self._measure_lag()

    async def _measure_lag(self) -> None:
        name = topic(self.settings, self.stage.input)
        for number in self._slots:
            place = TopicPartition(name, number)
            if place not in self._input.assignment():
                continue  # rebalancing
            end = self._input.highwater(place)
            if end is not None:
                self.metrics.lag(number, max(0, end - await self._input.position(place)))

    async def _commit_marks(self) -> None:
        """Commit the first offset that a restart needs; losing a commit only costs rereading."""
        name = topic(self.settings, self.stage.input)
        marks = {}
        for slot in self._slots.values():
            mark = slot.state.mark()
            if mark is not None and mark != slot.committed:
                marks[TopicPartition(name, slot.number)] = slot.committed = mark
        if not marks:
            return
        try:
            async with asyncio.timeout(_TRANSACTION_TIMEOUT_S):
                await self._input.commit(marks)
        except (CommitFailedError, IllegalStateError):
            log.debug("%s: marks not committed: rebalancing", self.stage.name)

    async def revoke(self, numbers: set[int]) -> None:
        """Give partitions up: drop their state, stop their producers."""
        async with self._lock:
            self._assigned -= numbers
            dropped = [self._slots.pop(number) for number in numbers & set(self._slots)]
            for slot in dropped:
                self.metrics.closed(slot.number)
            await asyncio.gather(*(stop(slot.producer) for slot in dropped))

    def assign(self, numbers: set[int]) -> None:
        """Note partitions to open; nothing is fetched from them until then."""
        name = topic(self.settings, self.stage.input)
        self._input.pause(*(TopicPartition(name, number) for number in numbers))
        self._assigned |= numbers
        self._joined = True
        self.metrics.rebalanced()


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Only notes what changed: no heartbeats run inside these calls."""

    def __init__(self, session: _Session) -> None:
        self._session = session

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        await self._session.revoke({place.partition for place in revoked})

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        self._session.assign({place.partition for place in assigned})


async def _cancel(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Cancel tasks and wait until they have ended; what they raise no longer matters."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
