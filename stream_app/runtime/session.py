"""One life of a stage: consume, feed the pure partitions, write their outputs in transactions.

Theory of operation
===================

A stage turns records of its input topic into output records, and each output must count exactly
once, whatever dies when. This module and its four parts know partitions, writers and transactions,
and nothing of reports or arms. RULES n is rule n of stream_app/kafka/RULES.md.

**Who decides.** The log, and nothing else. A session keeps no truth of its own: on any error it is
thrown away whole, and the next one recovers each partition from the topics (RULES 4). So there is
no code that repairs a session, and none may be added: a fenced writer that is started again in
place, or a state that is fed again after a failed write, would count twice.

**Invariants.**

1. Whoever writes for a partition has fenced all who did before, and reads the log only after that.
   One transactional id for each input partition; `start` of the new owner's writer ends the old
   one's open transaction (RULES 2). What recovery reads is therefore final.
2. The outputs of what a state was fed are written in one transaction, in the order in which the
   state gave them, and its next transaction begins after that one's commit. All is done under
   `lock`, so at each moment at most one chunk is between its state and the log.
3. Every send is awaited before the commit, which would succeed without it (RULES 3).
4. Input offsets are not in the transaction. The shuffler commits a restart offset, a lower bound
   that stays true; the agent's position stands in its output. To commit one late, or not at all,
   costs rereading. To commit one before the outputs it rests on would lose reports: offsets are
   committed only after all transactions of the round have ended, and never after one has failed.
5. A state is fed only by the session that opened it. Records that were fetched before a partition
   was given up and taken again are for the old state, and are dropped (`before` in `_consume`).
6. A state is told each control record once, in order (`control_tail`).

**Order of events.** The group assigns partitions: they are paused and noted, no more, since no
heartbeat runs inside that call (RULES 1). The main loop opens them: fence, read the committed
offset, recover, write what recovery put out, seek, resume (`partitions`). Then, again and again:
fetch; under the lock, feed each partition's records and begin its transaction while the next one
is fed; wait for all; about once a second, commit restart offsets. When the group takes a partition
it waits for the lock, so for the end of any transaction, and drops the state.

**The end.** On `halt` the lock is taken, so no transaction is under way, the loops are cut off, and
the restart offsets committed a last time; unless a loop has failed meanwhile (invariant 4).

Warning for whoever edits this: the randomised model (tests/shuffler/test_model.py) knows the states
but not this loop. It is the chaos test (tests/integration/chaos) that breaks what is wrong here.
"""

import asyncio
from collections.abc import Sequence

from stream_app.kafka import stop
from stream_app.kafka.clients import Startable, subscribe
from stream_app.kafka.connection import make_admin, make_group_reader, make_reader
from stream_app.metrics.instruments import StageMetrics
from stream_app.runtime.control_tail import ControlTail
from stream_app.runtime.deletion import Deletion
from stream_app.runtime.kafka_health import KafkaHealth
from stream_app.runtime.open_partition import OpenPartition, RecordSource
from stream_app.runtime.partitions import Partitions
from stream_app.runtime.restart_offsets import RestartOffsets
from stream_app.runtime.stage import Readers, Record, Stage
from stream_app.runtime.transactions import TRANSACTION_TIMEOUT_S, Transactions, cancel
from stream_app.settings import KafkaSettings

# A worker has 5 s to stop; its clients may need the rest of it.
_STOP_TIMEOUT_S = 2
# How long a poll waits for records: an idle loop opens partitions and commits offsets as often.
_POLL_MS = 100


class Session:
    """One life of a stage's clients; discarded whole on any error. Needs a running event loop."""

    def __init__(self, settings: KafkaSettings, stage: Stage, metrics: StageMetrics) -> None:
        self._source = RecordSource.of(settings, stage)
        self.lock = asyncio.Lock()  # held while what the states know is not in the log yet
        self.health = KafkaHealth(stage.name)
        self._input = make_group_reader(
            settings,
            self._source.group,
            stage.instance_id,
            committed=stage.input_committed,
            value_bytes=stage.value_bytes,
        )
        readers = Readers(
            make_reader(settings, committed=True), make_reader(settings, committed=False)
        )
        control = make_reader(settings, committed=True)
        self._clients: list[Startable] = [
            self._input, readers.committed, readers.uncommitted, control
        ]  # fmt: skip
        self.deletion: Deletion | None = None
        if stage.delete_input:
            admin = make_admin(settings)
            self._clients.append(admin)
            self.deletion = Deletion(admin, self._source.topic, metrics)
        self.transactions = Transactions(settings, metrics, self.health)
        self.partitions = Partitions(
            settings, stage, self._input, readers, self.transactions, metrics, self.deletion,
            self.lock,
        )  # fmt: skip
        self._restart_offsets = RestartOffsets(
            settings, stage, self._input, self.partitions, self.transactions, metrics,
            self.deletion,
        )  # fmt: skip
        self._control_tail = ControlTail(
            settings, stage, control, readers.committed, self.partitions, self.transactions,
            self.lock,
        )  # fmt: skip

    def unready(self) -> str:
        """What it waits for, in words; empty while it does its work."""
        if self.health.trouble.lasts:
            return "Kafka is away"
        if not self.partitions.joined:
            return "its share of the partitions"
        if self.partitions.assigned:
            return f"{len(self.partitions.assigned)} partitions to be opened"
        return "a transaction to go through" if self.health.slow else ""

    async def run(self, halt: asyncio.Event) -> None:
        """Consume and process until `halt` is set or something fails."""
        async with asyncio.timeout(TRANSACTION_TIMEOUT_S):
            for client in self._clients:
                await client.start()
        subscribe(self._input, self._source.topic, self.partitions)
        loops = [self._consume(), self._control_tail.run(), self.health.watch()]
        if self.deletion is not None:
            loops.append(self.deletion.run())
        work = [asyncio.ensure_future(loop) for loop in loops]
        halted = asyncio.ensure_future(halt.wait())
        try:
            done, _ = await asyncio.wait([halted, *work], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            # Under the lock no transaction is under way: the loops can be cut off.
            async with asyncio.timeout(_STOP_TIMEOUT_S), self.lock:
                for task in work:
                    if task.done():  # failed while we waited: its offsets may be ahead of the log
                        task.result()
                await cancel(work)
                await self._restart_offsets.commit()
        finally:
            await cancel([halted, *work])

    async def close(self) -> None:
        """Stop every client; the log has all that matters."""
        writers = await self.partitions.drop_all()
        await asyncio.gather(*(stop(client) for client in (*writers, *self._clients)))

    async def _consume(self) -> None:
        partitions = self.partitions
        while True:
            await partitions.open_assigned()
            before = dict(partitions.open)
            chunks = await self._input.getmany(timeout_ms=_POLL_MS)
            probe = self._probe if partitions.open else None
            await self.health.notice(quiet=not chunks, probe=probe)
            async with self.lock:
                async with self.transactions.writing() as begin:
                    for source, records in chunks.items():
                        partition = partitions.open.get(source.partition)
                        if partition is not None and partition is before.get(source.partition):
                            await self._feed(partition, records)
                            begin(partition)
                            await asyncio.sleep(0)  # what was begun, and fetching, go on meanwhile
                await self._restart_offsets.commit_if_due()

    async def _feed(self, partition: OpenPartition, records: Sequence[Record]) -> None:
        """At most one refresh a chunk: a flood of unknown batch ids must not stop it (RULES 7)."""
        rest = partition.state.feed(records, refreshed=False)
        if rest:
            await self._control_tail.refresh(partition)
            partition.state.feed(rest, refreshed=True)

    async def _probe(self) -> None:
        await self._input.end_offsets(self._input.assignment())
