"""The gateway's HTTP: routes, origins, limits and answers. See openapi.py for what it promises.

Built on aiohttp's low-level server: no access log, and its own logger is silent, since it would
name addresses. Whatever goes wrong is logged by its type only.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from stream_app.errors import InvalidInput, Unavailable
from stream_app.gateway import openapi
from stream_app.gateway import reports as intake
from stream_app.gateway.admission import admission
from stream_app.gateway.assignments import AssignmentCache
from stream_app.gateway.handovers import Handovers
from stream_app.gateway.limits import ConnectionLimits, fitting
from stream_app.gateway.mixer import Full, Mixer
from stream_app.gateway.reports import Outcome, Posting
from stream_app.gateway.responses import Refused, json, later, preflight, shared_headers
from stream_app.logs import log
from stream_app.metrics.edge import TURNED_AWAY, EdgeMetrics
from stream_app.metrics.instruments import REFUSED, Metrics
from stream_app.settings import Settings

_EXPERIMENT = re.compile(r"/v1/experiments/([a-z0-9][a-z0-9._-]{0,63})(/events)?")
_REPORTS = "/v1/reports"
_HELD = "/v1/held"
_POSTED = (_REPORTS, _HELD)
# More tokens than this are verified in a thread: 25 microseconds each, and all others wait.
_INLINE_TOKENS = 8
_HEARTBEAT_S = 15.0
_WRITE_S = 10.0  # a reader of the stream that takes nothing for so long is let go
_STOP_S = 0.5
_TEXT = ("application/json", "text/plain")
_SILENT = logging.Logger("silent", logging.CRITICAL + 1)
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Length: 0\r\n"
    b"Connection: close\r\n\r\n"
)

# Why all reports of a request are not taken, by its status.
_REASONS = {404: "unknown_experiment", 429: "rate", 503: "busy"}

Page = Callable[[], tuple[str, bytes]]  # content type and content, as of now


class _Server(web.Server):
    """Counts connections at the door."""

    def __init__(self, gateway: "Gateway", **options: Any) -> None:
        super().__init__(gateway.handle, **options)
        self._limits = gateway.limits

    def connection_made(self, handler: Any, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if not self._limits.enter(handler):
            transport.write(_FULL)
            handler.force_close()

    def connection_lost(self, handler: Any, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self._limits.leave(handler)


class Gateway:
    """One gateway. `pages` are further things to serve by path, as the demo does."""

    def __init__(
        self,
        settings: Settings,
        pages: Mapping[str, Page] | None = None,
        assignments: AssignmentCache | None = None,
        mixer: Mixer | None = None,
        handovers: Handovers | None = None,
    ) -> None:
        self.admission = admission(settings)
        self.settings = fitting(settings.gateway)
        self.metrics = EdgeMetrics(lambda: self.mixer.waiting)
        self.assignments = assignments or AssignmentCache(settings.kafka)
        self.mixer = mixer or Mixer(settings, self.metrics.acknowledged)
        self.handovers = handovers or Handovers(
            settings, self.assignments, self.mixer, self.metrics.let_go
        )
        self.limits = ConnectionLimits(self.settings, asyncio.get_running_loop().time)
        self._origins = frozenset(settings.gateway.origins.split())
        self._shared = {origin: shared_headers(origin) for origin in (None, *self._origins)}
        self._pages: dict[str, Page] = {
            "/v1/openapi.json": lambda: ("application/json", openapi.document(settings.gateway)),
            "/healthz": self._health,
            **(pages or {}),
        }
        self._stopping = asyncio.Event()

    def unready(self) -> str:
        """What it waits for, in words; empty while it does its work."""
        if not self.assignments.loaded.is_set():
            return "gateway: the assignments are not read yet"
        return "" if self.mixer.connected else "gateway: Kafka takes no reports"

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set. Raises OSError if it cannot listen."""
        parts = (self.assignments, self.mixer, self.handovers)
        work = [asyncio.ensure_future(part.run()) for part in parts]
        asked = asyncio.ensure_future(stop.wait())
        runner = self._runner()
        await runner.setup()
        try:
            await web.TCPSite(runner, self.settings.host, self.settings.port, backlog=1024).start()
            await asyncio.wait({asked, *work}, return_when=asyncio.FIRST_COMPLETED)
            for part in work:
                if part.done():
                    part.result()
        finally:
            self._stopping.set()
            await runner.cleanup()
            asked.cancel()
            for part in work:
                part.cancel()
            await asyncio.gather(asked, *work, return_exceptions=True)

    def _runner(self) -> web.ServerRunner:
        loop = asyncio.get_running_loop()

        def request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> Any:
            return web.BaseRequest(
                message, payload, protocol, writer, task, loop,
                client_max_size=self.settings.max_body_bytes,
            )  # fmt: skip

        server = _Server(
            self,
            request_factory=request,
            access_log=None,
            logger=_SILENT,
            keepalive_timeout=self.settings.idle_timeout_s,
            lingering_time=1.0,
            auto_decompress=False,
        )
        return web.ServerRunner(server, shutdown_timeout=_STOP_S)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request, whatever it is."""
        origin = request.headers.get("Origin")
        try:
            response = await self._route(request, origin)
        except Refused as refused:
            response = json({"error": str(refused)}, refused.status, refused.headers)
        except web.HTTPException as error:  # aiohttp's own: a body that is too large
            response = json({"error": error.reason}, error.status)
        except HttpProcessingError:
            response = json({"error": "the request is not valid HTTP"}, 400)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as error:
            log.error("gateway: a request failed: %s", type(error).__name__)
            response = json({"error": "something is wrong here"}, 500)
        if not response.prepared:
            response.headers.extend(self._shared[origin if origin in self._origins else None])
        if request.path != _HELD:  # counted when it leaves
            self.metrics.requests[response.status] += 1
        return response

    async def _route(self, request: web.BaseRequest, origin: str | None) -> web.StreamResponse:
        path = request.path
        method = request.method
        if origin is not None and origin not in self._origins:
            raise Refused(403, "this origin is not in gateway.origins")
        if path == _REPORTS and method == "POST":
            return await self._reports(request)
        if path == _HELD and method == "POST":
            return await self._hold(request)
        found = _EXPERIMENT.fullmatch(path)
        allowed = "POST" if path in _POSTED else "GET, HEAD"
        if not found and path not in (*_POSTED, *self._pages):
            raise Refused(404, "there is nothing here; see /v1/openapi.json")
        if method == "OPTIONS" and origin is not None:
            return preflight(allowed)
        if method not in allowed.split(", "):
            raise Refused(405, f"use {allowed}", Allow=f"{allowed}, OPTIONS")
        if found is None:
            return self._page(path)
        posting = await self._posting(found[1])
        if found[2]:
            return await self._events(request, posting)
        headers = {"ETag": posting.etag, "Cache-Control": "no-cache"}
        if posting.etag in request.headers.get("If-None-Match", ""):
            return web.Response(status=304, headers=headers)
        return web.Response(body=posting.body, content_type="application/json", headers=headers)

    async def _posting(self, experiment: str) -> Posting:
        if not self.assignments.loaded.is_set():
            raise later(503, "the assignments are not read yet")
        posting = self.assignments.find(experiment)
        if posting is None:
            raise Refused(404, "there is no such experiment")
        return posting

    async def _reports(self, request: web.BaseRequest) -> web.StreamResponse:
        connection: Any = request.protocol
        body = await self._body(request)
        try:
            name, reports = intake.read(body)
        except InvalidInput as error:
            raise Refused(400, str(error)) from None
        try:
            outcomes = await self._taken(connection, name, reports)
        except Refused as refused:
            away = TURNED_AWAY if "Retry-After" in refused.headers else REFUSED
            self.metrics.reports[away, _REASONS[refused.status]] += len(reports)
            raise
        self.metrics.judged(outcomes)
        return json({"outcomes": outcomes}, 202 if Outcome.ACCEPTED in outcomes else 422)

    async def _taken(self, connection: Any, name: str, reports: list[Any]) -> list[Outcome]:
        """The outcome of each report; returns once Kafka has those that are accepted."""
        wait_s = self.limits.admit(connection, len(reports))
        if wait_s:
            raise later(429, "too many reports", wait_s)
        posting = await self._posting(name)
        outcomes, values = await self._sifted(posting, reports)
        if values:
            self.limits.busy(connection)
            try:
                # Shared with other requests, so not to be cancelled: only a stop does that.
                await self.mixer.put(posting.partition, posting.key, values)
            except Full:
                raise later(503, "too many reports wait for Kafka") from None
            except Unavailable:
                raise later(503, "Kafka does not take reports now") from None
            finally:
                self.limits.idle(connection)
        return outcomes

    async def _sifted(
        self, posting: Posting, reports: list[Any]
    ) -> tuple[list[Outcome], list[bytes]]:
        if self.admission.verifies and len(reports) > _INLINE_TOKENS:
            return await asyncio.to_thread(intake.sift, posting, reports, self.admission)
        return intake.sift(posting, reports, self.admission)

    async def _hold(self, request: web.BaseRequest) -> web.StreamResponse:
        """Take the report of a page that is left; nothing that others see may move here."""
        body = await self._body(request)
        try:
            name, report, left_ms = intake.read_handover(body)
        except InvalidInput as error:
            raise Refused(400, str(error)) from None
        wait_s = self.limits.admit_handover(request.protocol)
        if wait_s:
            raise later(429, "too many reports", wait_s)
        posting = await self._posting(name)
        outcome, value = intake.sift_handover(posting, report, self.admission)
        if outcome is not Outcome.ACCEPTED:
            return json({"outcomes": [outcome]}, 422)
        try:
            await self.handovers.put(posting, value, left_ms)
        except (Full, Unavailable):
            raise later(503, "Kafka does not take reports now") from None
        return json({"outcomes": [outcome]}, 202)

    async def _body(self, request: web.BaseRequest) -> bytes:
        headers = request.headers
        kind = headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind not in _TEXT or headers.get("Content-Encoding"):
            raise Refused(415, "send JSON, as application/json or text/plain, not compressed")
        if (request.content_length or 0) > self.settings.max_body_bytes:
            raise Refused(413, f"a body may have {self.settings.max_body_bytes} bytes")
        if request.content.is_eof():  # nearly always: all of it is there
            return await request.read()
        try:
            async with asyncio.timeout(self.settings.body_timeout_s):
                return await request.read()
        except TimeoutError:
            raise Refused(408, "the body took too long", Connection="close") from None

    async def _events(self, request: web.BaseRequest, posting: Posting) -> web.StreamResponse:
        if request.method == "HEAD":
            return web.Response(content_type="text/event-stream")
        if not self.limits.stream():
            raise later(503, "too many streams are open")
        connection: Any = request.protocol
        self.limits.busy(connection)
        shared = self._shared[request.headers.get("Origin")]
        response = web.StreamResponse(headers={"Cache-Control": "no-store", **shared})
        response.content_type = "text/event-stream"
        try:
            await response.prepare(request)
            await self._stream(response, posting, request.headers.get("Last-Event-ID", ""))
        except (ConnectionError, TimeoutError):
            response.force_close()
        finally:
            self.limits.streams -= 1
            self.limits.idle(connection)
        return response

    async def _stream(self, response: web.StreamResponse, posting: Posting, seen: str) -> None:
        current: Posting | None = posting
        while current is not None and not self._stopping.is_set():
            if current.etag != seen:
                seen = current.etag
                event = b"event: assignment\nid: %b\ndata: %b\n\n" % (seen.encode(), current.body)
            else:
                event = b":\n\n"
            async with asyncio.timeout(_WRITE_S):
                await response.write(event)
            await self.assignments.changed(posting.experiment, seen, _HEARTBEAT_S)
            current = self.assignments.find(posting.experiment)

    def _page(self, path: str) -> web.Response:
        content_type, body = self._pages[path]()
        return web.Response(
            body=body,
            content_type=content_type,
            charset="utf-8" if content_type.startswith("text/") else None,
            headers={"Cache-Control": "no-cache"},
        )

    def _health(self) -> tuple[str, bytes]:
        state = {
            "kafka": self.mixer.connected,
            "assignments": self.assignments.loaded.is_set(),
            "waiting": self.mixer.waiting,
        }
        return "application/json", orjson.dumps(state)


def make_runner(settings: Settings, metrics: Metrics) -> Gateway:
    """What a worker with this role runs. Needs a running event loop."""
    edge = Gateway(settings)
    metrics.registry.register(edge.metrics)
    return edge
