"""How the monitor serves HTTP: few connections, short requests, no waiting for slow ones.

Knows sockets and headers, not what the pages say.
"""

import asyncio
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from stream_app.settings import MonitorSettings

# Beside the streams: enough for the other requests of the pages that hold them.
_SPARE_CONNECTIONS = 100
# A connection that has not sent its first request by then is closed.
FIRST_REQUEST_S = 10.0
# Nothing is stored, framed or loaded from elsewhere: the page needs no more than its own files.
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Server": "shufflebandit",
    "X-Content-Type-Options": "nosniff",
}


class WebRunner(web.AppRunner):
    """aiohttp's runner with limits on connections, sizes and waiting."""

    def __init__(self, app: web.Application, settings: MonitorSettings) -> None:
        super().__init__(
            app,
            access_log=None,
            shutdown_timeout=0.5,
            keepalive_timeout=30,
            lingering_time=0,
            max_line_size=4096,
            max_field_size=4096,
        )
        self._most = settings.max_streams + _SPARE_CONNECTIONS
        self._waiting: dict[Any, asyncio.TimerHandle] = {}
        app.middlewares.append(self._heard)

    @property
    def server(self) -> Any:
        """What makes a protocol for each new connection; None before the setup."""
        return None if super().server is None else self._connection

    def _connection(self) -> asyncio.Protocol:
        server = super().server
        assert server is not None
        if len(server.connections) >= self._most:
            return _TooManyConnections()
        made: RequestHandler = server()
        self._waiting[made] = asyncio.get_running_loop().call_later(
            FIRST_REQUEST_S, self._give_up, made
        )
        return made

    def _give_up(self, connection: RequestHandler) -> None:
        if self._waiting.pop(connection, None) is not None:
            connection.force_close()

    @web.middleware
    async def _heard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        waiting = self._waiting.pop(request.protocol, None)
        if waiting is not None:
            waiting.cancel()
        answer: web.StreamResponse = await handler(request)
        return answer


class _TooManyConnections(asyncio.Protocol):
    """Answers a connection beyond the limit, without a look at its request."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say why, and close."""
        body = b'{"error":"too many connections"}'
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(
            b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
            b"Retry-After: 5\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        transport.close()


async def add_headers(_request: web.Request, response: web.StreamResponse) -> None:
    """Every answer says what a browser may do with it: show it here, and nothing else."""
    response.headers.update(_HEADERS)
