"""The endpoint: what it answers, and what it says when it cannot listen."""

import socket

import pytest
from aiohttp import ClientSession

from stream_app.errors import Unavailable
from stream_app.local.broker import free_port
from stream_app.metrics import endpoint
from stream_app.metrics.instruments import Metrics
from stream_app.settings import MetricsSettings


async def test_pages() -> None:
    """Metrics as text, alive while it runs, ready only if nothing is waited for."""
    waiting = ["shuffle: Kafka is away"]
    settings = MetricsSettings(port=free_port())
    base = f"http://127.0.0.1:{settings.port}"
    async with (
        endpoint.serving(settings, Metrics(), lambda: waiting),
        ClientSession() as session,
    ):
        async with session.get(f"{base}/healthz") as answer:
            assert answer.status == 200
        async with session.get(f"{base}/readyz") as answer:
            assert answer.status == 503
            assert (await answer.json())["waiting_for"] == waiting
        async with session.get(f"{base}/metrics") as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert "\nshufflebandit_ready 0.0\n" in await answer.text()
        waiting.clear()
        async with session.get(f"{base}/readyz") as answer:
            assert answer.status == 200
        async with session.get(f"{base}/metrics") as answer:
            assert "\nshufflebandit_ready 1.0\n" in await answer.text()


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz"])
async def test_another_name_is_refused(path: str) -> None:
    """A page elsewhere that gives itself a name which leads here reads nothing (DNS rebinding)."""
    settings = MetricsSettings(port=free_port())
    url = f"http://127.0.0.1:{settings.port}{path}"
    async with endpoint.serving(settings, Metrics(), list), ClientSession() as session:
        async with session.get(url, headers={"Host": "evil.example"}) as answer:
            assert 403 == answer.status
            assert "metrics.host" in (await answer.json())["error"]
        async with session.get(url, headers={"Sec-Fetch-Site": "cross-site"}) as answer:
            assert 403 == answer.status
        async with session.get(url, headers={"Host": f"localhost:{settings.port}"}) as answer:
            assert 200 == answer.status


async def test_port_in_use() -> None:
    """One line that names the setting and the remedy."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        settings = MetricsSettings(port=other.getsockname()[1])
        with pytest.raises(Unavailable, match=r"metrics\.port = \d+.*--metrics-port 0"):
            async with endpoint.serving(settings, Metrics(), list):
                pass


async def test_port_0_is_off() -> None:
    """No endpoint, nothing that could fail."""
    async with endpoint.serving(MetricsSettings(port=0, host="nowhere.invalid"), Metrics(), list):
        pass
