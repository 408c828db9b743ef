"""The whole service on this machine: a broker, its topics, and workers as an operator runs them.

For `demo`, `demo-web`, `observe` and the tests, none of which starts it in a way of its own. Users
are not in it: they embed the client, which is no part of the service. Everything here blocks.
"""

import asyncio
import contextlib
import dataclasses
import os
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from stream_app import kafka
from stream_app.errors import Unavailable
from stream_app.local.broker import LocalBroker, free_port
from stream_app.local.processes import Program, complaints
from stream_app.settings import Settings

# More than one, so that partitions are shared out as in production; few, so that a start is quick.
PARTITIONS: Final = 4
# 2 s on an idle machine; a crowded one only needs longer.
READY_S: Final = 60.0
# How often readiness is asked for: short against a start.
_ASK_EVERY_S: Final = 0.05


def environment(settings: Settings) -> dict[str, str]:
    """This process's environment with all of the settings, for a process that must have the same.

    All are set, so that no variable of this process comes in between.
    """
    given = {
        f"SHUFFLEBANDIT_{section.name}_{option.name}".upper(): str(
            getattr(getattr(settings, section.name), option.name)
        )
        for section in dataclasses.fields(settings)
        for option in dataclasses.fields(getattr(settings, section.name))
    }
    return {**os.environ, **given}


class WorkerProcess(Program):
    """`shufflebandit run` with these settings and roles ("shuffle,agent")."""

    def __init__(self, settings: Settings, roles: str, log: Path) -> None:
        self._metrics = settings.metrics
        super().__init__(
            "the service",
            [sys.executable, "-m", "stream_app", "run", "--roles", roles],
            log,
            # Where this process runs: the worker must find the same code and the same files.
            folder=Path.cwd(),
            environment=environment(settings),
        )

    def ready(self) -> bool:
        """Whether it says of itself that it does its work; it needs its metrics' port for that."""
        url = f"http://{self._metrics.host}:{self._metrics.port}/readyz"
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=20):
            return True
        return False

    def await_ready(self, limit_s: float = READY_S) -> None:
        """Returns once it is ready. Raises Unavailable if it ends, or is not in time."""
        deadline = time.monotonic() + limit_s
        while not self.ready():
            self.check()
            if time.monotonic() > deadline:
                said = complaints(self.log)[-1]
                raise Unavailable(f"{self.name} is not ready after {limit_s:.0f} s: {said}")
            time.sleep(_ASK_EVERY_S)


@contextlib.contextmanager
def workers(settings: Settings, folder: Path, *roles: str) -> Iterator[list[WorkerProcess]]:
    """Workers with these roles, their logs in a folder; whatever happens, they end.

    They are killed: exactly once holds across that, and nobody waits.
    """
    with contextlib.ExitStack() as ends:
        started = [
            ends.enter_context(WorkerProcess(settings, role, folder / f"worker{number}.log"))
            for number, role in enumerate(roles)
        ]
        yield started


@dataclasses.dataclass(frozen=True, slots=True)
class Stack:
    """A running service: the settings that lead to it, its worker, and a folder for more logs."""

    settings: Settings
    worker: WorkerProcess
    folder: Path


@contextlib.contextmanager
def local_stack(
    settings: Settings,
    roles: str = "shuffle,agent,monitor",
    partitions: int = PARTITIONS,
    starting: Callable[[str], None] = lambda part: None,
) -> Iterator[Stack]:
    """A broker of its own, topics, and a worker that is ready; nothing is left at the end.

    `settings` are those of the worker but for the broker's address. `starting` is told each part.
    """
    starting("local Kafka")
    with LocalBroker() as broker, tempfile.TemporaryDirectory() as name:
        reached = dataclasses.replace(settings.kafka, bootstrap=broker.bootstrap)
        settings = dataclasses.replace(settings, kafka=reached)
        starting("topics")
        asyncio.run(kafka.create_topics(settings.kafka, partitions, 1))
        starting("service")
        folder = Path(name)
        with workers(settings, folder, roles) as (worker,):
            worker.await_ready()
            yield Stack(settings, worker, folder)


def on_free_ports(settings: Settings) -> Settings:
    """The settings with the monitor and the metrics on ports that are free just now."""
    page = free_port()
    return dataclasses.replace(
        settings,
        monitor=dataclasses.replace(settings.monitor, port=page),
        metrics=dataclasses.replace(settings.metrics, port=free_port(page)),
    )
