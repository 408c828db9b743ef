"""The endpoint of a worker: `/metrics`, `/healthz`, `/readyz`, on an address of its own.

It shares the worker's event loop, so it answers only while that turns: this is what `/healthz`
says. Knows HTTP; not what readiness means.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from stream_app.errors import Unavailable
from stream_app.metrics.http_guard import refusal
from stream_app.metrics.instruments import Metrics
from stream_app.settings import MetricsSettings

# The text format that every Prometheus reads.
_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_STOP_S = 0.5  # a scrape that is under way at a stop may end; a worker stops within 5 s

# What is not ready, in words; empty if all is.
Unready = Callable[[], list[str]]


@asynccontextmanager
async def serving(
    settings: MetricsSettings, metrics: Metrics, unready: Unready
) -> AsyncIterator[None]:
    """Answers while it is open; with port 0 there is no endpoint. Raises Unavailable."""
    if settings.port == 0:
        yield
        return
    runner = web.AppRunner(
        _pages(settings.host, metrics, unready), access_log=None, shutdown_timeout=_STOP_S
    )
    await runner.setup()
    try:
        await _listen(runner, settings)
        yield
    finally:
        await runner.cleanup()


async def _listen(runner: web.AppRunner, settings: MetricsSettings) -> None:
    try:
        await web.TCPSite(runner, settings.host, settings.port).start()
    except OSError as error:
        raise Unavailable(
            f"metrics.port = {settings.port}: cannot listen on {settings.host}: "
            f"{(error.strerror or str(error)).lower()}; choose another with --metrics-port, or "
            "none with --metrics-port 0"
        ) from None


def _pages(host: str, metrics: Metrics, unready: Unready) -> web.Application:
    @web.middleware
    async def guard(request: web.Request, handler: Any) -> web.StreamResponse:
        refused = refusal(request, host, "metrics")
        if refused is not None:
            status, reason = refused
            return web.json_response({"error": reason}, status=status)
        answer: web.StreamResponse = await handler(request)
        return answer

    async def expose(_request: web.Request) -> web.Response:
        metrics.ready.set(not unready())
        return web.Response(body=metrics.expose(), headers={"Content-Type": _TEXT})

    async def health(_request: web.Request) -> web.Response:
        return web.json_response({"alive": True})

    async def ready(_request: web.Request) -> web.Response:
        reasons = unready()
        return web.json_response(
            {"ready": not reasons, "waiting_for": reasons}, status=503 if reasons else 200
        )

    app = web.Application(middlewares=[guard])
    app.router.add_get("/metrics", expose)
    app.router.add_get("/healthz", health)
    app.router.add_get("/readyz", ready)
    return app
