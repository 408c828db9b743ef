"""The monitor's web server: what it answers, what it refuses, and how its streams behave."""

import asyncio
import contextlib
import dataclasses
import http.client
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import aiohttp
import pytest

from stream_app.core.agents import Status
from stream_app.core.wording import guarantee, promise
from stream_app.local.broker import LocalBroker
from stream_app.monitor import events, server, transcript
from stream_app.monitor.view import View
from tests.monitor.site import FakeSums, Run, Site, demo, feed


@pytest.fixture
def site() -> Iterator[Site]:
    running = Site(max_streams=3).start()
    yield running
    running.close()


@pytest.fixture
async def client(site: Site) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(site.url) as session:
        yield session


async def until(holds: Callable[[], bool], within_s: float = 5) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "did not happen in time"
        await asyncio.sleep(0.02)


async def received(answer: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.content:
        if line.startswith(b"data: "):
            yield json.loads(line[6:])


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
    running = Site(host="0.0.0.0").start()  # noqa: S104
    try:
        async with (
            aiohttp.ClientSession(running.url) as session,
            session.get("/healthz", headers={"Host": "monitor.example"}) as answer,
        ):
            assert answer.status == 200
    finally:
        running.close()


@pytest.mark.parametrize(
    "path",
    ["/web/../pages.py", "/web/%2e%2e%2fpages.py", "/web/", "/web/nothing.js", "/web//etc/passwd"],
)
def test_only_the_pages_files_are_served(site: Site, path: str) -> None:
    """No path leads out of the folder."""
    connection = http.client.HTTPConnection("127.0.0.1", site.settings.port, timeout=5)
    connection.request("GET", path)

    assert connection.getresponse().status == 404


async def test_requests_are_small(client: aiohttp.ClientSession) -> None:
    """A long address or header is refused, and so is a body."""
    async with client.get("/healthz", headers={"X-Long": "x" * 9_000}) as answer:
        assert answer.status == 400
    async with client.get(f"/api/experiments/{'x' * 9_000}") as answer:
        assert answer.status in (400, 414)
    async with client.get("/healthz", data=b"x" * 1_000_000) as answer:
        assert answer.status == 413


async def test_connections_are_limited(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit a connection is told so; one that says nothing is closed in time."""
    monkeypatch.setattr(server, "_FIRST_REQUEST_S", 0.5)
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


async def test_the_api_has_the_words(site: Site, client: aiohttp.ClientSession) -> None:
    """State, guarantee, certificate and assumptions are sentences in the API too."""
    site.do(feed, site.view, Run(demo()))
    async with client.get("/api/experiments/demo") as answer:
        shown = await answer.json()

    words = shown["words"]
    assert words["state"] == "decided: serve spring"
    assert words["guarantee"] == guarantee(demo().agent, 100_000)
    assert words["privacy"] == promise(demo().privacy)
    assert "90%" in words["assumptions"][1]
    assert "One report alone hides little" in words["assumptions"][4]
    assert {one["arm"] for one in shown["eliminated"]} == {"summer", "autumn", "winter", "plain"}
    assert shown["regret"][-1][:2] == [shown["users"], pytest.approx(shown["estimated_regret"])]
    assert shown["arms"][0]["track"][-1][1:] == [
        pytest.approx(shown["arms"][0][key], abs=1e-5) for key in ("mean", "lower", "upper")
    ]


@pytest.mark.parametrize("retained", [False, True])
def test_what_becomes_of_reports_is_said(retained: bool) -> None:
    """In words, in the certificate, and as a value."""
    view = View(reports_retained=retained)
    feed(view, Run(demo()))
    shown = view.snapshot("demo")

    assert shown is not None
    assert retained is shown["reports_retained"] is shown["certificate"]["reports_retained"]
    assert ("kept for an auditor" if retained else "are deleted") in shown["words"]["reports"]


async def test_a_change_is_pushed(site: Site, client: aiohttp.ClientSession) -> None:
    """The newest state at once, then each change within a second, at most four in a second."""
    run = Run(demo())
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


async def test_kafkas_absence_is_pushed(site: Site, client: aiohttp.ClientSession) -> None:
    """A page must know that what it shows is no longer current."""
    async with client.get("/api/events") as answer:
        following = received(answer)
        before = await anext(following)
        site.health.connected = False
        after = await anext(following)

    assert (True, False) == (before["kafka"], after["kafka"])
    assert (0, []) == (before["count"], before["experiments"])


async def test_streams_are_limited_and_cleaned_up(
    site: Site, client: aiohttp.ClientSession
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
    assert site.streams._channels == {}


async def test_a_stuck_reader_holds_up_nobody(
    site: Site, client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another stream goes on, and the stuck one is dropped."""
    monkeypatch.setattr(events, "_STUCK_S", 0.5)
    channel = events.Channel(time.monotonic_ns, lambda: "x" * 3_000_000, 0.01)
    monkeypatch.setattr(site.streams, "_channels", {"experiment stuck": channel})
    reader, writer = await asyncio.open_connection("127.0.0.1", site.settings.port, limit=1024)
    writer.write(b"GET /api/experiments/stuck/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await reader.readline()
    async with client.get("/api/experiments/demo/events") as answer:
        following = received(answer)
        await anext(following)
        site.do(site.view.assignment, Run(demo()).assignment())
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


async def test_open_streams_do_not_delay_a_stop(site: Site, client: aiohttp.ClientSession) -> None:
    """The server ends its streams by itself."""
    async with client.get("/api/events") as answer:
        began = time.monotonic()
        await asyncio.to_thread(site.stop)
        took = time.monotonic() - began
        await answer.content.read()

    assert took < 1


async def test_transcript(site: Site, client: aiohttp.ClientSession) -> None:
    """Lines as they come from the topic; `start` is an offset."""
    site.do(site.view.assignment, Run(demo()).assignment())
    async with client.get("/api/experiments/demo/sums") as answer:
        lines = await answer.read()
    async with client.get("/api/experiments/demo/sums?start=17"):
        pass
    async with client.get("/api/experiments/demo/sums?start=-1") as wrong:
        pass
    async with client.get("/api/experiments/nobody/sums") as missing:
        pass

    assert b'{"offset":0}\n' == lines
    assert answer.headers["Content-Type"] == "application/x-ndjson; charset=utf-8"
    assert [("demo", None), ("demo", 17)] == site.sums.asked
    assert (400, 404) == (wrong.status, missing.status)
    assert site.sums.closed == 2


async def test_transcript_without_kafka(site: Site, client: aiohttp.ClientSession) -> None:
    """503 and one line; if it happens in between, the last line says so."""
    site.stop()
    site.do(site.view.assignment, Run(demo()).assignment())
    found = []
    for chunks in ((None,), (b"{}\n", None)):
        site.sums = FakeSums(*chunks)
        site.start()
        async with client.get("/api/experiments/demo/sums") as answer:
            found.append((answer.status, (await answer.text()).splitlines()[-1]))
        site.stop()

    error = '{"error":"kafka.bootstrap = \'here\': no Kafka answers there"}'
    assert [(503, error), (200, error)] == found


@pytest.mark.kafka
async def test_transcript_from_a_topic(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only this experiment's sums; what does not fit is named by its offset and can be read on."""
    from stream_app import kafka
    from stream_app.settings import KafkaSettings

    settings = KafkaSettings(bootstrap=broker.bootstrap, topic_prefix="pages-transcript")
    await kafka.create_topics(settings, 1, 1)
    async with kafka.producer(settings) as producer:
        for number in range(6):
            key = b"mine" if number % 2 == 0 else b"other"
            await producer.send_and_wait(
                kafka.topic(settings, "sums"), b'{"n":%d}' % number, key=key
            )
    monkeypatch.setattr(transcript, "MAX_LINES", 2)
    reader = transcript.Transcript(settings)

    async def read(start: int | None) -> list[dict[str, Any]]:
        chunks = [chunk async for chunk in reader.lines("mine", start)]
        return [json.loads(line) for line in b"".join(chunks).splitlines()]

    first = await read(None)
    rest = await read(first[-1]["next"])

    assert [{"n": 0}, {"n": 2}] == [line["sum"] for line in first[:-1]]
    assert [{"n": 4}] == [line["sum"] for line in rest]


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (Status.RUNNING, "running: phase 1, 5 of 5 arms viable"),
        (Status.STOPPED, "stopped by the operator: serve the leader, spring"),
        (Status.EXHAUSTED, "horizon reached, undecided: serve the leader, spring"),
    ],
)
def test_states_in_words(site: Site, status: Status, sentence: str) -> None:
    """Each state is one sentence."""
    run = Run(demo())
    if status is not Status.RUNNING:
        run.state = dataclasses.replace(run.state, status=status, open=(), serve=0)
    site.do(site.view.assignment, run.assignment())

    shown = site.do(site.view.snapshot, "demo")

    assert sentence == shown["words"]["state"]
