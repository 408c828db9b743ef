"""One life of a stage: consume, feed the pure partitions, write their outputs in transactions.

It knows partitions, producers and transactions, and nothing of reports or arms. A stage's state
for one partition is a `Partition`: synchronous, fed with records, asked for outputs. The outputs
of a chunk go into one transaction; input offsets stay outside it (a restart
offset that is a lower bound, or a position in the output itself). One transactional id per input
partition fences stale workers. Whatever goes wrong with Kafka comes out of `run`: the session is
then thrown away.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from stream_app.kafka import GroupReader, TopicPartition, TransactionalWriter, stop, topic
from stream_app.kafka.clients import subscribe
from stream_app.kafka.connection import (
    make_admin,
    make_group_reader,
    make_reader,
    make_transactional_writer,
)
from stream_app.kafka.errors import NOT_COMMITTED
from stream_app.kafka.reading import read_to_end
from stream_app.metrics.instruments import StageMetrics
from stream_app.runtime.deletion import Deletion
from stream_app.runtime.kafka_health import KafkaHealth
from stream_app.runtime.stage import Log, Output, Partition, Readers, Record, Stage
from stream_app.settings import KafkaSettings

log = logging.getLogger("shufflebandit")

_TRANSACTION_TIMEOUT_S = 20
_OPEN_TIMEOUT_S = 300
_STOP_TIMEOUT_S = 2
_COMMIT_EVERY_S = 1.0


@dataclass(slots=True, eq=False)
class _Slot:
    """One open partition."""

    number: int
    state: Partition
    producer: TransactionalWriter
    control_position: int = 0
    committed: int | None = None


@dataclass
class Session:
    """One life of a stage's clients; discarded whole on any error."""

    settings: KafkaSettings
    stage: Stage
    metrics: StageMetrics
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _slots: dict[int, _Slot] = field(default_factory=dict)
    _assigned: set[int] = field(default_factory=set)
    _joined: bool = False
    _clients: list[Any] = field(default_factory=list)
    _next_commit: float = 0.0
    _tailed: frozenset[int] = frozenset()
    _deletion: Deletion | None = None

    def __post_init__(self) -> None:
        self._outage = KafkaHealth(self.stage.name)

    async def run(self, halt: asyncio.Event) -> None:
        """Consume and process until `halt` is set or something fails."""
        self._input = self._client(self._group_consumer())
        self._readers = Readers(
            self._client(make_reader(self.settings, committed=True)),
            self._client(make_reader(self.settings, committed=False)),
        )
        self._control = self._client(make_reader(self.settings, committed=True))
        if self.stage.delete_input:
            admin = self._client(make_admin(self.settings))
            self._deletion = Deletion(admin, self._topic, self.metrics)
        async with asyncio.timeout(_TRANSACTION_TIMEOUT_S):
            for client in list(self._clients):
                await client.start()
        subscribe(self._input, self._topic, self)
        loops = [self._consume(), self._tail(), self._outage.watch()]
        if self._deletion is not None:
            loops.append(self._deletion.run())
        work = [asyncio.ensure_future(loop) for loop in loops]
        halted = asyncio.ensure_future(halt.wait())
        try:
            done, _ = await asyncio.wait([halted, *work], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            # Under the lock no transaction is under way: the loops can be cut off.
            async with asyncio.timeout(_STOP_TIMEOUT_S), self._lock:
                for task in work:
                    if task.done():  # failed while we waited: its offsets may be ahead of the log
                        task.result()
                await _cancel(work)
                await self._commit_restart_offsets()
        finally:
            await _cancel([halted, *work])

    def unready(self) -> str:
        """What it waits for, in words; empty while it does its work."""
        if self._outage.trouble.lasts:
            return "Kafka is away"
        if not self._joined:
            return "its share of the partitions"
        if self._assigned:
            return f"{len(self._assigned)} partitions to be opened"
        return "a transaction to go through" if self._outage.slow else ""

    @property
    def _group(self) -> str:
        """Consumer group and fencing: two deployments with other topics do not meet."""
        return f"{self.settings.topic_prefix}.{self.stage.group}"

    @property
    def _topic(self) -> str:
        return topic(self.settings, self.stage.input)

    def _client(self, client: Any) -> Any:
        self._clients.append(client)
        return client

    def _group_consumer(self) -> GroupReader:
        return make_group_reader(
            self.settings,
            self._group,
            self.stage.instance_id,
            committed=self.stage.input_committed,
            value_bytes=self.stage.value_bytes,
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
            await self._outage.notice(quiet=not chunks, probe=self._probe if self._slots else None)
            async with self._lock:
                async with self._writing() as begin:
                    for place, records in chunks.items():
                        slot = self._slots.get(place.partition)
                        if slot is not None and slot is before.get(place.partition):
                            await self._feed(slot, records)
                            begin(slot)
                            await asyncio.sleep(0)  # what was begun, and fetching, go on meanwhile
                await self._commit_restart_offsets_if_due()

    async def _probe(self) -> None:
        await self._input.end_offsets(self._input.assignment())

    async def _feed(self, slot: _Slot, records: Sequence[Record]) -> None:
        rest = slot.state.feed(records, refreshed=False)
        if rest:
            await self._refresh(slot)
            slot.state.feed(rest, refreshed=True)

    async def _tail(self) -> None:
        """Follow the control topic of the open partitions."""
        while True:
            if self._tailed != frozenset(self._slots):
                async with self._lock:
                    self._follow()
            if not self._tailed:
                await asyncio.sleep(0.05)
                continue
            chunks = await self._control.getmany(timeout_ms=100)
            async with self._lock, self._writing() as begin:
                for place, records in chunks.items():
                    slot = self._slots.get(place.partition)
                    if slot is not None:
                        self._take_control(slot, records)
                        begin(slot)

    def _follow(self) -> None:
        self._tailed = frozenset(self._slots)
        name = topic(self.settings, self.stage.control)
        self._control.assign([TopicPartition(name, number) for number in sorted(self._tailed)])
        for slot in self._slots.values():
            self._control.seek(TopicPartition(name, slot.number), slot.control_position)

    async def _refresh(self, slot: _Slot) -> None:
        """Read the control topic to its end: the input may be ahead of what was tailed."""
        place = TopicPartition(topic(self.settings, self.stage.control), slot.number)
        reader = self._readers.committed
        reader.assign([place])
        async with asyncio.timeout(_TRANSACTION_TIMEOUT_S):
            async for records in read_to_end(reader, place, slot.control_position, compacted=True):
                self._take_control(slot, records)

    def _take_control(self, slot: _Slot, records: Sequence[Record]) -> None:
        fresh = [record for record in records if record.offset >= slot.control_position]
        if fresh:
            slot.state.control(fresh)
            slot.control_position = fresh[-1].offset + 1

    async def _open_assigned(self) -> None:
        """Take over newly assigned partitions: fence first, then read the log, then consume."""
        async with self._lock:
            while self._assigned:
                await self._open(min(self._assigned))

    async def _open(self, number: int) -> None:
        producer = make_transactional_writer(self.settings, f"{self._group}-{number}")
        place = TopicPartition(self._topic, number)
        history = Log(self.settings, number, self._readers)
        slot = _Slot(number, self.stage.make(), producer)
        try:
            async with asyncio.timeout(_OPEN_TIMEOUT_S):
                await producer.start()
                offset = await self._input.committed(place)
                needed = await slot.state.recover(history, offset)
                slot.control_position = history.ends.get(self.stage.control, 0)
                first = (await self._input.beginning_offsets([place]))[place]
        except BaseException:
            await stop(producer)
            raise
        self._assigned.discard(number)
        self._slots[number] = slot
        position = max(needed, first)
        self.metrics.opened(number, slot.state)
        self._allow_deletion(number, offset)
        async with self._writing() as begin:
            begin(slot)
        self._input.seek(place, position)
        self._input.resume(place)
        log.info("%s: partition %d opened at offset %d", self.stage.name, number, position)

    @asynccontextmanager
    async def _writing(self) -> AsyncIterator[Callable[[_Slot], None]]:
        """Begin to write the outputs of partitions, each once; all have ended when this is left."""
        begun: list[asyncio.Future[None]] = []

        def begin(slot: _Slot) -> None:
            outputs = slot.state.take()
            if outputs:
                begun.append(asyncio.ensure_future(self._write(slot, outputs)))

        try:
            yield begin
            await asyncio.gather(*begun)
        finally:
            await _cancel(begun)

    async def _write(self, slot: _Slot, outputs: Sequence[Output]) -> None:
        """Write outputs in one transaction; every send is awaited before the commit."""
        producer = slot.producer
        started = time.monotonic()
        self._outage.begun.append(started)
        # Given here: of several records in a batch aiokafka would tell only the first one's time.
        now_ms = time.time_ns() // 1_000_000
        async with asyncio.timeout(_TRANSACTION_TIMEOUT_S):
            await producer.begin_transaction()
            sent = [
                await producer.send(
                    topic(self.settings, output.topic),
                    output.value,
                    key=output.key,
                    partition=slot.number,
                    timestamp_ms=now_ms,
                )
                for output in outputs
            ]
            written = await asyncio.gather(*sent)
            await producer.commit_transaction()
        offsets = [metadata.offset for metadata in written]
        if min(offsets) >= 0:  # else one was sent twice, and Kafka did not remember where it is
            ends = zip(outputs, offsets, strict=True)
            slot.state.wrote({output.topic: offset + 1 for output, offset in ends})
        self._outage.wrote(started)
        self.metrics.committed(time.monotonic() - started)
        for output in outputs:
            self.metrics.wrote(output.times, output.topic, len(output.value or b""), now_ms)

    async def _commit_restart_offsets_if_due(self) -> None:
        if time.monotonic() >= self._next_commit:
            self._next_commit = time.monotonic() + _COMMIT_EVERY_S
            async with self._writing() as begin:
                for slot in self._slots.values():
                    slot.state.tick(time.time_ns() // 1_000_000)
                    begin(slot)
            await self._commit_restart_offsets()
            await self._measure_lag()

    async def _measure_lag(self) -> None:
        """By the consumer's own position, which is also behind the marker of a transaction."""
        assigned = self._input.assignment()
        for slot in self._slots.values():
            place = TopicPartition(self._topic, slot.number)
            end = self._input.highwater(place) if place in assigned else None
            if end is not None:
                position = await self._input.position(place)
                self.metrics.lag(slot.number, max(0, end - position))

    async def _commit_restart_offsets(self) -> None:
        """Commit the first offset that a restart needs; losing a commit only costs rereading."""
        offsets = {}
        for slot in self._slots.values():
            offset = slot.state.restart_offset()
            if offset is not None and offset != slot.committed:
                offsets[TopicPartition(self._topic, slot.number)] = slot.committed = offset
        if not offsets:
            return
        try:
            async with asyncio.timeout(_TRANSACTION_TIMEOUT_S):
                await self._input.commit(offsets)
        except NOT_COMMITTED:
            log.debug("%s: offsets not committed: rebalancing", self.stage.name)
            return
        for place, offset in offsets.items():
            self._allow_deletion(place.partition, offset)

    def _allow_deletion(self, number: int, committed: int | None) -> None:
        if self._deletion is not None and committed is not None:
            self._deletion.allow(number, committed)

    async def revoke(self, numbers: set[int]) -> None:
        """Give partitions up: drop their state, stop their producers."""
        async with self._lock:
            self._assigned -= numbers
            dropped = [self._slots.pop(number) for number in numbers & set(self._slots)]
            for slot in dropped:
                self.metrics.closed(slot.number)
                if self._deletion is not None:
                    self._deletion.forget(slot.number)
            await asyncio.gather(*(stop(slot.producer) for slot in dropped))

    def assign(self, numbers: set[int]) -> None:
        """Note partitions to open; nothing is fetched from them until then."""
        self._input.pause(*(TopicPartition(self._topic, number) for number in numbers))
        self._assigned |= numbers
        self._joined = True
        self.metrics.rebalanced()


async def _cancel(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Cancel tasks and wait until they have ended; what they raise no longer matters."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
