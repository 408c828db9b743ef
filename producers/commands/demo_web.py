"""`demo-web`: a shop page on the gateway, the local Kafka behind it, visitors in the background."""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import orjson

import producers.web
from producers.simulated_users import run_users
from stream_app import registry
from stream_app.commands.output import console
from stream_app.definitions import resolve
from stream_app.errors import Unavailable
from stream_app.gateway import Gateway
from stream_app.local.stack import local_stack, on_free_ports
from stream_app.monitor.reader import following
from stream_app.monitor.view import View
from stream_app.settings import GatewaySettings, Settings

NAME = "shop"  # shop.js has it too
# Rates that differ so much that a visitor sees the decision within some minutes.
_SHOP: dict[str, Any] = {
    "name": NAME,
    "arms": ["spring", "summer", "winter"],
    "attribution_s": 5,
    "privacy": {"epsilon": 1, "delta": 1e-6},
    "agent": {"order": "interleaved"},
    "simulation": {"means": [0.45, 0.6, 0.3]},
}
# A visitor who finds no Kafka tries again, as a person would.
_RETRY_S = 1.0
# Read at each request: whoever works on the page reloads it.
_FILES = Path(producers.web.__file__).parent
# The paths are those that the page's own links have.
_PAGES = {
    "/": ("text/html", "demo/index.html"),
    "/demo/shop.js": ("text/javascript", "demo/shop.js"),
    "/shufflebandit.js": ("text/javascript", "shufflebandit.js"),
}


@click.command("demo-web")
@click.option("--port", type=click.IntRange(1, 65535), default=8080, show_default=True)
@click.option(
    "--rate", type=float, default=40, show_default=True, help="Simulated visitors a second."
)
@click.option("--horizon", type=click.IntRange(1000), default=20_000, show_default=True)
def demo_web(port: int, rate: float, horizon: int) -> None:
    """Serve a shop page to try: the browser adds the noise. Until Ctrl-C."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    experiment = resolve({**_SHOP, "horizon": horizon}, "demo-web")
    with local_stack(_settings(port), "shuffle,agent") as stack:
        asyncio.run(registry.create(stack.settings.kafka, experiment))
        try:
            asyncio.run(_serve(stack.settings, rate))
        except KeyboardInterrupt:
            console().print("stopped")
        stack.worker.check()


def _settings(port: int) -> Settings:
    origins = f"http://localhost:{port} http://127.0.0.1:{port}"
    return on_free_ports(Settings(gateway=GatewaySettings(port=port, origins=origins)))


async def _serve(settings: Settings, rate: float) -> None:
    view = View()
    stop = asyncio.Event()
    gateway = Gateway(settings, pages(view))
    url = f"http://localhost:{settings.gateway.port}/"
    async with following(settings.kafka, view):
        serving = asyncio.ensure_future(gateway.run(stop))
        visitors = asyncio.ensure_future(_visitors(settings, rate))
        console().print(f"open {url}   (Ctrl-C ends it)")
        try:
            await serving
        except OSError as error:
            raise Unavailable(f"--port: cannot listen: {error.strerror}; choose another") from None
        finally:
            stop.set()
            visitors.cancel()
            await asyncio.gather(serving, visitors, return_exceptions=True)


async def _visitors(settings: Settings, rate: float) -> None:
    while True:
        with contextlib.suppress(Unavailable):
            outcome = await run_users(settings, NAME, rate=rate)
            console().print(f"the experiment has ended: {outcome.status}, serves {outcome.serve}")
            return
        await asyncio.sleep(_RETRY_S)


def pages(view: View) -> Mapping[str, Any]:
    """The shop's files, and the live view."""

    def read(content_type: str, name: str) -> Any:
        return lambda: (content_type, (_FILES / name).read_bytes())

    def shown() -> tuple[str, bytes]:
        return "application/json", orjson.dumps(view.snapshot(NAME))

    files = {path: read(*entry) for path, entry in _PAGES.items()}
    return {**files, "/demo/view.json": shown}
