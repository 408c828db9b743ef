"""Server-sent events: the newest state to each open page, whenever it changed.

A stream has no queue: when its reader is ready it gets the newest state, so a slow reader misses
some and holds up nobody. Knows HTTP and a channel's bytes, not what they mean.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import orjson
from aiohttp import web

# Between two states on one stream: looks live, and a busy experiment costs four snapshots a second.
EVERY_S = 0.25
# A line says that the stream lives; a page that hears nothing for three times as long reconnects.
HEARTBEAT_S = 5.0
# A reader that takes nothing for so long is dropped.
STUCK_S = 10.0


@dataclass(slots=True)
class Channel:
    """One state that streams follow: it is encoded once for all of them."""

    version: Callable[[], Hashable]
    value: Callable[[], object]
    every_s: float = EVERY_S
    readers: int = 0
    _encoded: tuple[Hashable, bytes] | None = None

    def event(self) -> tuple[Hashable, bytes]:
        """The newest version and its event."""
        newest = self.version()
        if self._encoded is None or self._encoded[0] != newest:
            self._encoded = newest, b"data: %b\n\n" % orjson.dumps(self.value())
        return self._encoded


class Streams:
    """All open streams, at most so many."""

    def __init__(self, most: int) -> None:
        self.open = 0
        self._most = most
        self.channels: dict[str, Channel] = {}
        self._closing = asyncio.Event()

    async def close(self, _app: web.Application) -> None:
        """End all streams: the server stops."""
        self._closing.set()

    async def serve(
        self, request: web.Request, name: str, make: Callable[[], Channel]
    ) -> web.StreamResponse:
        """Send a channel's states until the reader is gone or the server stops."""
        if self.open >= self._most:
            reason = f"{self._most} streams are open, as many as monitor.max_streams allows"
            return web.json_response({"error": reason}, status=503, headers={"Retry-After": "5"})
        channel = self.channels.setdefault(name, make())
        self.open += 1
        channel.readers += 1
        try:
            return await self._send(request, channel)
        finally:
            self.open -= 1
            channel.readers -= 1
            if not channel.readers:
                del self.channels[name]

    async def _send(self, request: web.Request, channel: Channel) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            try:
                await self._follow(request, response, channel)
            except TimeoutError:
                if request.transport is not None:
                    request.transport.close()
        return response

    async def _follow(
        self, request: web.Request, response: web.StreamResponse, channel: Channel
    ) -> None:
        sent = None
        at = time.monotonic()
        while not self._closing.is_set() and request.transport is not None:
            data = b""
            if channel.version() != sent:
                sent, data = channel.event()
            elif time.monotonic() - at >= HEARTBEAT_S:
                data = b": here\n\n"
            if data:
                at = time.monotonic()
                async with asyncio.timeout(STUCK_S):
                    await response.write(data)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(channel.every_s):
                    await self._closing.wait()
