"""The monitor's web pages: HTML, a JSON API with the same content, and live events. Read only.

Shows what the view knows, which is public. All text of others (names of experiments and arms)
travels as JSON and is shown as text by the page's script; no HTML is made here.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from importlib import resources
from typing import Any, Protocol

import orjson
from aiohttp import web

from stream_app.errors import Unavailable
from stream_app.metrics.http_guard import refusal
from stream_app.monitor.events import Channel, Streams
from stream_app.monitor.server import add_headers
from stream_app.monitor.view import View
from stream_app.settings import MonitorSettings

# The list of experiments on the page, which nobody reads to its end; `/api/experiments` has all.
MAX_LISTED = 200
# The list changes with every batch of every experiment: more often than a reader can follow.
_LIST_EVERY_S = 1.0
# Readers of transcripts at once: each is a consumer.
_MAX_TRANSCRIPTS = 2
# What the page is made of; a file with another ending is not served.
_TYPES = {
    "css": "text/css",
    "html": "text/html",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}


class Health(Protocol):
    """Whether what is shown is current."""

    connected: bool


class Sums(Protocol):
    """Where the transcript comes from."""

    def lines(self, name: str, start: int | None) -> AsyncGenerator[bytes, None]:
        """Its lines."""


def install(
    app: web.Application, view: View, health: Health, sums: Sums, settings: MonitorSettings
) -> Streams:
    """Give the web application its pages."""
    streams = Streams(settings.max_streams)
    app.middlewares.append(_guard(settings.host))
    app.on_response_prepare.append(add_headers)
    app.on_shutdown.append(streams.close)
    files = _files()

    async def file(request: web.Request) -> web.Response:
        found = files.get(request.match_info.get("file", "index.html"))
        if found is None:
            raise web.HTTPNotFound
        body, content_type = found
        return web.Response(body=body, content_type=content_type, charset="utf-8")

    app.router.add_get("/", file)
    app.router.add_get("/experiments/{name}", file)
    app.router.add_get("/web/{file}", file)
    _Api(view, health, sums, streams).install(app.router)
    return streams


def _files() -> dict[str, tuple[bytes, str]]:
    """The page's files by name: what is not here does not exist."""
    return {
        file.name: (file.read_bytes(), _TYPES[ending])
        for file in resources.files("stream_app.monitor").joinpath("web").iterdir()
        if (ending := file.name.rpartition(".")[2]) in _TYPES
    }


def _guard(host: str) -> Any:
    @web.middleware
    async def guard(request: web.Request, handler: Any) -> web.StreamResponse:
        refused = refusal(request, host, "monitor")
        if refused is not None and request.match_info.http_exception is None:
            status, reason = refused
            answer: web.StreamResponse = _json({"error": reason}, status)
        else:
            try:
                return await handler(request)  # type: ignore[no-any-return]
            except web.HTTPException as error:
                answer = _json({"error": error.reason}, error.status)
                if "Allow" in error.headers:
                    answer.headers["Allow"] = error.headers["Allow"]
        answer.force_close()
        return answer

    return guard


class _Api:
    def __init__(self, view: View, health: Health, sums: Sums, streams: Streams) -> None:
        self._view = view
        self._health = health
        self._sums = sums
        self._streams = streams
        self._transcripts = asyncio.Semaphore(_MAX_TRANSCRIPTS)

    def install(self, router: web.UrlDispatcher) -> None:
        router.add_get("/api/experiments", self._experiments)
        router.add_get("/api/experiments/{name}", self._experiment)
        router.add_get("/api/experiments/{name}/events", self._events)
        router.add_get("/api/experiments/{name}/sums", self._transcript)
        router.add_get("/api/events", self._list_events)
        router.add_get("/healthz", self._healthz)

    async def _healthz(self, _request: web.Request) -> web.Response:
        return _json({"kafka": self._health.connected, "invalid": self._view.invalid})

    async def _experiments(self, _request: web.Request) -> web.Response:
        return _json(self._view.experiments())

    async def _experiment(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        found = self._view.snapshot(name)
        return _missing(name) if found is None else _json(found)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]

        def channel() -> Channel:
            return Channel(
                lambda: (self._view.version_of(name), self._health.connected),
                lambda: self._event(experiment=self._view.snapshot(name)),
            )

        return await self._streams.serve(request, f"experiment {name}", channel)

    async def _list_events(self, request: web.Request) -> web.StreamResponse:
        def channel() -> Channel:
            return Channel(
                lambda: (self._view.version, self._health.connected), self._list, _LIST_EVERY_S
            )

        return await self._streams.serve(request, "list", channel)

    def _list(self) -> dict[str, Any]:
        """The experiments that run, then the others, as many as a page can hold."""
        known = sorted(self._view.experiments(), key=lambda one: one["state"] != "running")
        return self._event(count=len(known), experiments=known[:MAX_LISTED])

    def _event(self, **content: object) -> dict[str, Any]:
        return {"kafka": self._health.connected, "time_ms": time.time_ns() // 1_000_000, **content}

    async def _transcript(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        start = request.query.get("start")
        if self._view.snapshot(name) is None:
            return _missing(name)
        if start is not None and not (start.isascii() and start.isdigit() and len(start) < 19):
            return _json({"error": "start: must be an offset, a whole number"}, 400)
        if self._transcripts.locked():
            return _json({"error": "others read transcripts just now; try again soon"}, 503)
        async with self._transcripts:
            lines = self._sums.lines(name, None if start is None else int(start))
            async with contextlib.aclosing(lines):
                return await _stream(request, lines)


async def _stream(request: web.Request, lines: AsyncGenerator[bytes, None]) -> web.StreamResponse:
    """Lines as they come; if Kafka becomes unreachable in between, the last one says so."""
    try:
        chunk = await anext(lines, b"")
    except Unavailable as error:
        return _json({"error": str(error)}, 503)
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson; charset=utf-8"})
    await response.prepare(request)
    with contextlib.suppress(ConnectionError):
        await response.write(chunk)
        try:
            async for chunk in lines:
                await response.write(chunk)
        except Unavailable as error:
            await response.write(orjson.dumps({"error": str(error)}) + b"\n")
    return response


def _missing(name: str) -> web.Response:
    return _json({"error": f"no experiment {name!r}"}, 404)


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(
        body=orjson.dumps(value), status=status, headers={"Content-Type": "application/json"}
    )
