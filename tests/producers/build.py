"""Assignments and a transport without Kafka, for the client. Nothing here is under test."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import orjson

from producers.client_state import ClientState
from producers.store import Budget, MemoryStore, Store
from producers.transport import Acknowledged
from stream_app.core.agents import agent_for
from stream_app.core.experiment import Experiment
from stream_app.core.state import State
from stream_app.core.terms import Limits, batch_id
from stream_app.errors import Unavailable
from stream_app.kafka.record_batches import Rows
from stream_app.wire.assignment import Assignment
from stream_app.wire.report import decode_report
from tests.core.build import experiment

NAME = "test"


def banners(name: str = NAME, *, attribution_s: str = "0", **changes: Any) -> Experiment:
    """A small experiment."""
    made = experiment(honest="0.9", horizon=100_000, **changes)
    return replace(made, name=name, attribution_s=Decimal(attribution_s))


def assignment(of: Experiment | None = None, state: State | None = None) -> bytes:
    """The record of an experiment's state, the first by default."""
    of = of or banners()
    return Assignment(of, state or agent_for(of).begin()).encode()


def changed(value: bytes, change: Callable[[dict[str, Any]], None], *, rehash: bool) -> bytes:
    """An assignment whose terms were changed as a malicious agent would."""
    raw = orjson.loads(value)
    for entry in raw["open"]:
        change(entry["terms"])
        if rehash:
            entry["batch"] = batch_id(entry["terms"])
    return orjson.dumps(raw)


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


def split(parts: Iterable[Rows]) -> list[bytes]:
    """The reports that a transport is given."""
    return [row.tobytes() for rows in parts for row in rows]


class FakeTransport:
    """Kafka, as far as a client sees it."""

    def __init__(self, *values: bytes) -> None:
        self.values: asyncio.Queue[bytes | None] = asyncio.Queue()
        for value in values:
            self.values.put_nowait(value)
        self.attempts: list[list[bytes]] = []
        self.sent: list[bytes] = []
        self.unreachable = False
        self.fails_after: int | None = None  # parts of one sending

    async def open(self) -> None:
        """Nothing to connect."""

    async def follow(self) -> AsyncIterator[bytes | None]:
        """What the test puts."""
        while True:
            yield await self.values.get()

    async def send(self, parts: Iterable[Rows], acknowledged: Acknowledged) -> None:
        """Take reports, unless unreachable."""
        values = [split([part]) for part in parts]
        self.attempts.append([value for part in values for value in part])
        for number, part in enumerate(values):
            if self.unreachable or number == self.fails_after:
                self.fails_after = None
                raise Unavailable("kafka.bootstrap: no Kafka answers there")
            self.sent.extend(part)
            acknowledged(len(part))

    async def close(self) -> None:
        """Nothing to disconnect."""

    @property
    def ones(self) -> list[int]:
        """What the reports say."""
        return [decode_report(value)[2] for value in self.sent]


def state(
    *values: bytes,
    store: Store | None = None,
    limits: Limits | None = None,
    budget: Budget | None = None,
    clock: Callable[[], int] | None = None,
    max_waiting: int = 1000,
    name: str = NAME,
) -> ClientState:
    """A state that has followed these assignments, whatever their window."""
    made = ClientState(
        name, limits or Limits(), store or MemoryStore(), budget or Budget(), max_waiting,
        clock or Clock(),
    )  # fmt: skip
    made.attach()
    for value in values:
        made.follow(value)
    return made
