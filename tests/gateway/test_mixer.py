"""Holds: when they leave, in which order, and what senders are told when Kafka is away."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from scipy import stats

from stream_app.errors import Unavailable
from stream_app.gateway.limits import Bucket, ConnectionLimits
from stream_app.gateway.mixer import Full, Mixer, shuffled
from stream_app.settings import Settings
from tests.gateway.build import settings


class Batch:
    def __init__(self, most: int) -> None:
        self.values: list[bytes] = []
        self._most = most

    def append(self, *, timestamp: int, key: bytes, value: bytes) -> object:
        if len(self.values) == self._most:
            return None
        self.values.append(value)
        return self

    def close(self) -> None:
        pass


class Producer:
    """aiokafka's, as far as the outbox uses it."""

    def __init__(self, most: int = 1000) -> None:
        self.batches: list[tuple[int, list[bytes]]] = []
        self.acknowledged = asyncio.Event()
        self._most = most

    def create_batch(self) -> Batch:
        return Batch(self._most)

    async def send_batch(
        self, batch: Batch, topic: str, partition: int
    ) -> asyncio.Future[None] | asyncio.Task[Any]:
        self.batches.append((partition, batch.values))
        return asyncio.ensure_future(self.acknowledged.wait())


class Opened(Mixer):
    """An outbox that sends to the test's producer."""

    def __init__(self, given: Settings, producer: Producer) -> None:
        super().__init__(given)
        self.connected = True
        self.producer = producer

    async def run(self) -> None:
        with contextlib.suppress(TimeoutError):
            await self._send_until_it_fails(self.producer)


@contextlib.asynccontextmanager
async def opened(producer: Producer, **gateway: Any) -> AsyncIterator[Opened]:
    outbox = Opened(settings(**gateway), producer)
    task = asyncio.ensure_future(outbox.run())
    yield outbox
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_hold_leaves_with_its_last_request() -> None:
    """Nothing is sent before enough senders are in it; all share one acknowledgement."""
    producer = Producer()
    async with opened(producer, hold_requests=3, hold_ms=60_000) as outbox:
        first = outbox.put(1, b"x", [b"a"])
        second = outbox.put(2, b"y", [b"b", b"c"])
        await asyncio.sleep(0.02)
        assert producer.batches == []

        third = outbox.put(1, b"x", [b"d"])
        await asyncio.sleep(0.02)
        assert {1: {b"a", b"d"}, 2: {b"b", b"c"}} == {n: set(v) for n, v in producer.batches}
        assert not first.done()

        producer.acknowledged.set()
        await asyncio.gather(first, second, third)
        assert outbox.waiting == 0


async def test_a_hold_leaves_when_its_time_has_come() -> None:
    """A lone report does not wait for others for ever."""
    producer = Producer()
    producer.acknowledged.set()
    async with opened(producer, hold_requests=1000, hold_ms=30) as outbox:
        await asyncio.wait_for(outbox.put(1, b"x", [b"a"]), 1)

    assert producer.batches == [(1, [b"a"])]


async def test_large_holds_are_cut_into_batches() -> None:
    """None is lost where one batch ends and the next begins."""
    producer = Producer(most=7)
    producer.acknowledged.set()
    values = [b"%d" % i for i in range(100)]
    async with opened(producer, hold_requests=1) as outbox:
        await outbox.put(1, b"x", values)

    assert Counter(values) == Counter(v for _, batch in producer.batches for v in batch)


async def test_a_hold_grows_while_others_are_on_their_way() -> None:
    """However many requests come, two holds are in flight; the third leaves with all the rest."""
    producer = Producer()
    async with opened(producer, hold_requests=2, hold_ms=10) as outbox:
        futures = [outbox.put(1, b"x", [b"%d" % i]) for i in range(50)]
        await asyncio.sleep(0.05)
        assert [2, 2] == [len(values) for _, values in producer.batches]

        producer.acknowledged.set()
        await asyncio.gather(*futures)

    assert [2, 2, 46] == [len(values) for _, values in producer.batches]


async def test_what_waits_is_bounded() -> None:
    """When Kafka is slow, senders are turned away instead of queued."""
    async with opened(Producer(), max_waiting_reports=5, hold_requests=1) as outbox:
        outbox.put(1, b"x", [b"a"] * 5)
        with pytest.raises(Full):
            outbox.put(1, b"x", [b"a"])


async def test_no_acknowledgement_in_time() -> None:
    """Senders are told, those who wait in the next hold too, and later ones at once."""
    async with opened(Producer(), hold_requests=2, hold_ms=60_000, acknowledge_s=0.05) as outbox:
        lost = [outbox.put(1, b"x", [b"a"]) for _ in range(3)]
        for future in lost:
            with pytest.raises(Unavailable):
                await asyncio.wait_for(future, 1)
        with pytest.raises(Unavailable):
            outbox.put(1, b"x", [b"a"])
        assert outbox.waiting == 0


def test_every_order_is_equally_likely() -> None:
    """Chi-square over the 24 orders of four reports; false-failure probability 1e-6."""
    counts = Counter(tuple(shuffled("abcd")) for _ in range(24_000))

    assert len(counts) == 24
    assert stats.chisquare(list(counts.values())).pvalue > 1e-6


def test_bucket_fills_again() -> None:
    """At its rate, up to its size, and it says how long to wait."""
    bucket = Bucket(2000, now=0)
    assert bucket.lacks(2000, 0) == 0
    bucket.take(2000)

    assert bucket.lacks(1000, 0) == pytest.approx(0.5)
    assert bucket.lacks(1000, 0.5) == 0
    assert bucket.lacks(3000, 100) == pytest.approx(0.5)


class Line:
    def __init__(self) -> None:
        self.closed = False

    def force_close(self) -> None:
        self.closed = True


def test_the_longest_idle_connection_makes_room() -> None:
    """A new connection comes in while any is idle; busy ones are never closed."""
    door = ConnectionLimits(settings(max_connections=3).gateway, lambda: 0.0)
    lines = [Line() for _ in range(6)]
    assert [door.enter(line) for line in lines[:3]] == [True] * 3
    door.busy(lines[0])
    door.idle(lines[1])

    assert door.enter(lines[3])
    assert [line.closed for line in lines[:3]] == [False, True, False]
    door.busy(lines[2])
    door.busy(lines[3])
    assert not door.enter(lines[4])
    door.leave(lines[2])
    assert door.enter(lines[5])
