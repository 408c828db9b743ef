"""Correct runs of an experiment, made in memory, to be changed and written to a real broker.

Nothing here is under test: the core's agent and windows make the reports, sums and states that the
two stages would, and plain producers write them.
"""

import asyncio
import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
from aiokafka import AIOKafkaProducer

from stream_app import kafka
from stream_app.core.agents import Agent, agent_for
from stream_app.core.experiment import Experiment
from stream_app.core.state import OpenBatch, State
from stream_app.core.terms import parse
from stream_app.core.window import open_window
from stream_app.errors import ConfigurationError, Unavailable
from stream_app.local.broker import LocalBroker
from stream_app.settings import KafkaSettings
from stream_app.wire.assignment import Assignment, terms_of
from stream_app.wire.definition import Definition
from stream_app.wire.report import encode_report
from stream_app.wire.sum import encode_sum
from tests.core.build import experiment as build

PARTITIONS = 2
NAME = "spring"


def spring(**changes: Any) -> Experiment:
    """Two arms in small batches; the first wins after four of them."""
    changes = {"batch_size": 20, "horizon": 400, **changes}
    return replace(build(**changes), name=NAME)


@dataclass
class Transcript:
    """What the topics hold after some batches; offsets of reports are their places in the list."""

    experiment: Experiment
    reports: list[tuple[bytes, bytes]] = field(default_factory=list)
    sums: list[bytes] = field(default_factory=list)
    states: list[State] = field(default_factory=list)  # before the first sum, after each

    @property
    def key(self) -> bytes:
        return self.experiment.name.encode()

    @property
    def agent(self) -> Agent:
        return agent_for(self.experiment)

    def edit_sum(self, number: int, **fields: Any) -> None:
        """Change fields of a sum's record."""
        self.sums[number] = edited(self.sums[number], **fields)


def edited(record: bytes, **fields: Any) -> bytes:
    return orjson.dumps({**orjson.loads(record), **fields})


Noise = Callable[[Transcript, str, int], None]


def play(
    experiment: Experiment,
    batches: int = 1000,
    before: Noise | None = None,
    after: Noise | None = None,
    within: Noise | None = None,
) -> Transcript:
    """Run at most so many batches; the callbacks write other records around each batch's own."""
    source = random.Random(7)
    done = Transcript(experiment)
    agent = done.agent
    state = agent.begin()
    done.states.append(state)
    while state.open and len(done.sums) < batches:
        batch = source.choice(state.open)
        value, total = _collect(done, batch, source, (before, within, after))
        done.sums.append(value)
        mechanism = terms_of(experiment, batch).mechanism
        state = agent.fold(state, batch.sequence, mechanism.debias(total))
        done.states.append(state)
    return done


def _collect(
    done: Transcript, batch: OpenBatch, source: random.Random, noises: Sequence[Noise | None]
) -> tuple[bytes, int]:
    before, within, after = noises
    terms = terms_of(done.experiment, batch)
    window = open_window(terms.batch_id, terms)
    sampler = terms.mechanism.sampler(source.randbytes)
    if before:
        before(done, terms.batch_id, terms.mechanism.max_ones)
    while not window.full:
        report_id = source.randbytes(16)
        reward = source.random() < (0.9, 0.1)[batch.arm]
        ones = sampler.encode(reward)
        assert window.accept(report_id, ones, len(done.reports), 0) is None
        done.reports.append((done.key, encode_report(terms.batch_id, report_id, ones)))
        if within and len(window.ids) == batch.size // 2:
            within(done, terms.batch_id, terms.mechanism.max_ones)
    if after:
        after(done, terms.batch_id, terms.mechanism.max_ones)
    release = window.release()
    return encode_sum(release), release.total


def fresh_settings(broker: LocalBroker) -> KafkaSettings:
    """A topic prefix that no other test has."""
    return KafkaSettings(bootstrap=broker.bootstrap, topic_prefix=f"t{uuid.uuid4().hex[:12]}")


async def make_topics(settings: KafkaSettings) -> None:
    """Create the topics and wait until the broker knows them."""
    await kafka.create_topics(settings, PARTITIONS, 1)
    async with asyncio.timeout(20):
        while not await _known(settings):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def _known(settings: KafkaSettings) -> bool:
    try:
        return await kafka.partition_count(settings) == PARTITIONS
    except (Unavailable, ConfigurationError):
        return False


class Writer:
    """Writes records of one experiment as the stages and clients do."""

    def __init__(self, settings: KafkaSettings, experiment: Experiment) -> None:
        self.settings = settings
        self.experiment = experiment
        self.key = experiment.name.encode()
        self.partition = kafka.partition_of(experiment.name, PARTITIONS)

    async def plain(self, topic: str, records: list[tuple[bytes, bytes]]) -> None:
        async with kafka.producer(self.settings) as producer:
            for future in [await self._send(producer, topic, k, v) for k, v in records]:
                await future

    async def transaction(self, topic: str, value: bytes, *, commit: bool = True) -> int:
        """One record in a transaction of its own; its offset."""
        options = {"transactional_id": f"{self.settings.topic_prefix}-test"}
        async with kafka.producer(self.settings, **options) as producer:
            await producer.begin_transaction()
            offset = (await (await self._send(producer, topic, self.key, value))).offset
            await (producer.commit_transaction() if commit else producer.abort_transaction())
        async with kafka.producer(self.settings, **options):
            pass  # starts only when the transaction's marker is in the log
        return int(offset)

    async def _send(self, producer: AIOKafkaProducer, topic: str, key: bytes, value: bytes) -> Any:
        name = kafka.topic(self.settings, topic)
        return await producer.send(name, value, key=key, partition=self.partition)

    async def transcript(
        self, done: Transcript, change: Callable[[Assignment], bytes] = Assignment.encode
    ) -> int:
        """Everything, with the assignment after the last sum; returns that sum's offset."""
        await make_topics(self.settings)
        definition = Definition(self.experiment).encode()
        await self.plain("experiments", [(self.key, definition)])
        await self.plain("reports", done.reports)
        folded = -1
        for value in done.sums:
            folded = await self.transaction("sums", value)
        await self.transaction("assignments", change(self.assignment(done, folded)))
        return folded

    def assignment(self, done: Transcript, folded: int) -> Assignment:
        return Assignment(self.experiment, done.states[-1], folded)


def reissued(record: bytes, **changes: Any) -> bytes:
    """A sum with other terms, whose id fits them."""
    terms = {**orjson.loads(record)["terms"], **changes}
    return edited(record, terms=terms, batch=parse(terms).batch_id)


def write_run(settings: KafkaSettings, batches: int = 1000) -> Assignment:
    """A correct run on the topics; its last assignment."""
    done = play(spring(), batches)
    writer = Writer(settings, done.experiment)
    folded = asyncio.run(writer.transcript(done))
    return writer.assignment(done, folded)
