"""Logs, experiments and a service without Kafka for the tests of the replay."""

import asyncio
import csv
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from producers.replay.columns import Columns, Format
from producers.replay.files import Source
from producers.replay.log import Chunk, Log
from stream_app.core.agents import agent_for
from stream_app.core.experiment import Experiment
from stream_app.core.state import Status
from stream_app.core.window import Window, open_window
from stream_app.definitions import resolve
from stream_app.errors import Unavailable
from stream_app.kafka.record_batches import Rows
from stream_app.wire.assignment import Assignment, terms_of
from stream_app.wire.report import decode_report
from stream_app.wire.sum import decode_sum, encode_sum
from tests.producers.build import split

KEY = bytes(range(32))


def experiment(arms: Sequence[str] = ("a", "b", "c"), **changes: Any) -> Experiment:
    """Three arms at (1, 1e-6), decisions with high probability."""
    raw = {
        "name": changes.pop("name", "log"),
        "arms": list(arms),
        "horizon": changes.pop("horizon", 20_000),
        "privacy": {"epsilon": changes.pop("epsilon", 1), "delta": 1e-6},
        "agent": {"preset": "optimal", "guarantee": "high-probability", **changes},
    }
    return resolve(raw, "test")


def write(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def log(
    *paths: Path,
    columns: Columns | None = None,
    form: Format = Format.AUTO,
    arms: Sequence[str] | None = ("a", "b", "c"),
) -> Log:
    sources = [Source(path, path.name) for path in paths]
    return Log(sources, columns or Columns(), form, arms)


def drawn(seed: int, rows: int, means: Sequence[float], size: int = 10_000) -> Iterator[Chunk]:
    """A uniform log with these means, in chunks."""
    rng = np.random.default_rng(seed)
    for start in range(0, rows, size):
        count = min(size, rows - start)
        arms = rng.integers(0, len(means), count).astype(np.int16)
        rewards = (rng.random(count) < np.array(means)[arms]).astype(np.float64)
        yield Chunk(start, arms, rewards)


def write_drawn(path: Path, seed: int, rows: int, means: Sequence[float]) -> Path:
    """The same as a CSV file."""
    names = [chr(ord("a") + i) for i in range(len(means))]
    lines = [
        (names[arm], int(reward))
        for chunk in drawn(seed, rows, means)
        for arm, reward in zip(chunk.arms.tolist(), chunk.rewards.tolist(), strict=True)
    ]
    return write(path, ("arm", "reward"), lines)


class Service:
    """Both stages in memory, behind a client's transport; `dies_after` reports it is cut."""

    def __init__(self, definition: Experiment) -> None:
        self.experiment = definition
        self.agent = agent_for(definition)
        self.state = self.agent.begin()
        self.windows: dict[str, Window] = {}
        self.duplicates = self.late = 0
        self.dies_after: int | None = None
        self.silent = False
        self._news = asyncio.Event()
        self._open()

    def _open(self) -> None:
        listed = {}
        for batch in self.state.open:
            terms = terms_of(self.experiment, batch)
            listed[terms.batch_id] = self.windows.get(terms.batch_id) or open_window(
                terms.batch_id, terms
            )
        self.windows = listed

    async def open(self) -> None:
        """Nothing to connect."""

    async def close(self) -> None:
        """Nothing to disconnect."""

    async def follow(self) -> AsyncIterator[bytes | None]:
        while True:
            if not self.silent:
                yield Assignment(self.experiment, self.state).encode()
            self._news = asyncio.Event()
            await self._news.wait()

    async def send(self, parts: Iterable[Rows]) -> None:
        for value in split(parts):
            if self.dies_after is not None:
                if self.dies_after == 0:
                    raise Unavailable("cut")
                self.dies_after -= 1
            self._accept(value)
        await asyncio.sleep(0)

    def _accept(self, value: bytes) -> None:
        batch_id, report_id, ones = decode_report(value)
        window = self.windows.get(batch_id)
        if window is None:
            self.late += 1
            return
        if window.accept(report_id, ones, 0, 0) is not None:
            self.duplicates += 1
        if window.full:
            released = decode_sum(encode_sum(window.release()))
            sequence = released.terms.sequence
            self.state = self.agent.fold(self.state, sequence, released.estimate)
            self._open()
            self._news.set()

    @property
    def ended(self) -> bool:
        return self.state.status is not Status.RUNNING


@contextmanager
def cut(service: Service, after: int) -> Iterator[None]:
    """The client loses its service after so many reports."""
    service.dies_after = after
    yield
    service.dies_after = None
