"""The monitor: a view over the public topics `assignments` and `sums`, and its web pages.

It shows what anybody may know who reads what the service releases; it never reads `reports` or
`windows`. Nothing depends on it: it may lose or repeat an event without harm, and keeps no state
outside its memory. `View` is pure; `Reader` and `attach` connect it to Kafka and to faust.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import faust
import orjson
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from stream_app import kafka
from stream_app.config import KafkaSettings
from stream_app.core.agents import Agent
from stream_app.core.terms import MAX_INTEGER, Terms
from stream_app.errors import ConfigurationError, InvalidInput, Unavailable
from stream_app.logs import log
from stream_app.messages import Assignment, decode_assignment, decode_sum

# Points of an arm's history; when there are more, every second one goes.
MAX_POINTS = 256
# Records of one fetch: the agents hold the event loop for about 0.2 ms each.
_CHUNK = 100
# Quiet for so long, Kafka is asked whether it is there, and must answer in the same time.
_PROBE_S = 3.0


@dataclass(slots=True)
class _Tally:
    """What the released sums of one arm say, over all epochs."""

    sequence: int = 0
    users: int = 0
    total: float = 0.0
    history: list[tuple[int, float]] = field(default_factory=list)

    @property
    def mean(self) -> float | None:
        return self.total / self.users if self.users else None

    def add(self, sequence: int, users: int, estimate: float) -> None:
        """One more sum; an arm's batches are released in order."""
        self.sequence = sequence
        self.users += users
        self.total += estimate
        self.history.append((self.users, self.total / self.users))
        if len(self.history) > MAX_POINTS:
            del self.history[1:-1:2]


@dataclass(slots=True)
class _Entry:
    """One experiment."""

    assignment: Assignment | None = None
    tallies: dict[str, _Tally] = field(default_factory=dict)
    sums: int = 0
    released_ms: int | None = None
    terms: Terms | None = None  # of the newest sum
    shown: dict[str, Any] | None = None  # the snapshot, until something changes


class View:
    """Per experiment the newest assignment and what its sums tell: O(k) and a bounded history."""

    def __init__(self) -> None:
        self.invalid = 0
        self._entries: dict[str, _Entry] = {}
        self._agent = lru_cache(maxsize=64)(Agent)

    def assignment(self, value: bytes | None) -> None:
        """Take a record of `assignments`; an invalid one is counted and skipped."""
        try:
            assignment = decode_assignment(value)
        except InvalidInput:
            self.invalid += 1
            return
        entry = self._entries.setdefault(assignment.experiment.name, _Entry())
        entry.assignment, entry.shown = assignment, None

    def sum(self, value: bytes | None, released_ms: int) -> None:
        """Take a record of `sums`; an invalid one is counted, one that is known is skipped."""
        try:
            found = decode_sum(value)
        except InvalidInput:
            self.invalid += 1
            return
        terms = found.terms
        entry = self._entries.setdefault(terms.experiment, _Entry())
        tally = entry.tallies.setdefault(terms.arm, _Tally())
        if terms.sequence <= tally.sequence:
            return
        tally.add(terms.sequence, terms.mechanism.promise.batch_size, found.estimate)
        entry.sums += 1
        entry.released_ms, entry.terms, entry.shown = released_ms, terms, None

    def experiments(self) -> list[dict[str, Any]]:
        """All experiments in short, by name."""
        return [
            {**_summary(entry.assignment), "last_release_ms": entry.released_ms}
            for _, entry in sorted(self._entries.items())
            if entry.assignment is not None
        ]

    def snapshot(self, name: str) -> dict[str, Any] | None:
        """All that is known of an experiment; None if there is no such experiment."""
        entry = self._entries.get(name)
        if entry is None or entry.assignment is None:
            return None
        if entry.shown is None:
            entry.shown = self._show(entry, entry.assignment)
        return entry.shown

    def _show(self, entry: _Entry, assignment: Assignment) -> dict[str, Any]:
        experiment, state = assignment.experiment, assignment.state
        tallies = [entry.tallies.get(arm, _Tally()) for arm in experiment.arms]
        means, intervals = self._estimates(assignment)
        arms = [
            {
                "name": arm,
                "viable": of_state.viable,
                "batches": of_state.batches,
                "users": of_state.users,
                "mean": mean,
                "lower": lower,
                "upper": upper,
                "history": tally.history,
            }
            for arm, of_state, mean, (lower, upper), tally in zip(
                experiment.arms, state.arms, means, intervals, tallies, strict=True
            )
        ]
        terms = assignment.terms(state.open[-1]) if state.open else entry.terms
        users = [max(a.users, t.users) for a, t in zip(state.arms, tallies, strict=True)]
        simulation = experiment.simulation
        return {
            **_summary(assignment),
            "preset": experiment.agent.preset,
            "guarantee": str(experiment.agent.guarantee),
            "arms": arms,
            "open": [{"arm": experiment.arms[b.arm], "size": b.size} for b in state.open],
            "epsilon": float(experiment.privacy.epsilon),
            "delta": float(experiment.privacy.delta),
            "honest_fraction": float(experiment.privacy.honest_fraction),
            "certified_delta": terms.mechanism.certified_delta if terms else None,
            "estimated_regret": regret(
                users, [t.mean if m is None else m for m, t in zip(means, tallies, strict=True)]
            ),
            "true_regret": regret(users, simulation.means) if simulation else None,
            "sums": entry.sums,
            "last_release_ms": entry.released_ms,
        }

    def _estimates(self, of: Assignment) -> tuple[list[float | None], list[tuple[float, float]]]:
        """Means and intervals; unknown if the state is impossible: its writer is not trusted."""
        agent = self._agent(of.experiment)
        try:
            return agent.means(of.state), agent.intervals(of.state)
        except (ConfigurationError, ValueError, ArithmeticError, LookupError):
            self.invalid += 1
            k = len(of.experiment.arms)
            return [None] * k, [(0.0, 1.0)] * k


def regret(users: list[int], means: list[float | None] | tuple[float, ...]) -> float | None:
    """Pseudo-regret: what the users would have gained by the best arm, by these means."""
    known = [(n, mean) for n, mean in zip(users, means, strict=True) if mean is not None]
    if not known:
        return None
    best = max(mean for _, mean in known)
    return float(sum(n * (best - mean) for n, mean in known))


def _summary(assignment: Assignment) -> dict[str, Any]:
    experiment, state = assignment.experiment, assignment.state
    return {
        "name": experiment.name,
        "state": str(state.status),
        "phase": state.phase,
        "epoch": state.epoch,
        "serve": None if state.serve is None else experiment.arms[state.serve],
        "viable": sum(arm.viable for arm in state.arms),
        "users": state.users,
        "horizon": min(experiment.horizon << state.epoch, MAX_INTEGER),
    }


class Reader:
    """Reads the public topics, whole and committed, and gives them to the agents' channels.

    By partition and without a group: every monitor sees everything, and leaves nothing behind.
    """

    def __init__(self, settings: KafkaSettings, channels: Mapping[str, Any]) -> None:
        self.connected = False
        self._settings = settings
        self._channels = {kafka.topic(settings, name): c for name, c in channels.items()}
        self._positions: dict[TopicPartition, int] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Read until `stop` is set; while Kafka is away, wait for it."""
        work = asyncio.ensure_future(self._work())
        halted = asyncio.ensure_future(stop.wait())
        await asyncio.wait({work, halted}, return_when=asyncio.FIRST_COMPLETED)
        halted.cancel()
        if work.done():
            work.result()
        work.cancel()
        await asyncio.wait({work})

    async def _work(self) -> None:
        known = True
        while True:
            try:
                partitions = await kafka.partition_count(self._settings, ("assignments", "sums"))
                async with kafka.consumer(self._settings) as client:
                    self._assign(client, partitions)
                    if not known:
                        log.info("monitor: Kafka is back")
                    self.connected = known = True
                    await self._follow(client)
            except (Unavailable, KafkaError, TimeoutError, OSError) as error:
                self.connected = False
                if known:
                    log.warning("monitor: Kafka is away (%s), waiting for it", type(error).__name__)
                known = False
            await asyncio.sleep(1)

    def _assign(self, client: AIOKafkaConsumer, partitions: int) -> None:
        places = [TopicPartition(t, n) for t in self._channels for n in range(partitions)]
        client.assign(places)
        for place in places:
            if place in self._positions:
                client.seek(place, self._positions[place])

    async def _follow(self, client: AIOKafkaConsumer) -> None:
        heard = time.monotonic()
        while True:
            chunks = await client.getmany(timeout_ms=200, max_records=_CHUNK)
            for place, records in chunks.items():
                await self._channels[place.topic].send(value=records)
                self._positions[place] = records[-1].offset + 1
            if not chunks and time.monotonic() - heard > _PROBE_S:
                async with asyncio.timeout(_PROBE_S):
                    await client.end_offsets(client.assignment())
                heard = time.monotonic()


def attach(app: faust.App, settings: KafkaSettings) -> Reader:
    """Give the application the view: its agents and pages; returns the reader to run."""
    view = View()
    channels = {"assignments": app.channel(), "sums": app.channel()}
    reader = Reader(settings, channels)

    @app.agent(channels["assignments"], name="assignments")
    async def take_assignments(stream: Any) -> None:
        async for records in stream:
            for record in records:
                view.assignment(record.value)

    @app.agent(channels["sums"], name="sums")
    async def take_sums(stream: Any) -> None:
        async for records in stream:
            for record in records:
                view.sum(record.value, record.timestamp)

    _pages(app, view, reader)
    return reader


def _pages(app: faust.App, view: View, reader: Reader) -> None:
    @app.page("/api/experiments")
    async def experiments(page: Any, _request: Any) -> Any:
        return _json(page, view.experiments())

    @app.page("/api/experiments/{name}")
    async def experiment(page: Any, _request: Any, name: str) -> Any:
        found = view.snapshot(name)
        if found is None:
            return _json(page, {"error": f"no experiment {name!r}"}, status=404)
        return _json(page, found)

    @app.page("/healthz")
    async def health(page: Any, _request: Any) -> Any:
        return _json(page, {"kafka": reader.connected, "invalid": view.invalid})


def _json(page: Any, value: object, status: int = 200) -> Any:
    headers = {"Cache-Control": "no-store", "Content-Type": "application/json"}
    return page.bytes(orjson.dumps(value), status=status, headers=headers)
