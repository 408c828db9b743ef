"""The client with a transport that the test holds: sending, retries, restarts, logs."""

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from producers.client import Client
from producers.file_store import FileStore
from producers.store import MemoryStore, Store
from producers.store_tables import connect
from producers.transport import Acknowledged, Transport
from stream_app.core.agents import agent_for
from stream_app.errors import ConfigurationError, Unavailable
from stream_app.kafka.record_batches import Rows
from stream_app.settings import KafkaSettings, Settings
from stream_app.wire.report import REPORT_BYTES, decode_report
from tests.producers.build import NAME, Clock, FakeTransport, assignment, banners, changed

SETTINGS = Settings(kafka=KafkaSettings(connect_timeout_s=0.2))


def at_once(store: Store, transport: Transport) -> Client:
    """A product that reports at once."""
    return Client(SETTINGS, NAME, store=store, immediate=True, transport=transport)


def waiting(
    store: Store, transport: Transport, window_s: float, clock: Callable[[], int] | None = None
) -> Client:
    """A product that was written for a window."""
    made = partial(Client, SETTINGS, NAME, store=store, window_s=window_s, transport=transport)
    return made() if clock is None else made(clock_ms=clock)


async def test_ten_lines_are_enough() -> None:
    """Choose, report, done: the report is with Kafka when the client has closed."""
    transport = FakeTransport(assignment())
    async with at_once(MemoryStore(), transport) as client:
        shown = client.choose("ada")
        client.report(shown, 1)

    ((batch_id, report_id, _),) = [decode_report(value) for value in transport.sent]
    assert (batch_id, report_id) == (shown.batch_id, shown.report_id)
    assert client.counts.sent == 1


async def test_every_report_has_the_same_length() -> None:
    """Clicks and non-clicks, small counts and large."""
    transport = FakeTransport(assignment(banners("test", preset="vb-sdp-ae")))
    async with at_once(MemoryStore(), transport) as client:
        for user in range(200):
            client.report(client.choose(f"{user}"), user % 2)

    assert len(transport.sent) == 200
    assert {len(value) for value in transport.sent} == {REPORT_BYTES}
    assert len(set(transport.ones)) > 10


async def test_a_retry_sends_the_same_bytes(caplog: pytest.LogCaptureFixture) -> None:
    """While Kafka is unreachable: choosing goes on, one line is logged, nothing is drawn again."""
    caplog.set_level(logging.INFO)
    transport = FakeTransport(assignment())
    async with at_once(MemoryStore(), transport) as client:
        transport.unreachable = True
        client.report(client.choose("ada"), 1)
        async with asyncio.timeout(5):
            while len(transport.attempts) < 3:  # noqa: ASYNC110 - what is tested is time passing
                await asyncio.sleep(0.01)
        assert client.choose("bob").batch_id
        transport.unreachable = False
        await client.drain()

    assert len(transport.sent) == 1
    assert {tuple(attempt) for attempt in transport.attempts} == {tuple(transport.sent)}
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "reports wait" in caplog.text


async def test_a_restart_sends_what_was_left(tmp_path: Path) -> None:
    """The same bytes as the attempts before the restart."""
    transport = FakeTransport(assignment())
    transport.unreachable = True
    store = FileStore(tmp_path / "store")
    async with at_once(store, transport) as client:
        client.report(client.choose("ada"), 1)
    store.close()
    assert client.waiting == 1

    second = FakeTransport(assignment())
    store = FileStore(tmp_path / "store")
    async with at_once(store, second) as client:
        await client.drain()
    store.close()
    assert [second.sent] == transport.attempts[:1]


async def test_a_report_is_durable_before_it_leaves(tmp_path: Path) -> None:
    """With what it says: otherwise a crash could make it leave with another count."""
    path = tmp_path / "store"
    store = FileStore(path)

    class Checking(FakeTransport):
        async def send(self, parts: Iterable[Rows], acknowledged: Acknowledged) -> None:
            with contextlib.closing(connect(path)) as database:
                rows = database.execute("SELECT report_id, final, count FROM pending").fetchall()
            await super().send(parts, acknowledged)
            durable = {
                report_id: store._sealing.unmasked(report_id, count, final=True)
                for report_id, final, count in rows
                if final
            }
            for value in self.attempts[-1]:
                _, report_id, ones = decode_report(value)
                assert durable[report_id] == [ones]

    transport = Checking(assignment())
    async with at_once(store, transport) as client:
        for user in range(100):
            client.report(client.choose(f"{user}"), 1)
    store.close()

    assert len(transport.sent) == 100


async def test_the_order_of_reports_tells_nothing_of_the_order_of_visits() -> None:
    """The number of pairs in order: 5 standard deviations of a random order (p < 1e-6)."""
    transport = FakeTransport(assignment(banners(attribution_s="0.05", order="interleaved")))
    async with waiting(MemoryStore(), transport, 0.05) as client:
        visits = {client.choose(f"{user}").report_id: user for user in range(500)}
        await client.drain()
    order = [visits[decode_report(value)[1]] for value in transport.sent]

    pairs = len(order) * (len(order) - 1) / 2
    in_order = sum(a < b for i, a in enumerate(order) for b in order[i + 1 :])
    assert sorted(order) == list(range(500))
    # The variance of the number of inversions of n: n (n - 1) (2 n + 5) / 72.
    assert abs(in_order - pairs / 2) < 5 * math.sqrt(pairs * (2 * len(order) + 5) / 36)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({}, "window_s = None, immediate = False: give one of the two"),
        ({"window_s": 60, "immediate": True}, "window_s = 60, immediate = True"),
        ({"window_s": 0}, "window_s = 0: must be at least 0.001"),
        ({"window_s": float("nan")}, "window_s = nan"),
    ],
)
def test_the_product_says_what_it_was_written_for(arguments: dict[str, Any], named: str) -> None:
    """Neither is assumed."""
    with pytest.raises(ConfigurationError, match=named):
        Client(SETTINGS, NAME, store=MemoryStore(), transport=FakeTransport(), **arguments)


async def test_an_agent_cannot_make_clickers_report_by_themselves(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The product calls report() on a click only, as it may with a window; the agent sets none."""
    transport = FakeTransport(
        assignment(banners(attribution_s="60")),
        assignment(banners(attribution_s="0", epsilon="0.4")),
    )
    async with waiting(MemoryStore(), transport, 60) as client:
        assert await client.changed(2) or client.refused_terms
        for user in range(200):
            shown = client.choose(f"{user}")
            if user % 5 == 0:
                assert not client.report(shown, 1)
        await client.flush()

    assert transport.sent == []
    assert client.refused_terms == 1
    assert caplog.text.count("terms refused") == 1


async def test_what_was_acknowledged_is_not_sent_again() -> None:
    """Of many reports to several batches the first thousands arrive, then Kafka is unreachable."""
    transport = FakeTransport(assignment(banners(order="interleaved")))
    transport.fails_after = 1
    async with at_once(MemoryStore(), transport) as client:
        shown = [client.choose(f"{user}") for user in range(9_000)]
        for each in shown:
            client.report(each, 1)
        with pytest.raises(Unavailable):
            await client.flush()
        first = len(transport.sent)
        assert 0 < first == client.counts.sent < 9_000
        assert client.waiting == client.leaving == 9_000 - first
        await client.flush()

    assert len({each.batch_id for each in shown}) > 1
    sent = [decode_report(value)[:2] for value in transport.sent]
    assert sorted((each.batch_id, each.report_id) for each in shown) == sorted(sent)
    assert sorted(transport.attempts[1]) == sorted(transport.attempts[0][first:])
    assert client.waiting == 0


async def test_the_deadline_sends_without_a_reward() -> None:
    """In real time: a window of 50 ms."""
    transport = FakeTransport(assignment(banners(attribution_s="0.05")))
    async with waiting(MemoryStore(), transport, 0.05) as client:
        client.choose("ada")
        await asyncio.sleep(0.02)
        assert transport.sent == []
        async with asyncio.timeout(2):
            await client.drain()

    assert len(transport.sent) == 1


async def test_flush_sends_only_what_is_due() -> None:
    """With a clock that the test moves."""
    clock = Clock()
    transport = FakeTransport(assignment(banners(attribution_s="60")))
    async with waiting(MemoryStore(), transport, 60, clock) as client:
        client.report(client.choose("ada"), 1)
        await client.flush()
        assert transport.sent == []
        clock.now_ms += 60_000
        await client.flush()
        assert len(transport.sent) == 1


async def test_it_follows_the_assignments() -> None:
    """New users go to the new batch; a malformed assignment changes nothing."""
    experiment = banners()
    agent = agent_for(experiment)
    transport = FakeTransport(assignment(experiment))
    async with at_once(MemoryStore(), transport) as client:
        transport.values.put_nowait(b"{")
        transport.values.put_nowait(assignment(experiment, agent.fold(agent.begin(), 1, 3.0)))
        assert await client.changed(2)
        shown = client.choose("ada")

    assert (shown.arm, shown.batch_id[:2]) == ("arm-1", "2.")


async def test_nobody_reports_to_refused_terms(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged once, users see the last known arm, nothing is sent."""
    transport = FakeTransport(assignment())
    experiment = banners()
    agent = agent_for(experiment)
    later = assignment(experiment, agent.fold(agent.begin(), 1, 3.0))
    bad = changed(later, lambda terms: terms.update(batch_size=8), rehash=True)
    async with at_once(MemoryStore(), transport) as client:
        transport.values.put_nowait(bad)
        assert await client.changed(2)
        transport.values.put_nowait(bad)
        assert await client.changed(2)
        shown = client.choose("ada")
        assert not client.report(shown, 1)

    assert (shown.arm, shown.batch_id) == ("arm-0", "")
    assert transport.sent == []
    assert client.refused_terms == 1
    assert caplog.text.count("terms refused") == 1


async def test_no_assignment_is_one_line() -> None:
    """Naming the experiment and what to look at."""
    with pytest.raises(Unavailable, match=r"'test': no assignment.*experiment list"):
        async with at_once(MemoryStore(), FakeTransport()):
            pass


async def test_logs_show_nothing_of_a_reward(caplog: pytest.LogCaptureFixture) -> None:
    """At level debug, through an outage."""
    caplog.set_level(logging.DEBUG)
    transport = FakeTransport(assignment())
    async with at_once(MemoryStore(), transport) as client:
        transport.unreachable = True
        client.report(client.choose("ada"), 0.765625)
        await asyncio.sleep(0.05)
        transport.unreachable = False
        await client.drain()

    assert transport.sent
    for text in ("0.765625", "ones", decode_report(transport.sent[0])[1].hex()):
        assert text not in caplog.text
