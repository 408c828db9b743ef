"""A gateway on a real socket, with Kafka played by the test. Nothing here is under test."""

import asyncio
import contextlib
import dataclasses
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import aiohttp

from stream_app.errors import Unavailable
from stream_app.gateway import Gateway
from stream_app.gateway.assignments import AssignmentCache
from stream_app.gateway.handovers import Handovers
from stream_app.gateway.held import HeldReports
from stream_app.gateway.mixer import Full, Mixer
from stream_app.gateway.reports import Posting
from stream_app.local.broker import free_port
from stream_app.settings import Settings, TokenSettings
from stream_app.wire.assignment import decode_offer
from stream_app.wire.held import decode_held, encode_handover
from tests.producers.build import assignment, banners

ORIGIN = "https://shop.example"


class FakeAssignments(AssignmentCache):
    """Assignments that a test posts."""

    async def run(self) -> None:
        await asyncio.Event().wait()

    def post(self, value: bytes | None, name: str = "test") -> None:
        record: Any = SimpleNamespace(key=name.encode(), value=value, partition=3, offset=7)
        self.take(record)
        self.loaded.set()


class FakeMixer(Mixer):
    """Kafka, as far as the gateway sees it."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.connected = True
        self.sent: list[tuple[int, bytes, bytes]] = []
        self.fails: Exception | None = None

    async def run(self) -> None:
        await asyncio.Event().wait()

    def put(self, partition: int, key: bytes, values: Sequence[bytes]) -> asyncio.Future[None]:
        if isinstance(self.fails, Full):
            raise self.fails
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.fails is not None:
            done.set_exception(self.fails)
        else:
            self.sent.extend((partition, key, value) for value in values)
            done.set_result(None)
        return done


class FakeHandovers(Handovers):
    """The topic `held`, as far as the gateway sees it: what it takes leaves when it is due."""

    def __init__(self, settings: Settings, *parts: Any) -> None:
        super().__init__(settings, *parts)
        self.taken: list[bytes] = []
        self._waiting = HeldReports()
        self._changed = asyncio.Event()

    def put(self, posting: Posting, value: bytes, left_ms: int) -> asyncio.Future[None]:
        due_ms = int(time.time() * 1000) + left_ms
        held = decode_held(encode_handover(due_ms, value))
        self._waiting.take(len(self.taken), posting.key, held)
        self.taken.append(value)
        self._changed.set()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    async def run(self) -> None:
        while True:
            for one in self._waiting.due(int(time.time() * 1000)):
                self.send(one)
                self._waiting.left(one)
            next_ms = self._waiting.next_due_ms()
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(next_ms and max(0.0, next_ms / 1000 - time.time())):
                    await self._changed.wait()


def settings(**gateway: Any) -> Settings:
    made = Settings()
    given = {"origins": ORIGIN, "port": free_port(), **gateway}
    return dataclasses.replace(made, gateway=dataclasses.replace(made.gateway, **given))


class Site:
    """A running gateway and somebody who talks to it."""

    def __init__(self, gateway: Gateway, session: aiohttp.ClientSession) -> None:
        self.gateway = gateway
        self._session = session
        self.url = f"http://127.0.0.1:{gateway.settings.port}"

    @property
    def assignments(self) -> FakeAssignments:
        assert isinstance(self.gateway.assignments, FakeAssignments)
        return self.gateway.assignments

    @property
    def mixer(self) -> FakeMixer:
        assert isinstance(self.gateway.mixer, FakeMixer)
        return self.gateway.mixer

    def get(self, path: str, **headers: str) -> Any:
        return self._session.get(self.url + path, headers=headers)

    def post(self, body: Any, **headers: str) -> Any:
        if isinstance(body, bytes):
            given = {"Content-Type": "text/plain", **headers}
            return self._session.post(f"{self.url}/v1/reports", data=body, headers=given)
        return self._session.post(f"{self.url}/v1/reports", json=body, headers=headers)

    @property
    def handovers(self) -> FakeHandovers:
        assert isinstance(self.gateway.handovers, FakeHandovers)
        return self.gateway.handovers

    def hand_over(self, report: Any, left_ms: Any = 1000, experiment: str = "test") -> Any:
        content = {"experiment": experiment, "left_ms": left_ms, "report": report}
        return self._session.post(f"{self.url}/v1/held", json=content)

    def request(self, method: str, path: str, **headers: str) -> Any:
        return self._session.request(method, self.url + path, headers=headers)

    async def raw(self, data: bytes, *, read_s: float = 2.0) -> bytes:
        """Send bytes as they are; returns what comes until the other side closes or is silent."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.gateway.settings.port)
        writer.write(data)
        answer = b""
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(read_s):
                while chunk := await reader.read(65536):
                    answer += chunk
        writer.close()
        return answer


def gateway_of(made: Settings, pages: Any = None) -> Gateway:
    """A gateway without Kafka."""
    edge = Gateway(made, pages, FakeAssignments(made.kafka), FakeMixer(made))
    edge.handovers = FakeHandovers(made, edge.assignments, edge.mixer, edge.metrics.let_go)
    return edge


@contextlib.asynccontextmanager
async def running(
    value: bytes | None = None,
    *,
    posted: bool = True,
    pages: Any = None,
    token_keys: str = "",
    **gateway: Any,
) -> AsyncIterator[Site]:
    """A gateway that has read an assignment."""
    made = settings(**gateway)
    made = dataclasses.replace(made, tokens=TokenSettings(token_keys))
    edge = gateway_of(made, pages)
    stop = asyncio.Event()
    task = asyncio.ensure_future(edge.run(stop))
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        site = Site(edge, session)
        if posted:
            site.assignments.post(value or assignment())
        await listening(made.gateway.port)
        try:
            yield site
        finally:
            stop.set()
            await asyncio.wait_for(task, 10)


async def listening(port: int, within_s: float = 20) -> None:
    async with asyncio.timeout(within_s):
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return
            await asyncio.sleep(0.05)


def batch_of(value: bytes | None = None) -> str:
    return decode_offer(value or assignment()).open[0][0]


def report(batch: str | None = None, ones: int = 1, **changes: Any) -> dict[str, Any]:
    return {"batch": batch or batch_of(), "id": secrets.token_hex(16), "ones": ones, **changes}


def body(*reports: Any, experiment: str = "test") -> dict[str, Any]:
    return {"experiment": experiment, "reports": list(reports)}


__all__ = [
    "ORIGIN",
    "Unavailable",
    "assignment",
    "banners",
    "batch_of",
    "body",
    "report",
    "running",
]
