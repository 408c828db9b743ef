"""Streams of events: what is pushed, when, to how many; and that no reader holds up another."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest

from stream_app.monitor import events
from tests.monitor.site import MonitorSite, ScriptedRun, demo


async def until(holds: Callable[[], bool], within_s: float = 5) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "did not happen in time"
        await asyncio.sleep(0.02)


async def received(answer: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.content:
        if line.startswith(b"data: "):
            yield json.loads(line[6:])


async def test_a_change_is_pushed(site: MonitorSite, client: aiohttp.ClientSession) -> None:
    """The newest state at once, then each change within a second, at most four in a second."""
    run = ScriptedRun(demo())
    async with client.get("/api/experiments/demo/events") as answer:
        following = received(answer)
        first = await anext(following)
        began = time.monotonic()
        site.do(site.view.assignment, run.assignment())
        second = await anext(following)
        took = time.monotonic() - began
        for value, assignment in run.steps():
            site.do(site.view.sum, value, 1)
            site.do(site.view.assignment, assignment)
        seen = [second]
        while seen[-1]["experiment"]["state"] == "running":
            seen.append(await anext(following))

    assert answer.headers["Content-Type"] == "text/event-stream"
    assert first["experiment"] is None
    assert took < 1
    assert seen[-1]["experiment"]["serve"] == "spring"
    assert len(seen) - 1 <= (time.monotonic() - began) / events.EVERY_S + 1


async def test_kafkas_absence_is_pushed(site: MonitorSite, client: aiohttp.ClientSession) -> None:
    """A page must know that what it shows is no longer current."""
    async with client.get("/api/events") as answer:
        following = received(answer)
        before = await anext(following)
        site.health.connected = False
        after = await anext(following)

    assert (True, False) == (before["kafka"], after["kafka"])
    assert (0, []) == (before["count"], before["experiments"])


async def test_streams_are_limited_and_cleaned_up(
    site: MonitorSite, client: aiohttp.ClientSession
) -> None:
    """Beyond the limit: 503 with the setting's name; a reader that leaves makes room."""
    async with contextlib.AsyncExitStack() as opened:
        answers = [
            await opened.enter_async_context(client.get("/api/experiments/a/events"))
            for _ in range(3)
        ]
        async with client.get("/api/events") as refused:
            said = await refused.json()
        answers[0].close()
        await until(lambda: site.streams.open == 2)
        async with client.get("/api/events") as taken:
            assert taken.status == 200

    assert (503, "5") == (refused.status, refused.headers["Retry-After"])
    assert "monitor.max_streams" in said["error"]
    await until(lambda: site.streams.open == 0)
    assert site.streams.channels == {}


async def test_a_stuck_reader_holds_up_nobody(
    site: MonitorSite, client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another stream goes on, and the stuck one is dropped."""
    monkeypatch.setattr(events, "STUCK_S", 0.5)
    channel = events.Channel(time.monotonic_ns, lambda: "x" * 3_000_000, 0.01)
    site.streams.channels["experiment stuck"] = channel
    reader, writer = await asyncio.open_connection("127.0.0.1", site.settings.port, limit=1024)
    writer.write(b"GET /api/experiments/stuck/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await reader.readline()
    async with client.get("/api/experiments/demo/events") as answer:
        following = received(answer)
        await anext(following)
        site.do(site.view.assignment, ScriptedRun(demo()).assignment())
        async with asyncio.timeout(2):
            assert (await anext(following))["experiment"] is not None
        await until(lambda: site.streams.open == 1)
    writer.close()


async def test_a_quiet_stream_says_that_it_lives(
    client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A comment comes as heartbeat."""
    monkeypatch.setattr(events, "HEARTBEAT_S", 0.3)
    async with client.get("/api/experiments/demo/events") as answer, asyncio.timeout(5):
        lines = [await answer.content.readline() for _ in range(3)]

    assert lines[2] == b": here\n"


async def test_open_streams_do_not_delay_a_stop(
    site: MonitorSite, client: aiohttp.ClientSession
) -> None:
    """The server ends its streams by itself."""
    async with client.get("/api/events") as answer:
        began = time.monotonic()
        await asyncio.to_thread(site.stop)
        took = time.monotonic() - began
        await answer.content.read()

    assert took < 1
