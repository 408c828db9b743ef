"""`demo-web`: a shop page on the gateway, the local Kafka behind it, visitors in the background."""

import asyncio
import contextlib
import dataclasses
import logging
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import orjson

import producers.web
from producers.simulated_users import run_users
from stream_app import kafka, registry
from stream_app.commands.output import console
from stream_app.definitions import resolve
from stream_app.errors import Unavailable
from stream_app.gateway import Gateway
from stream_app.local.broker import LocalBroker
from stream_app.local.processes import complaints, end, supervised
from stream_app.monitor.reader import following
from stream_app.monitor.view import View
from stream_app.settings import KafkaSettings, Settings

NAME = "shop"
_SHOP: dict[str, Any] = {
    "name": NAME,
    "arms": ["spring", "summer", "winter"],
    "attribution_s": 5,
    "privacy": {"epsilon": 1, "delta": 1e-6},
    "agent": {"order": "interleaved"},
    "simulation": {"means": [0.45, 0.6, 0.3]},
}
_FILES = Path(producers.web.__file__).parent
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
    with LocalBroker() as broker, tempfile.TemporaryDirectory() as folder:
        settings = _settings(broker.bootstrap, port)
        asyncio.run(kafka.create_topics(settings.kafka, 4, 1))
        log = Path(folder) / "service.log"
        command = [sys.executable, "-m", "stream_app", "run", "--roles", "shuffle,agent"]
        service = supervised(
            [*command, "--metrics-port", "0", "--bootstrap", broker.bootstrap], log
        )
        try:
            asyncio.run(registry.create(settings.kafka, experiment))
            asyncio.run(_serve(settings, rate))
        except KeyboardInterrupt:
            console().print("stopped")
        finally:
            if service.poll() is not None:
                raise Unavailable(f"the service ended by itself: {complaints(log)[-1]}")
            end(service, 5)


def _settings(bootstrap: str, port: int) -> Settings:
    settings = Settings(kafka=KafkaSettings(bootstrap=bootstrap))
    origins = f"http://localhost:{port} http://127.0.0.1:{port}"
    return dataclasses.replace(
        settings, gateway=dataclasses.replace(settings.gateway, port=port, origins=origins)
    )


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
        await asyncio.sleep(1)


def pages(view: View) -> Mapping[str, Any]:
    """The shop's files, and the live view."""

    def read(content_type: str, name: str) -> Any:
        return lambda: (content_type, (_FILES / name).read_bytes())

    def shown() -> tuple[str, bytes]:
        return "application/json", orjson.dumps(view.snapshot(NAME))

    files = {path: read(*entry) for path, entry in _PAGES.items()}
    return {**files, "/demo/view.json": shown}
