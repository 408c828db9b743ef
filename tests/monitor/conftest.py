"""A monitor without Kafka, and a client of its API."""

from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest

from tests.monitor.site import MonitorSite


@pytest.fixture
def site() -> Iterator[MonitorSite]:
    running = MonitorSite(max_streams=3).start()
    yield running
    running.close()


@pytest.fixture
async def client(site: MonitorSite) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(site.url) as session:
        yield session
