"""Both stages and the monitor over a log in memory, and every byte that an untrusted reader sees.

A script says what happens: who comes when, which records are bad, where a worker crashes or a
transaction is aborted. A world plays it with given rewards, by fixed ids and times, and keeps in
`seen` whatever leaves the trusted side: records of the public topics, keys, sizes and order of all
records, metrics, log lines at level debug, the monitor's views, restart offsets, refusals.

It cannot see times: what is compared is what is said, not when.
"""

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from stream_app.agent.partition import EliminationPartition
from stream_app.core.experiment import Experiment
from stream_app.core.terms import Limits
from stream_app.metrics.experiments import ExperimentCollector
from stream_app.metrics.instruments import Metrics
from stream_app.monitor.terminal import headline
from stream_app.monitor.view import View
from stream_app.runtime.stage import Output
from stream_app.settings import MetricsSettings
from stream_app.wire.assignment import decode_offer
from stream_app.wire.definition import Definition
from stream_app.wire.report import encode_report
from tests.support.partition_log import Kafka, MemoryLog, Worker, drive, report_id

# What the process itself says (CPU time, memory, open files) is no function of the log.
_OF_THE_PROCESS = (b"process_", b"# HELP process_", b"# TYPE process_")

# A report's count of ones, by report id and the most that its batch allows.
Ones = Callable[[bytes, int], int]


@dataclass(frozen=True)
class Step:
    """One thing that happens; `count` is how many users, records or milliseconds."""

    kind: str
    count: int = 1


@dataclass
class World:
    """One run."""

    experiment: Experiment
    ones: Ones
    max_reread: int
    limits: Limits = field(default_factory=Limits)
    kafka: Kafka = field(default_factory=Kafka)
    seen: list[object] = field(default_factory=list)
    said: dict[bytes, tuple[str, int]] = field(default_factory=dict)  # by report id: batch, ones

    def __post_init__(self) -> None:
        # Which batch a user is bound to, and which report is sent again: the same in every run.
        self._chance = random.Random(7)
        self._users = 0
        self._now_ms = 1_000_000
        self._metrics = Metrics()
        self._view = View()
        collector = ExperimentCollector(self._view, MetricsSettings())
        self._metrics.registry.register(collector)
        self._shown = 0
        name = self.experiment.name.encode()
        self.kafka.append("experiments", name, Definition(self.experiment).encode())
        self._start_agent()
        self._start_shuffler()

    def play(self, steps: list[Step], *, agent: bool = True) -> None:
        """All steps; after each, what an untrusted reader could see of it."""
        self._folding = agent
        with capturing(self.seen):
            for step in steps:
                self._step(step)
                self._look(step)

    def _step(self, step: Step) -> None:
        match step.kind:
            case "users":
                for _ in range(step.count):
                    self._user()
            case "again":
                self._again(step.count)
            case "bad":
                self._bad(step.count)
            case "feed":
                self._shuffler.run(step.count)
                self._sums_to_agent()
            case "tick":
                self._now_ms += 1_000 * step.count
                self._shuffler.state.tick(self._now_ms)
                self._shuffler.flush()
            case "crash":
                # What was counted and not written is lost.
                self._shuffler.feed(step.count)
                self._start_shuffler()
            case "abort":
                # What was written can be read, though it was never committed.
                self._shuffler.tail()
                self._shuffler.feed(step.count)
                self._write(self._shuffler.flush(committed=False))
                self._start_shuffler()
            case "agent dies":
                self._start_agent()

    def _user(self) -> None:
        """A user is shown an arm of the newest assignment, and reports."""
        newest = self.kafka.records("assignments")
        offer = decode_offer(newest[-1].value)
        if not offer.open:
            return
        batch_id, terms = self._chance.choice(offer.open)
        self._users += 1
        most = 2 * terms["parameters"]["clip"] + 1
        identity = report_id(self._users)
        ones = self.ones(identity, most)
        self.said[identity] = (batch_id, ones)
        self._report(identity)

    def _report(self, identity: bytes) -> None:
        batch_id, ones = self.said[identity]
        value = encode_report(batch_id, identity, ones)
        self.kafka.append("reports", self.experiment.name.encode(), value)

    def _again(self, count: int) -> None:
        """Reports that are sent again, byte for byte."""
        for identity in self._chance.choices(list(self.said), k=count) if self.said else ():
            self._report(identity)

    def _bad(self, count: int) -> None:
        """Records that no window counts, made of the newest report."""
        for identity in list(self.said)[-1:] * count:
            batch_id, ones = self.said[identity]
            name = self.experiment.name.encode()
            for key, value in (
                (b"another", encode_report(batch_id, identity, ones)),
                (name, b"not JSON"),
                (name, encode_report("999999." + "A" * 43, identity, ones)),
            ):
                self.kafka.append("reports", key, value)

    def _start_shuffler(self) -> None:
        stage = self._metrics.stage("shuffle")
        stage.closed(0)
        self._shuffler = Worker(self.kafka, self.limits, self.max_reread)
        stage.opened(0, self._shuffler.state)
        self._write(self._shuffler.flush())

    def _start_agent(self) -> None:
        stage = self._metrics.stage("agent")
        stage.closed(0)
        self._agent = EliminationPartition()
        log = MemoryLog(self.kafka)
        self._folded = drive(self._agent.recover(log, None))  # type: ignore[arg-type]
        stage.opened(0, self._agent)
        self._write(self._agent.take(), to_kafka=True)

    def _sums_to_agent(self) -> None:
        records = self.kafka.records("sums", start=self._folded)
        if records and self._folding:
            self._agent.feed(records, refreshed=False)
            self._folded = records[-1].offset + 1
            self._write(self._agent.take(), to_kafka=True)

    def _write(self, outputs: list[Output], *, to_kafka: bool = False) -> None:
        if to_kafka:
            self.kafka.write(outputs)
        stage = self._metrics.stage("agent" if to_kafka else "shuffle")
        for output in outputs:
            stage.wrote(output.times, output.topic, len(output.value or b""), self._now_ms)

    def _look(self, step: Step) -> None:
        """Everything that is public after a step."""
        self.seen.append(step.kind)
        for topic, records in sorted(self.kafka.topics.items()):
            for record, committed in records:
                public = topic in ("sums", "assignments", "experiments")
                said = record.value if public else len(record.value or b"")
                self.seen.append((topic, record.offset, record.key, said, committed))
        for record in self.kafka.records("assignments", start=self._shown):
            self._view.assignment(record.value)
            self._shown = record.offset + 1
        shown = self._view.snapshot(self.experiment.name)
        self.seen.append(shown)
        if shown is not None:
            self.seen.append(headline(shown))
        lines = self._metrics.expose().splitlines()
        self.seen.append([line for line in lines if not line.startswith(_OF_THE_PROCESS)])
        self.seen.append(self._shuffler.state.restart_offset())


class capturing:
    """Every log line at level debug, and whatever it was made of."""

    def __init__(self, seen: list[object]) -> None:
        self._handler = handler = logging.Handler(logging.DEBUG)
        handler.emit = lambda record: seen.append(  # type: ignore[method-assign]
            (record.name, record.levelname, record.getMessage())
        )

    def __enter__(self) -> None:
        logger = logging.getLogger("shufflebandit")
        self._level = logger.level
        logger.setLevel(logging.DEBUG)
        logger.addHandler(self._handler)

    def __exit__(self, *_: object) -> None:
        logger = logging.getLogger("shufflebandit")
        logger.setLevel(self._level)
        logger.removeHandler(self._handler)


def without_sums(seen: list[object]) -> list[object]:
    """What is left when the value of a sum, and what follows from it, is taken out."""
    return [_without(entry) for entry in seen]


def _without(entry: object) -> object:
    if isinstance(entry, tuple) and len(entry) == 5 and entry[0] == "sums":
        raw: dict[str, Any] = orjson.loads(entry[3])
        return (*entry[:3], {k: v for k, v in raw.items() if k not in ("total", "estimate")})
    return entry


def named(experiment: Experiment, name: str = "private") -> Experiment:
    """The same under another name."""
    return replace(experiment, name=name)
