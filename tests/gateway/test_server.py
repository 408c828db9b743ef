"""The gateway's HTTP as senders meet it, good ones and bad ones. Kafka is played by the test."""

import asyncio
import logging
import re
from pathlib import Path
from typing import Any

import orjson
import pytest

from stream_app.errors import Unavailable
from stream_app.gateway import reports as intake
from stream_app.gateway import server
from stream_app.gateway.mixer import Full
from tests.gateway.build import ORIGIN, assignment, batch_of, body, report, running
from tests.producers.build import banners


async def test_the_assignment_and_its_etag() -> None:
    """Served with what a client needs and no more; 304 while it has not changed."""
    async with running() as site:
        async with site.get("/v1/experiments/test") as answer:
            shown = await answer.json()
            etag = answer.headers["ETag"]
        async with site.get("/v1/experiments/test", **{"If-None-Match": etag}) as again:
            assert again.status == 304
        async with site.get("/v1/experiments/test", **{"If-None-Match": '"other"'}) as other:
            assert other.status == 200

    assert answer.status == 200
    assert set(shown) == {"version", "experiment", "state", "serve", "open"}
    assert shown["open"][0]["batch"] == batch_of()


async def test_reports_are_answered_with_their_outcomes() -> None:
    """202 after Kafka has them; 422 if none could be taken; the partition is the experiment's."""
    async with running() as site:
        async with site.post(body(report(ones=3), report(ones=-1))) as answer:
            assert (answer.status, await answer.json()) == (
                202,
                {"outcomes": ["accepted", "out_of_range"]},
            )
        async with site.post(body(report(ones=-1))) as answer:
            assert answer.status == 422
        async with site.post(body(*[report() for _ in range(1000)])) as answer:
            assert (await answer.json())["outcomes"] == ["accepted"] * 1000
        [(partition, key, value), *rest] = site.mixer.sent

    assert (partition, key) == (3, b"test")
    assert orjson.loads(value)["ones"] == 3
    assert len(rest) == 1000


@pytest.mark.parametrize("fails", [Full(), Unavailable("Kafka is away")])
async def test_kafka_slow_or_away(fails: Exception) -> None:
    """503 and when to come again; nothing is queued."""
    async with running() as site:
        site.mixer.fails = fails
        async with site.post(body(report())) as answer:
            assert answer.status == 503
            assert 1 <= int(answer.headers["Retry-After"]) <= 5
        site.mixer.fails = None
        async with site.post(body(report())) as answer:
            assert answer.status == 202


async def test_before_the_assignments_are_read() -> None:
    """503, not 404: whether an experiment exists is not known yet."""
    async with running(posted=False) as site:
        async with site.get("/v1/experiments/test") as answer:
            assert (answer.status, "Retry-After" in answer.headers) == (503, True)
        async with site.post(body(report())) as answer:
            assert answer.status == 503
        site.assignments.post(assignment(banners("other")), "other")
        async with site.get("/v1/experiments/test") as answer:
            assert answer.status == 404


async def test_rates() -> None:
    """429 and when to come again, for all senders together and on one connection."""
    async with running(max_reports_per_s=1000, max_connection_reports_per_s=100_000) as site:
        many = body(*[report() for _ in range(700)])
        async with site.post(many) as answer:
            assert answer.status == 202
        async with site.post(many) as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
    async with running(max_connection_reports_per_s=1) as site:
        full = body(*[report() for _ in range(1000)])
        async with site.post(full) as first:
            assert first.status == 202
        async with site.post(full) as second:
            assert second.status == 429
            assert int(second.headers["Retry-After"]) > 900
        async with site.post(full, Connection="close"):
            pass
        async with site.post(full) as third:  # another connection
            assert third.status == 202


async def test_origins() -> None:
    """Pages of listed origins may use it, preflight or not; others and `null` may not."""
    async with running() as site:
        async with site.get("/v1/experiments/test", Origin=ORIGIN) as answer:
            assert answer.headers["Access-Control-Allow-Origin"] == ORIGIN
        async with site.request("OPTIONS", "/v1/reports", Origin=ORIGIN) as answer:
            assert answer.status == 204
            assert answer.headers["Access-Control-Allow-Methods"] == "POST"
        for other in ("https://evil.example", "null", f"{ORIGIN}.evil.example", "*"):
            async with site.post(body(report()), Origin=other) as answer:
                assert answer.status == 403
                assert "Access-Control-Allow-Origin" not in answer.headers
        assert site.mixer.sent == []


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404), ("GET", "/v1/experiments/", 404), ("GET", "/v1/experiments/UP", 404),
        ("GET", "/v1/experiments/..%2f..%2fetc", 404), ("GET", "/v1/experiments/nobody", 404),
        ("DELETE", "/v1/experiments/test", 405), ("GET", "/v1/reports", 405),
        ("PUT", "/v1/reports", 405), ("OPTIONS", "/v1/reports", 405), ("TRACE", "/healthz", 405),
        ("HEAD", "/v1/experiments/test", 200), ("HEAD", "/v1/experiments/test/events", 200),
        ("GET", "/healthz", 200), ("POST", "/healthz", 405),
    ],
)  # fmt: skip
async def test_what_is_not_there(method: str, path: str, status: int) -> None:
    """404 and 405 as they should be."""
    async with running() as site, site.request(method, path) as answer:
        assert answer.status == status


@pytest.mark.parametrize(
    ("data", "headers", "status"),
    [
        (b"{", {}, 400),
        (b"[" * 50_000, {}, 400),
        (b"\xff\xfe", {}, 400),
        (b"{}", {"Content-Type": "text/html"}, 415),
        (b"\x1f\x8b", {"Content-Encoding": "gzip"}, 415),
        (b"x" * 300_000, {}, 413),
    ],
)
async def test_bad_bodies(data: bytes, headers: dict[str, str], status: int) -> None:
    """Refused with a JSON error, and the next request on the site works."""
    async with running() as site:
        async with site.post(data, **headers) as answer:
            assert answer.status == status
            assert "error" in await answer.json()
        async with site.post(body(report())) as answer:
            assert answer.status == 202


POST = b"POST /v1/reports HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\n"


async def test_half_sent_and_slow_bodies() -> None:
    """A body that does not come ends in 408 and a closed connection; chunks without end in 413."""
    async with running(body_timeout_s=0.3) as site:
        slow = site.raw(POST + b"Content-Length: 100\r\n\r\n{")
        chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        endless = site.raw(POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 8)
        garbage = site.raw(b"\x16\x03\x01 not http at all\r\n\r\n")
        answers = await asyncio.gather(slow, endless, garbage)
        async with site.post(body(report())) as answer:
            assert answer.status == 202

    assert [re.findall(rb"HTTP/1.[01] (\d+)", a) for a in answers] == [[b"408"], [b"413"], [b"400"]]


async def test_headers_that_never_end() -> None:
    """The connection is closed when it has been idle for long."""
    async with running(idle_timeout_s=0.3) as site:
        began = asyncio.get_running_loop().time()
        answer = await site.raw(POST[:40], read_s=5)
        took = asyncio.get_running_loop().time() - began

    assert answer == b""
    assert took < 3


async def test_a_stream_of_changes() -> None:
    """The assignment at once, then each newer one; known ones are not repeated after a break."""
    async with running() as site:
        async with site.get("/v1/experiments/test/events", Origin=ORIGIN) as stream:
            assert stream.headers["Access-Control-Allow-Origin"] == ORIGIN
            first = await _event(stream)
            raw = orjson.loads(assignment()) | {"state": "decided", "open": [], "serve": "arm-1"}
            site.assignments.post(orjson.dumps(raw))
            second = await _event(stream)
        again = {"Last-Event-ID": second["id"]}
        async with site.get("/v1/experiments/test/events", **again) as stream:
            assert await stream.content.readuntil(b"\n\n") == b":\n\n"

    assert (first["event"], second["event"]) == ("assignment", "assignment")
    assert orjson.loads(first["data"])["state"] == "running"
    assert orjson.loads(second["data"])["serve"] == "arm-1"


async def _event(stream: Any) -> dict[str, str]:
    text = (await asyncio.wait_for(stream.content.readuntil(b"\n\n"), 2)).decode()
    return dict(line.split(": ", 1) for line in text.strip().splitlines())


async def test_too_many_streams() -> None:
    """503; a stream that ended makes room."""
    async with running(max_streams=1) as site, site.get("/v1/experiments/test/events") as first:
        await first.content.readline()
        async with site.get("/v1/experiments/test/events") as second:
            assert second.status == 503


async def test_nothing_of_a_sender_is_written(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No line of any level names address, agent, cookie or report, even when the code fails."""
    caplog.set_level(logging.DEBUG)
    marks = {"User-Agent": "agent-mark", "Cookie": "cookie=mark", "X-Forwarded-For": "10.9.8.7"}
    sent = report(ones=1)
    async with running() as site:
        async with site.post(body(sent), **marks) as answer:
            assert answer.status == 202
        monkeypatch.setattr(intake, "sift", _broken)
        async with site.post(body(sent), **marks) as answer:
            assert answer.status == 500
        await site.raw(b"GET / HTTP/9.9\r\nagent-mark: 10.9.8.7\r\n\r\n")
        stored = b"".join(value for _, _, value in site.mixer.sent).decode()

    lines = [r.getMessage() for r in caplog.records if not r.name.startswith("asyncio")]
    assert lines == ["gateway: a request failed: ZeroDivisionError"]
    for mark in ("agent-mark", "cookie", "10.9.8.7", "127.0.0.1"):
        assert mark not in stored


def _broken(*_: object) -> Any:
    raise ZeroDivisionError("10.9.8.7 agent-mark")


def test_the_code_reads_nothing_of_a_sender() -> None:
    """Only these headers are ever looked at; never the address."""
    source = "".join(path.read_text() for path in Path(server.__file__).parent.glob("*.py"))

    assert set(re.findall(r'headers\.get\("([^"]+)"', source)) == {
        "Content-Encoding",
        "Content-Type",
        "If-None-Match",
        "Last-Event-ID",
        "Origin",
    }
    assert not re.search(r"\.remote|peername|cookies|\.forwarded|get_extra_info", source)


async def test_the_description_is_current() -> None:
    """Every path that is served is in it, with its methods, and the other way round."""
    async with running() as site:
        async with site.get("/v1/openapi.json") as answer:
            described = await answer.json()
        for path, methods in described["paths"].items():
            for method in ("GET", "POST"):
                url = path.replace("{name}", "test")
                async with site.request(method, url, **{"Content-Type": "text/plain"}) as answer:
                    known = method.lower() in methods
                    assert known == (answer.status != 405)
                    if known:
                        assert str(answer.status) in methods[method.lower()]["responses"]
        served = {*site.gateway._pages, "/v1/reports", "/v1/held", "/v1/experiments/{name}"}

    assert set(described["paths"]) == served | {"/v1/experiments/{name}/events"}
