"""Logs, experiments and a service without Kafka for the tests of the replay."""

import asyncio
import csv
import gzip
import json
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from producers.replay.columns import Columns
from producers.replay.files import Source
from producers.replay.log import LoggedRows, TrafficLog
from producers.replay.log_format import LogFormat
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
ROWS = [
    ("a", "1", "2024-01-01 10:00:00", "u1", "0.5"),
    ("b", "no", "2024-01-01T10:00:01Z", "u2", "0.25"),
    ("c", "0.25", "2024-01-02", "u1", "0.25"),
    ("a", "TRUE", "1704189600", "u3", "1"),
]
NAMES = ("arm", "reward", "time", "user", "p")
ALL = Columns("arm", "reward", "time", None, "p")
# What `read` makes of them.
EXPECTED = (
    [0, 1, 2, 0],
    [1, 0, 0.25, 1],
    [1704103200.0, 1704103201.0, 1704153600.0, 1704189600.0],
    [0.5, 0.25, 0.25, 1],
)


def experiment(arms: Sequence[str] = ("a", "b", "c"), **changes: Any) -> Experiment:
    """Three arms at (1, 1e-6), decisions with high probability."""
    raw = {
        "name": changes.pop("name", "log"),
        "arms": list(arms),
        "horizon": changes.pop("horizon", 20_000),
        "attribution_s": 0,
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
    form: LogFormat | None = None,
    arms: Sequence[str] | None = ("a", "b", "c"),
) -> TrafficLog:
    sources = [Source(path, path.name) for path in paths]
    return TrafficLog(sources, columns or Columns(), form, arms)


def read(found: TrafficLog) -> tuple[list[int], list[float], list[float], list[float]]:
    arms: list[int] = []
    rewards: list[float] = []
    times: list[float] = []
    chances: list[float] = []
    for chunk in found.chunks():
        arms += chunk.arms.tolist()
        rewards += chunk.rewards.tolist()
        times += chunk.times.tolist() if chunk.times is not None else []
        chances += chunk.propensities.tolist() if chunk.propensities is not None else []
    return arms, rewards, times, chances


def written(folder: Path, kind: str) -> Path:
    """The same rows in a format, perhaps compressed."""
    form, _, packed = kind.partition(".")
    path = folder / f"log.{form}"
    if form == "csv":
        write(path, NAMES, ROWS)
    elif form == "jsonl":
        path.write_text("\n".join(json.dumps(dict(zip(NAMES, r, strict=True))) for r in ROWS))
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table(dict(zip(NAMES, zip(*ROWS, strict=True), strict=True))), path)
    if packed == "gz":
        path = _packed(path, gzip.compress(path.read_bytes()), ".gz")
    elif packed == "zst":
        import zstandard

        path = _packed(path, zstandard.ZstdCompressor().compress(path.read_bytes()), ".zst")
    return path


def _packed(path: Path, content: bytes, ending: str) -> Path:
    packed = path.with_name(path.name + ending)
    packed.write_bytes(content)
    return packed


def drawn(seed: int, rows: int, means: Sequence[float], size: int = 10_000) -> Iterator[LoggedRows]:
    """A uniform log with these means, in chunks."""
    rng = np.random.default_rng(seed)
    for start in range(0, rows, size):
        count = min(size, rows - start)
        arms = rng.integers(0, len(means), count).astype(np.int16)
        rewards = (rng.random(count) < np.array(means)[arms]).astype(np.float64)
        yield LoggedRows(start, arms, rewards)


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
