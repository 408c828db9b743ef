"""More connections than anybody needs, and what they do to the others."""

import asyncio
import contextlib
import os
import resource
import statistics
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from tests.gateway.build import Site, body, report, running

IDLE = 10_000


@pytest.mark.slow
async def test_many_idle_connections() -> None:
    """10 000 that say nothing or half of something: others are served; then the oldest make room.

    They are another process's, so that each side has a limit of open files of its own.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < IDLE + 500:
        missing = f"the hard limit of open files is {hard}: 10 000 connections do not fit"
        if os.environ.get("CI") == "true":
            pytest.fail(missing, pytrace=False)
        pytest.skip(missing)
    limits = {"max_connections": IDLE + 10, "body_timeout_s": 300, "idle_timeout_s": 300}
    try:
        async with running(**limits) as site, idlers(site) as idle:
            door = site.gateway.limits
            took = [await _served(site) for _ in range(20)]
            assert IDLE <= len(door) <= IDLE + 10
            assert door.evicted == 0
            await asyncio.gather(*(site.raw(b"", read_s=0.1) for _ in range(50)))
            assert 40 <= door.evicted <= 60
            took += [await _served(site) for _ in range(20)]
            held = int((await idle.communicate(b""))[0])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    print(f"median {statistics.median(took) * 1000:.1f} ms, {held} still open")
    assert held == IDLE - door.evicted
    assert statistics.median(took) < 0.1


@contextlib.asynccontextmanager
async def idlers(site: Site) -> AsyncIterator[asyncio.subprocess.Process]:
    """IDLE connections of another process, once all are open."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.gateway.idlers", str(site.gateway.settings.port), str(IDLE),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"open\n"
        async with asyncio.timeout(30):
            while len(site.gateway.limits) < IDLE:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _served(site: Site) -> float:
    """Send a report on a connection of its own; returns how long that took."""
    began = asyncio.get_running_loop().time()
    async with site.post(body(report()), Connection="close") as answer:
        assert answer.status == 202
    return asyncio.get_running_loop().time() - began


def test_the_limit_of_open_files() -> None:
    """It is raised as far as it may; what does not fit is not promised."""
    script = (
        "import resource as r; from stream_app.gateway.limits import room;"
        "r.setrlimit(r.RLIMIT_NOFILE, (100, 1000));"
        "print(room(500), *r.getrlimit(r.RLIMIT_NOFILE), room(5000), *r.getrlimit(r.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)

    assert done.stdout.split() == [b"500", b"700", b"1000", b"800", b"1000", b"1000"]


async def test_no_room_at_all() -> None:
    """When every connection is busy, a new one is told to come later."""
    stream = b"GET /v1/experiments/test/events HTTP/1.1\r\nHost: x\r\n\r\n"
    async with running(max_connections=1) as site:
        first = asyncio.ensure_future(site.raw(stream, read_s=1))
        await asyncio.sleep(0.2)
        second = await site.raw(stream)

    assert b"200 OK" in await first
    assert b"503 Service Unavailable\r\nRetry-After" in second
