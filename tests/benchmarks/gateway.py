"""The gateway against a bare aiohttp handler that parses the same body and sends it on.

Both run as processes of their own on one Kafka; a third one loads them over many connections. A
round's cost is the time per acknowledged report. `python -m tests.benchmarks.gateway ROLE ...` is
how the processes start.
"""

import asyncio
import contextlib
import dataclasses
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import orjson
import uvloop
from aiohttp import web

from stream_app import kafka
from stream_app.gateway import Gateway
from stream_app.local.broker import LocalBroker, free_port
from stream_app.settings import Settings
from stream_app.wire.assignment import decode_offer
from tests.benchmarks.harness import Outcome, compare
from tests.producers.build import assignment

CONNECTIONS = 256
TARGET = 1 / 0.7  # of the cost: at least 0.7 of the peer's reports a second


def outcomes() -> Iterator[Outcome]:
    """One report a request, as browsers send, and a hundred, as backends do."""
    with LocalBroker() as broker, contextlib.ExitStack() as stack:
        ports = {"peer": free_port(), "ours": 0}
        ports["ours"] = free_port(ports["peer"])
        asyncio.run(_prepare(broker.bootstrap))
        for role, port in ports.items():
            stack.enter_context(_process(role, str(port), broker.bootstrap))
        for port in ports.values():
            _answers(port)
        for reports, requests in ((1, 8_000), (100, 600)):
            yield compare(
                f"gateway: acknowledged reports, {reports} a request",
                "bare aiohttp handler with aiokafka's send",
                lambda r=reports, n=requests: _load(ports["peer"], r, n),  # type: ignore[misc]
                lambda r=reports, n=requests: _load(ports["ours"], r, n),  # type: ignore[misc]
                TARGET,
                rounds=3,
            )


def _settings(bootstrap: str, port: int = 0) -> Settings:
    made = Settings()
    without_limits = dataclasses.replace(
        made.gateway, port=port, max_reports_per_s=1e9, max_connection_reports_per_s=1e9
    )
    connection = dataclasses.replace(made.kafka, bootstrap=bootstrap)
    return dataclasses.replace(made, kafka=connection, gateway=without_limits)


async def _prepare(bootstrap: str) -> None:
    settings = _settings(bootstrap).kafka
    await kafka.create_topics(settings, 4, 1)
    async with kafka.producer(settings) as producer:
        place = kafka.partition_of("test", 4)
        topic = kafka.topic(settings, "assignments")
        await producer.send_and_wait(topic, assignment(), key=b"test", partition=place)


@contextlib.contextmanager
def _process(*arguments: str) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-m", "tests.benchmarks.gateway", *arguments])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _answers(port: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with contextlib.suppress(Exception):
            _load(port, 1, 1)
            return
        time.sleep(0.2)
    raise TimeoutError


def _load(port: int, reports: int, requests: int) -> float:
    """Seconds per acknowledged report, measured in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.gateway", "load"]
    done = subprocess.run(
        [*command, str(port), str(reports), str(requests)],
        check=True, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return float(done.stdout)


async def _send_load(port: int, reports: int, requests: int) -> None:
    batch = decode_offer(assignment()).open[0][0]

    def request() -> bytes:
        listed = [{"batch": batch, "id": secrets.token_hex(16), "ones": 5} for _ in range(reports)]
        body = orjson.dumps({"experiment": "test", "reports": listed})
        head = "POST /v1/reports HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    waiting = [request() for _ in range(requests)]

    async def sender() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while waiting:
            writer.write(waiting.pop())
            head = await reader.readuntil(b"\r\n\r\n")
            if b" 202 " not in head:
                raise RuntimeError(head)
            size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(size)
        writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(sender() for _ in range(min(CONNECTIONS, requests))))
    print((time.perf_counter() - began) / (requests * reports))


async def _serve_peer(port: int, bootstrap: str) -> None:
    settings = _settings(bootstrap).kafka
    topic = kafka.topic(settings, "reports")
    place = kafka.partition_of("test", 4)
    async with kafka.producer(settings, compression_type=None) as producer:

        async def reports(request: web.Request) -> web.Response:
            raw: Any = orjson.loads(await request.read())
            key = raw["experiment"].encode()
            sent = [
                await producer.send(topic, orjson.dumps(report), key, place)
                for report in raw["reports"]
            ]
            await asyncio.gather(*sent)
            body = orjson.dumps({"outcomes": ["accepted"] * len(sent)})
            return web.Response(body=body, status=202, content_type="application/json")

        app = web.Application()
        app.router.add_post("/v1/reports", reports)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await asyncio.Event().wait()


async def _serve_ours(port: int, bootstrap: str) -> None:
    await Gateway(_settings(bootstrap, port)).run(asyncio.Event())


def main(role: str, *arguments: str) -> None:
    """One of the processes."""
    work = {
        "peer": lambda: _serve_peer(int(arguments[0]), arguments[1]),
        "ours": lambda: _serve_ours(int(arguments[0]), arguments[1]),
        "load": lambda: _send_load(*map(int, arguments)),
    }[role]()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(*sys.argv[1:])
    else:
        for outcome in outcomes():
            print(
                f"{outcome.name}: {1 / outcome.our_cost:,.0f}/s, peer "
                f"{1 / outcome.peer_cost:,.0f}/s, {1 / outcome.ratio:.2f} of the peer"
            )
