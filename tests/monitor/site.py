"""A monitor's web server without Kafka: a view that a test fills, served from a thread."""

import asyncio
import dataclasses
import random
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import Future
from typing import Any

from aiohttp import web

from stream_app.core.agents import agent_for
from stream_app.core.experiment import Experiment
from stream_app.core.state import State
from stream_app.core.window import LogPosition, Release
from stream_app.definitions import resolve
from stream_app.errors import Unavailable
from stream_app.local.broker import free_port
from stream_app.monitor.events import Streams
from stream_app.monitor.pages import install
from stream_app.monitor.server import WebRunner
from stream_app.monitor.view import View
from stream_app.settings import MonitorSettings
from stream_app.wire.assignment import Assignment, terms_of
from stream_app.wire.sum import encode_sum

ARMS = ("spring", "summer", "autumn", "winter", "plain")
MEANS = (0.75, 0.70, 0.60, 0.60, 0.60)


def demo(name: str = "demo", arms: tuple[str, ...] = ARMS, **changes: Any) -> Experiment:
    """Five banners, as in `shufflebandit demo`."""
    raw = {
        "name": name,
        "arms": list(arms),
        "horizon": changes.pop("horizon", 100_000),
        "attribution_s": 0,
        "privacy": {"epsilon": 0.5, "delta": 1e-6},
        "agent": {"preset": "optimal", "order": "interleaved", **changes},
        "simulation": {"means": MEANS[: len(arms)]},
    }
    return resolve(raw, name)


class ScriptedRun:
    """An experiment as both stages would write it, one released batch at a time."""

    def __init__(self, experiment: Experiment, seed: int = 3) -> None:
        self.experiment = experiment
        self._source = random.Random(seed)
        self._agent = agent_for(experiment)
        self.state: State = self._agent.begin()

    def assignment(self) -> bytes:
        return Assignment(self.experiment, self.state).encode()

    def steps(self) -> Iterator[tuple[bytes, bytes]]:
        """Sum and assignment of each batch until the experiment ends."""
        assert self.experiment.simulation is not None
        means = self.experiment.simulation.means
        while self.state.open:
            batch = self.state.open[0]
            terms = terms_of(self.experiment, batch)
            mean = means[batch.arm] * batch.size
            deviation = (batch.size * 0.2) ** 0.5
            wanted = self._source.gauss(mean, deviation)
            # Both mechanisms take off the same amount from every total.
            total = round(wanted - terms.mechanism.debias(0))
            release = Release(
                terms.batch_id, terms, total, "00", LogPosition(0, 1), LogPosition(9, 2)
            )
            estimate = terms.mechanism.debias(total)
            self.state = self._agent.fold(self.state, batch.sequence, estimate)
            yield encode_sum(release), self.assignment()

    def stop(self) -> bytes:
        self.state = self._agent.stop(self.state)
        return self.assignment()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def feed(view: View, run: ScriptedRun, batches: int = 1_000) -> None:
    """The next batches, to a view."""
    view.assignment(run.assignment())
    for (value, assignment), _ in zip(run.steps(), range(batches), strict=False):
        view.sum(value, now_ms())
        view.assignment(assignment)


@dataclasses.dataclass
class FakeHealth:
    connected: bool = True


class FakeSums:
    """A transcript from memory; None stands for an unreachable Kafka."""

    def __init__(self, *chunks: bytes | None) -> None:
        self.chunks = chunks
        self.asked = list[tuple[str, int | None]]()
        self.closed = 0

    async def lines(self, name: str, start: int | None) -> AsyncGenerator[bytes, None]:
        self.asked.append((name, start))
        try:
            for chunk in self.chunks:
                if chunk is None:
                    raise Unavailable("kafka.bootstrap = 'here': no Kafka answers there")
                yield chunk
        finally:
            self.closed += 1


class MonitorSite:
    """A running server; `start` after `stop` takes the same port again."""

    def __init__(self, **changes: Any) -> None:
        self.settings = MonitorSettings(port=free_port(), **changes)
        self.view = View()
        self.health = FakeHealth()
        self.sums = FakeSums(b'{"offset":0}\n')
        self.streams: Streams
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._runner: WebRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.settings.port}"

    def start(self) -> "MonitorSite":
        self._call(self._start()).result(10)
        return self

    async def _start(self) -> None:
        app = web.Application()
        self._runner = WebRunner(app, self.settings)
        self.streams = install(app, self.view, self.health, self.sums, self.settings)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.settings.port).start()

    def stop(self) -> None:
        if self._runner is not None:
            self._call(self._runner.cleanup()).result(10)
        self._runner = None

    def close(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def do(self, change: Callable[..., Any], *arguments: Any) -> Any:
        """Call something in the server's loop."""

        async def call() -> Any:
            return change(*arguments)

        return self._call(call()).result(30)

    def _call(self, work: Any) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)
