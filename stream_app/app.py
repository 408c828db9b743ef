"""The service: a faust application around the stages, built from settings and roles.

The only file that knows faust (and mode, the library of services below it).

What faust does for us:
- the worker's life: parts are its services, started in order, stopped side by side; a part that
  fails crashes the worker, which then ends with an exit code that a supervisor sees;
- the monitor: its agents take the public records from channels and keep the view, its web server
  carries the pages.

What is switched off, and why:
- *its Kafka connection* (`_Boot`): its consumer needs a group, reads uncommitted records, and could
  not be stopped while Kafka was unreachable (measured: it hung for more than 60 s). Its
  `exactly_once` wrote 900 of 900 records twice after a SIGKILL, and its agents acknowledge a record
  on which they raised. The stages run in `runtime`, and the monitor's records come through
  channels (`monitor.reader`);
- *its sensors* (`_Boot`): they measure streams that we do not have, once for every event;
- *its settings from the environment* (`_Options`): WEB_PORT and the like would override ours;
- *tables, leader election, topic declaration, its own pages and folders*: nothing uses them;
- *its signal handlers, banner, log set-up* (`_Worker`): `serve` has its own, so that a stop takes
  5 s at most and errors are one line.

Its private parts that are used: `web._runner`, since its web server waits 60 s for open requests.
"""

import asyncio
import gc
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterable, Mapping
from enum import StrEnum
from itertools import chain
from typing import Any, Protocol

import faust
import mode
import uvloop
from faust.app import BootStrategy
from faust.web.base import BlueprintManager

from stream_app import agent, gateway, kafka, logs, shuffler
from stream_app.errors import Unavailable
from stream_app.logs import log
from stream_app.metrics import endpoint
from stream_app.metrics.experiments import ExperimentCollector
from stream_app.metrics.instruments import Metrics
from stream_app.monitor import pages, server
from stream_app.monitor.reader import Reader, takers
from stream_app.monitor.transcript import Transcript
from stream_app.monitor.view import View
from stream_app.settings import GatewaySettings, MonitorSettings, Settings

# A stop takes 5 s at most: so long for the stages, then for the rest, then by force. Nothing is
# lost by force: what matters is in Kafka's log.
STAGE_STOP_S = 4.2
STOP_S = 4.7
# Of the services: their own starts and stops are no news.
_QUIET = logging.getLogger("mode.part")


class Role(StrEnum):
    """What a worker does."""

    SHUFFLE = "shuffle"
    AGENT = "agent"
    MONITOR = "monitor"
    GATEWAY = "gateway"


# The topics that a role must be able to see.
_TOPICS: dict[Role, frozenset[str]] = {
    Role.SHUFFLE: frozenset({"assignments", "reports", "sums", "windows"}),
    Role.AGENT: frozenset({"assignments", "experiments", "sums"}),
    Role.MONITOR: frozenset({"assignments", "sums"}),
    Role.GATEWAY: frozenset({"assignments", "reports", "held"}),
}


class Runs(Protocol):
    """Something that runs until it is told to stop."""

    async def run(self, stop: asyncio.Event, /) -> None:
        """Returns soon after `stop` is set; whatever it raises is a bug."""

    def unready(self) -> str:
        """What it waits for, in words; empty while it does its work."""


class Part(mode.Service):
    """One part of the worker; if it fails or ends by itself, the whole worker ends.

    All parts of a worker share `stop`, so that they end side by side.
    """

    logger = _QUIET

    def __init__(self, name: str, runs: Runs, stop: asyncio.Event) -> None:
        super().__init__()
        self.name = name
        self._runs = runs
        self._stop = stop

    async def on_start(self) -> None:
        """Begin to run."""
        self._work = asyncio.ensure_future(self._runs.run(self._stop))

    def unready(self) -> str:
        """What it waits for, in words; empty while it does its work."""
        return self._runs.unready()

    @mode.Service.task
    async def _watch(self) -> None:
        await asyncio.wait({self._work})
        if not self._stop.is_set():
            error = self._work.exception() or RuntimeError("ended by itself")
            log.critical("%s: failed, the worker stops: %s", self.name, logs.describe(error))
            await self.crash(error)

    async def on_stop(self) -> None:
        """Tell it to stop, wait, and cut it off if it does not."""
        self._stop.set()
        if self.started:
            await asyncio.wait({self._work}, timeout=STAGE_STOP_S)
            self._work.cancel()


class _Boot(BootStrategy):
    """Agents and web server only."""

    enable_kafka = False
    enable_sensors = False


class _Options(faust.Settings):
    """faust's settings as they are given here: its variables (WEB_PORT) would override them."""

    def getenv(self, env_name: str) -> Any:
        """Nothing comes from the environment."""


class App(faust.App):
    """A faust application of parts, without Kafka, tables, folders and variables of its own."""

    BootStrategy = _Boot
    Settings = _Options
    logger = _QUIET
    parts: tuple[Part, ...] = ()

    def runs(self, runs: Mapping[Role, Runs]) -> None:
        """What it runs, by role."""
        stop = asyncio.Event()
        self.parts = tuple(Part(str(role), part, stop) for role, part in runs.items())

    def unready(self) -> list[str]:
        """What its parts wait for, in words; empty while all do their work."""
        return [waiting for part in self.parts if (waiting := part.unready())]

    def on_init_dependencies(self) -> Iterable[Any]:
        """The parts start last, when the agents listen, and stop first."""
        return chain(super().on_init_dependencies(), self.parts)

    async def on_first_start(self) -> None:
        """There are no tables, so no folders are made for them."""

    async def on_start(self) -> None:
        """Let the agents' channels flow: faust waits for its tables first, and there are none."""
        await super().on_start()
        self.flow_control.resume()


def build(settings: Settings, roles: frozenset[Role], metrics: Metrics | None = None) -> App:
    """The application for these roles. Needs a running event loop."""
    metrics = metrics or Metrics()
    app = App(
        "shufflebandit",
        autodiscover=False,
        topic_disable_leader=True,
        topic_allow_declare=False,
        store="memory://",
        web_enabled=Role.MONITOR in roles,
        web_bind=settings.monitor.host,
        web_host=settings.monitor.host,
        web_port=settings.monitor.port,
    )
    runs: dict[Role, Runs] = {}
    if Role.SHUFFLE in roles:
        runs[Role.SHUFFLE] = shuffler.make_runner(settings, metrics)
    if Role.AGENT in roles:
        runs[Role.AGENT] = agent.make_runner(settings, metrics)
    if Role.MONITOR in roles:
        runs[Role.MONITOR] = _monitor(app, settings, metrics)
    if Role.GATEWAY in roles:
        runs[Role.GATEWAY] = gateway.make_runner(settings, metrics)
    app.runs(runs)
    return app


def _monitor(app: App, settings: Settings, metrics: Metrics) -> Runs:
    view = View(reports_retained=settings.shuffle.retain_reports_for_audit)
    metrics.registry.register(ExperimentCollector(view, settings.metrics))
    reader = Reader(settings.kafka, _channels(app, view))
    # Without faust's own pages (router, tables), and without its wait of 60 s for open requests.
    web: Any = app.web
    web.blueprints = BlueprintManager()
    web._runner = server.WebRunner(web.web_app, settings.monitor)
    pages.install(web.web_app, view, reader, Transcript(settings.kafka), settings.monitor)
    return reader


def _channels(app: App, view: View) -> dict[str, Any]:
    """A channel for each public topic, and an agent behind it that keeps the view."""
    channels = {}
    for topic, take in takers(view).items():
        channels[topic] = channel = app.channel()

        async def agent(stream: Any, take: Any = take) -> None:
            async for records in stream:
                take(records)

        app.agent(channel, name=topic)(agent)
    return channels


class _Worker(faust.Worker):
    """faust's worker without its signal handlers, banner and logging."""

    def __init__(self, app: App) -> None:
        super().__init__(app, quiet=True, override_logging=False, redirect_stdouts=False)
        self.spinner = None
        self._parts = app.parts

    def install_signal_handlers(self) -> None:
        """`serve` has its own."""

    async def on_startup_finished(self) -> None:
        """All parts run."""
        log.info("running: %s", ", ".join(part.name for part in self._parts))


def check_port(settings: MonitorSettings | GatewaySettings) -> None:
    """Raises Unavailable if the monitor or the gateway could not listen."""
    section = "gateway"
    remedy = "choose another in the settings, gateway.port"
    if isinstance(settings, MonitorSettings):
        section = "monitor"
        remedy = (
            "choose another with --web-port, or run without the monitor role: --roles shuffle,agent"
        )
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
        except OSError as error:
            raise Unavailable(
                f"{section}.port = {settings.port}: cannot listen on {settings.host}: "
                f"{error.strerror}; {remedy}"
            ) from None


def collect_rarely() -> None:
    """Let Python look for cycles of dead objects less often.

    Each fetch makes thousands of records that live for a moment: with the usual threshold of 700
    objects the search takes a quarter of the time that reading them takes.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def serve(settings: Settings, roles: frozenset[Role]) -> int:
    """Run a worker until SIGTERM or SIGINT; returns the exit code. Raises if it cannot start."""
    logs.setup()
    if Role.MONITOR in roles:
        check_port(settings.monitor)
    if Role.GATEWAY in roles:
        check_port(settings.gateway)
    collect_rarely()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(settings, roles))


async def _serve(settings: Settings, roles: frozenset[Role]) -> int:
    asked = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, asked.set)
    stop = asyncio.ensure_future(asked.wait())
    metrics = Metrics()
    app = build(settings, roles, metrics)
    async with endpoint.serving(settings.metrics, metrics, app.unready):
        return await _serve_app(app, settings, roles, stop)


async def _serve_app(
    app: App, settings: Settings, roles: frozenset[Role], stop: asyncio.Future[Any]
) -> int:
    topics = sorted(frozenset().union(*(_TOPICS[role] for role in roles)))
    check = asyncio.ensure_future(kafka.partition_count(settings.kafka, topics))
    await asyncio.wait({check, stop}, return_when=asyncio.FIRST_COMPLETED)
    if not check.done():
        check.cancel()
        return 0
    check.result()
    return await run_worker(app, stop)


async def run_worker(app: App, stop: asyncio.Future[Any]) -> int:
    """Run the application until `stop` is done or a part fails; returns the exit code."""
    worker = _Worker(app)
    start = asyncio.ensure_future(worker.start())
    await asyncio.wait({start, stop}, return_when=asyncio.FIRST_COMPLETED)
    code = 1 if start.done() else 0
    force = threading.Timer(STOP_S, os._exit, (code,))
    force.daemon = True
    force.start()
    if code == 0:
        log.info("stopping")
    await worker.stop()
    if start.done():
        start.result()
    start.cancel()
    return code
