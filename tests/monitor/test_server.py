"""The monitor's web server: what it lets in, what it refuses, and with which headers it answers."""

import asyncio

import aiohttp
import pytest

from stream_app.monitor import server
from tests.monitor.site import MonitorSite


@pytest.mark.parametrize(
    ("path", "content_type"),
    [
        ("/", "text/html"),
        ("/experiments/any", "text/html"),
        ("/web/page.js", "text/javascript"),
        ("/web/page.css", "text/css"),
        ("/web/icon.svg", "image/svg+xml"),
        ("/api/experiments", "application/json"),
        ("/healthz", "application/json"),
        ("/api/experiments/nobody", "application/json"),
        ("/nowhere", "application/json"),
    ],
)
async def test_every_answer_is_guarded(
    client: aiohttp.ClientSession, path: str, content_type: str
) -> None:
    """Policy, type and referrer headers are on all of them; nothing allows another origin."""
    async with client.get(path, headers={"Origin": "http://elsewhere.example"}) as answer:
        headers = answer.headers

    assert headers["Content-Type"].split(";")[0] == content_type
    assert "default-src 'none'; script-src 'self'" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert not [name for name in headers if name.startswith("Access-Control")]
    assert "aiohttp" not in headers["Server"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize("path", ["/", "/api/experiments/demo", "/healthz", "/api/events"])
async def test_nothing_can_be_written(
    client: aiohttp.ClientSession, method: str, path: str
) -> None:
    """Every method but GET and HEAD is refused, with the reason as JSON."""
    async with client.request(method, path) as answer:
        said = await answer.json()

    assert (405, "GET,HEAD") == (answer.status, answer.headers["Allow"])
    assert said == {"error": "Method Not Allowed"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "elsewhere.example"}, 403),
        ({"Host": "localhost:80"}, 200),
        ({"Host": "[::1]:80"}, 200),
        ({"Host": "127.0.0.1.elsewhere.example"}, 403),
        ({"Host": "["}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 200),
        ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}, 200),
    ],
)
async def test_other_origins_are_refused(
    client: aiohttp.ClientSession, headers: dict[str, str], status: int
) -> None:
    """A name that was made to lead here, or a request by another site's page, gets nothing."""
    async with client.get("/api/experiments", headers=headers) as answer:
        assert answer.status == status


async def test_a_server_for_others_has_any_name() -> None:
    """Bound to another address on purpose, the server answers to the names it is given."""
    running = MonitorSite(host="0.0.0.0").start()  # noqa: S104
    try:
        async with (
            aiohttp.ClientSession(running.url) as session,
            session.get("/healthz", headers={"Host": "monitor.example"}) as answer,
        ):
            assert answer.status == 200
    finally:
        running.close()


async def test_requests_are_small(client: aiohttp.ClientSession) -> None:
    """A long address or header is refused, and so is a body."""
    async with client.get("/healthz", headers={"X-Long": "x" * 9_000}) as answer:
        assert answer.status == 400
    async with client.get(f"/api/experiments/{'x' * 9_000}") as answer:
        assert answer.status in (400, 414)
    async with client.get("/healthz", data=b"x" * 1_000_000) as answer:
        assert answer.status == 413


async def test_connections_are_limited(site: MonitorSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit a connection is told so; one that says nothing is closed in time."""
    monkeypatch.setattr(server, "FIRST_REQUEST_S", 0.5)
    silent = [
        await asyncio.open_connection("127.0.0.1", site.settings.port)
        for _ in range(site.settings.max_streams + 100)
    ]
    await asyncio.sleep(0.1)
    reader, writer = await asyncio.open_connection("127.0.0.1", site.settings.port)
    said = await reader.read()
    writer.close()

    assert said.startswith(b"HTTP/1.1 503 ")
    assert said.endswith(b'{"error":"too many connections"}')
    async with asyncio.timeout(5):
        assert {await reader.read() for reader, _ in silent} == {b""}
    for _, writer in silent:
        writer.close()
    async with aiohttp.ClientSession(site.url) as session, session.get("/healthz") as answer:
        assert answer.status == 200
