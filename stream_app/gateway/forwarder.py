"""Reads `held` and lets each report go when it is due. All gateways together are one group.

It says nothing of what it reads: no log line, count or answer moves when a page hands a report
over, since those who leave a page are often those who clicked. What it says of Kafka depends on
fetching alone, which goes on whether anything is handed over or not.

A partition is owned by one gateway at a time; when one dies another takes over within seconds, from
the committed offset. What leaves twice then is known to the shuffle stage by its id.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial

from stream_app import kafka
from stream_app.errors import InvalidInput, Unavailable
from stream_app.gateway.held import HeldReports, Waiting
from stream_app.gateway.mixer import Full, Mixer
from stream_app.kafka import GroupReader, Record, TopicPartition
from stream_app.kafka.clients import Startable, delete_before, subscribe
from stream_app.kafka.connection import make_admin, make_group_reader
from stream_app.kafka.errors import FAILED, NOT_COMMITTED
from stream_app.kafka.reconnect import Backoff, Trouble, keep_connected
from stream_app.logs import log
from stream_app.settings import Settings
from stream_app.wire.held import decode_held, encode_progress

# A fetch that brings something ends a poll at once; this is how often an idle loop turns.
_POLL_MS = 200
# How often the restart offset is committed: so much may leave twice after a crash.
_COMMIT_S = 1.0
# A report that could not be sent is tried again; Kafka needs about so long to come back.
_AGAIN_S = 0.5
_BACKOFF = Backoff(1.0, 1.0)
# A member that cannot say that it lives for so long has lost its partitions anyway.
_START_S = 30.0

# Sends one report; the future ends once Kafka has it. None: it was judged, and does not go on.
# Raises Full or Unavailable.
Send = Callable[[Waiting], asyncio.Future[None] | None]


class Forwarder:
    """The handed-over reports of the partitions that this gateway owns."""

    def __init__(self, settings: Settings, notes: Mixer, send: Send) -> None:
        self._settings = settings
        self._notes = notes  # writes to `held`
        self._send = send
        self._topic = kafka.topic(settings.kafka, "held")
        self._owned: dict[int, HeldReports] = {}
        self._ends: dict[int, int] = {}  # of partitions that are not read to their end yet
        self._committed: dict[int, int] = {}
        self._changed = asyncio.Event()
        self._paused = False

    async def run(self) -> None:
        """Read and send, for ever."""
        trouble = Trouble(log)

        def lost(error: BaseException) -> None:
            trouble.begins(f"gateway: held reports cannot be read ({type(error).__name__})")

        def back() -> None:
            trouble.over("gateway: held reports are read again")

        await keep_connected(self._live, lost, back, _BACKOFF)

    # --- what the group says (kafka.clients.RebalanceListener) ---

    async def revoke(self, partitions: set[int]) -> None:
        """They are another gateway's now, who reads them from the committed offset."""
        for number in partitions:
            self._owned.pop(number, None)
            self._ends.pop(number, None)
            self._committed.pop(number, None)

    def assign(self, partitions: set[int]) -> None:
        """They are ours: all of them is read before anything leaves."""
        for number in partitions:
            self._owned[number] = HeldReports()
            self._ends[number] = -1  # not asked for yet
            self._committed.pop(number, None)

    # --- reading ---

    async def _live(self, connected: Callable[[], None]) -> None:
        name = f"{self._settings.kafka.topic_prefix}.{self._settings.gateway.group}"
        reader = make_group_reader(
            self._settings.kafka, name, "", committed=False, value_bytes=None
        )
        admin = make_admin(self._settings.kafka)
        try:
            async with asyncio.timeout(_START_S):
                await reader.start()
                await admin.start()
            subscribe(reader, self._topic, self)
            connected()
            await self._work(reader, admin)
        finally:
            self._owned.clear()
            self._ends.clear()
            self._committed.clear()
            self._paused = False
            await asyncio.gather(kafka.stop(reader), kafka.stop(admin))

    async def _work(self, reader: GroupReader, admin: Startable) -> None:
        loops = (self._read(reader), self._forward(), self._commit_often(reader, admin))
        work = [asyncio.ensure_future(loop) for loop in loops]
        try:
            done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    async def _read(self, reader: GroupReader) -> None:
        while True:
            for partition, records in (await reader.getmany(timeout_ms=_POLL_MS)).items():
                held = self._owned.get(partition.partition)
                if held is not None:
                    take(held, records)
            await self._see_ends(reader)
            self._bound_memory(reader)
            self._changed.set()

    async def _see_ends(self, reader: GroupReader) -> None:
        """Note which partitions are read to the end that they had when they became ours."""
        for number, end in list(self._ends.items()):
            partition = TopicPartition(self._topic, number)
            if end < 0:
                ends = await reader.end_offsets([partition])
                if number in self._ends:
                    self._ends[number] = ends[partition]
            elif await reader.position(partition) >= end:
                self._ends.pop(number, None)

    def _bound_memory(self, reader: GroupReader) -> None:
        """Read no more while memory is full; what waits in the log is late at worst."""
        full = sum(map(len, self._owned.values())) >= self._settings.gateway.max_held_reports
        if full == self._paused:
            return
        partitions = [TopicPartition(self._topic, number) for number in self._owned]
        if full:
            self._ends.clear()  # else nothing would leave
            reader.pause(*partitions)
        else:
            reader.resume(*partitions)
        self._paused = full

    # --- sending ---

    async def _forward(self) -> None:
        while True:
            wait_s = self._send_due()
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()

    def _send_due(self) -> float | None:
        """Let go what is due; returns the seconds until the next one is."""
        now_ms = time.time() * 1000
        next_ms = []
        for number, held in self._owned.items():
            if number in self._ends:
                continue
            if not self._send_all(held, held.due(int(now_ms))):
                next_ms.append(now_ms + 1000 * _AGAIN_S)
            elif (due_ms := held.next_due_ms()) is not None:
                next_ms.append(due_ms)
        return max(0.0, (min(next_ms) - now_ms) / 1000) if next_ms else None

    def _send_all(self, held: HeldReports, due: Sequence[Waiting]) -> bool:
        sent = True
        for one in due:
            try:
                future = self._send(one)
            except (Full, Unavailable):
                held.stays(one)
                sent = False
                continue
            if future is None:
                held.left(one)
            else:
                future.add_done_callback(partial(self._ended, held, one))
        return sent

    def _ended(self, held: HeldReports, one: Waiting, done: asyncio.Future[None]) -> None:
        if done.cancelled() or done.exception() is not None:
            held.stays(one)
        else:
            held.left(one)
        self._changed.set()

    # --- the way back ---

    async def _commit_often(self, reader: GroupReader, admin: Startable) -> None:
        while True:
            await asyncio.sleep(_COMMIT_S)
            await self._note_progress()
            await self._commit(reader, admin)

    async def _note_progress(self) -> None:
        notes = []
        for number, held in self._owned.items():
            progress = held.progress(int(time.time() * 1000))
            if progress is not None:
                with contextlib.suppress(Full, Unavailable):
                    notes.append(self._notes.put(number, b"", [encode_progress(progress)]))
        await asyncio.gather(*notes, return_exceptions=True)

    async def _commit(self, reader: GroupReader, admin: Startable) -> None:
        offsets = {
            number: held.restart() for number, held in self._owned.items() if held.position > 0
        }
        new = {n: offset for n, offset in offsets.items() if self._committed.get(n) != offset}
        if not new:
            return
        try:
            await reader.commit({TopicPartition(self._topic, n): new[n] for n in new})
        except NOT_COMMITTED:
            return  # partitions change hands: the next owner reads a little more
        self._committed |= new
        with contextlib.suppress(*FAILED):  # then they stay until the topic's retention ends
            await delete_before(admin, self._topic, new)


def take(held: HeldReports, records: Sequence[Record]) -> None:
    """Take records of the partition, in the order of the log."""
    for record in records:
        try:
            said = decode_held(record.value or b"")
        except InvalidInput:
            held.skip(record.offset)
            continue
        held.take(record.offset, record.key or b"", said)
