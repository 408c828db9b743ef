"""The experiments that the topics know: read them, create one, stop one.

An experiment's definition cannot change. So create and stop first make themselves the only writer
of that name (a transactional id per name fences any other), then read what is there, then write.
This module knows topics and records, not how they are printed.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import orjson

from stream_app import kafka
from stream_app.core.agents import agent_for
from stream_app.core.experiment import Experiment
from stream_app.core.state import Status
from stream_app.core.terms import Limits, check
from stream_app.definitions import dump_experiment
from stream_app.errors import ConfigurationError, InvalidInput, Unavailable
from stream_app.kafka import PartitionReader, TopicPartition, TransactionalWriter
from stream_app.kafka.errors import KafkaError, ProducerFenced
from stream_app.kafka.reading import read_to_end
from stream_app.settings import KafkaSettings
from stream_app.wire.assignment import Assignment, decode_assignment
from stream_app.wire.definition import Definition, decode_definition

# A command's user waits for it; a transaction that was left open is ended by then.
_WRITE_TIMEOUT_S = 15


@dataclass(frozen=True, slots=True)
class Entry:
    """What the topics say of one experiment."""

    name: str
    definition: Definition | None = None
    assignment: Assignment | None = None
    record: bytes | None = None  # the last assignment, as it stands on its topic
    problem: str = ""  # why a record of it cannot be read

    @property
    def experiment(self) -> Experiment | None:
        """What the operator defined, or else what the agent says that it runs."""
        if self.definition is not None:
            return self.definition.experiment
        return None if self.assignment is None else self.assignment.experiment

    @property
    def stopped(self) -> bool:
        """Whether the operator or the agent has stopped it."""
        return (self.definition is not None and self.definition.stopped) or (
            self.assignment is not None and self.assignment.state.status is Status.STOPPED
        )

    @property
    def state(self) -> str:
        """In one word: a status, or that the agent has not answered yet."""
        if self.problem:
            return "unreadable"
        if self.assignment is None:
            return "stopping" if self.stopped else "waiting"
        status = self.assignment.state.status
        return "stopping" if status is Status.RUNNING and self.stopped else str(status)


async def read_all(settings: KafkaSettings) -> list[Entry]:
    """Every experiment, by name. Raises Unavailable."""
    partitions = range(await kafka.partition_count(settings, kafka.PUBLIC))
    return sorted((await _read(settings, partitions)).values(), key=lambda entry: entry.name)


async def find(settings: KafkaSettings, name: str) -> Entry:
    """One experiment. Raises ConfigurationError if there is none of this name."""
    partition = kafka.partition_of(name, await kafka.partition_count(settings, kafka.PUBLIC))
    entry = (await _read(settings, [partition])).get(name)
    if entry is None:
        raise ConfigurationError(
            f"experiment {name[:80]!r}: not known on {settings.bootstrap}; "
            "see which are with: shufflebandit experiment list"
        )
    return entry


def check_limits(experiment: Experiment, limits: Limits) -> None:
    """Refuse what clients and stages with these limits would refuse, or what cannot begin."""
    assignment = Assignment(experiment, agent_for(experiment).begin())
    if not assignment.state.open:
        raise ConfigurationError(
            f"horizon = {experiment.horizon}: not even one batch for every arm fits into it; use a "
            "larger horizon or a smaller agent.batch_size"
        )
    terms = assignment.terms(assignment.state.open[0])
    try:
        check(terms.batch_id, terms.as_json(), limits)
    except InvalidInput as error:
        raise ConfigurationError(f"experiment {experiment.name}: {error}") from None


async def create(settings: KafkaSettings, experiment: Experiment) -> bool:
    """Define an experiment; False if the same definition is there already.

    Raises ConfigurationError if the name is taken by other content, or by a stopped experiment.
    """
    async with _only_writer(settings, experiment.name) as (producer, partition):
        entry = (await _read(settings, [partition])).get(experiment.name, Entry(experiment.name))
        _refuse_other_content(entry, experiment)
        if entry.definition is not None:
            return False
        await _write(producer, settings, partition, Definition(experiment))
        return True


async def stop(settings: KafkaSettings, name: str) -> bool:
    """Ask the agent to end an experiment; False if it has been stopped before."""
    await find(settings, name)  # an unknown name must not reach the transaction coordinator
    async with _only_writer(settings, name) as (producer, partition):
        entry = (await _read(settings, [partition]))[name]
        if entry.experiment is None:
            raise ConfigurationError(f"experiment {name!r} cannot be read: {entry.problem}")
        if entry.stopped:
            return False
        await _write(producer, settings, partition, Definition(entry.experiment, stopped=True))
        return True


def _refuse_other_content(entry: Entry, experiment: Experiment) -> None:
    known = entry.experiment
    if known is not None and known != experiment:
        there, here = (_flat(orjson.loads(dump_experiment(e))) for e in (known, experiment))
        key = next(k for k in sorted(there | here) if there.get(k) != here.get(k))
        raise ConfigurationError(
            f"experiment {entry.name!r} exists with {key} = {there.get(key)}, this file has "
            f"{here.get(key)}; a definition cannot be changed, use another name"
        )
    if entry.stopped:
        raise ConfigurationError(
            f"experiment {entry.name!r} was stopped and does not start again; use another name"
        )


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    """A definition's settings by their dotted names."""
    if not isinstance(value, dict):
        return {path: value}
    found: dict[str, Any] = {}
    for key, inner in value.items():
        found |= _flat(inner, f"{path}.{key}" if path else key)
    return found


@asynccontextmanager
async def _only_writer(
    settings: KafkaSettings, name: str
) -> AsyncIterator[tuple[TransactionalWriter, int]]:
    """A producer that fences every other writer of this experiment, and its partition."""
    partition = kafka.partition_of(name, await kafka.partition_count(settings, kafka.PUBLIC))
    transactional_id = f"{settings.topic_prefix}-experiments-{name}"
    async with kafka.transactional_writer(settings, transactional_id) as producer:
        yield producer, partition


async def _write(
    producer: TransactionalWriter, settings: KafkaSettings, partition: int, definition: Definition
) -> None:
    name = definition.experiment.name
    target = TopicPartition(kafka.topic(settings, "experiments"), partition)
    try:
        async with asyncio.timeout(_WRITE_TIMEOUT_S):
            await producer.begin_transaction()
            sent = await producer.send(
                target.topic, definition.encode(), key=name.encode(), partition=partition
            )
            written = await sent
            await producer.commit_transaction()
            await _until_visible(settings, target, written.offset)
    except ProducerFenced:
        raise Unavailable(
            f"experiment {name!r}: another command writes it at the same time; "
            f"look with: shufflebandit experiment show {name}"
        ) from None
    except (KafkaError, TimeoutError) as error:
        raise kafka.unreachable(settings, error) from None


async def _until_visible(settings: KafkaSettings, partition: TopicPartition, offset: int) -> None:
    """A commit returns before its marker is in the log, and readers see the record only then."""
    async with kafka.consumer(settings) as consumer:
        while (await consumer.end_offsets([partition]))[partition] <= offset:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def _read(settings: KafkaSettings, partitions: range | list[int]) -> dict[str, Entry]:
    """The entries of some partitions, from both topics read to their ends."""
    topics = [kafka.topic(settings, name) for name in ("experiments", "assignments")]
    entries: dict[str, Entry] = {}
    async with kafka.consumer(settings) as consumer:
        consumer.assign([TopicPartition(topic, n) for topic in topics for n in partitions])
        try:
            for number in partitions:
                definitions = await _newest(consumer, TopicPartition(topics[0], number))
                assignments = await _newest(consumer, TopicPartition(topics[1], number))
                for key in definitions.keys() | assignments.keys():
                    name = key.decode(errors="replace")
                    entries[name] = _entry(name, definitions.get(key), assignments.get(key))
        except KafkaError as error:
            raise kafka.unreachable(settings, error) from None
    return entries


async def _newest(consumer: PartitionReader, partition: TopicPartition) -> dict[bytes, bytes]:
    """Each key's newest value; a tombstone removes the key."""
    values: dict[bytes, bytes] = {}
    async for records in read_to_end(consumer, partition):
        for record in records:
            if record.key is not None and record.value is not None:
                values[record.key] = record.value
            else:
                values.pop(record.key, None)
    return values


def _entry(name: str, defined: bytes | None, assigned: bytes | None) -> Entry:
    definition = assignment = None
    problems = []
    try:
        definition = None if defined is None else decode_definition(defined)
        _same_name(name, definition)
    except InvalidInput as error:
        definition = None
        problems.append(f"definition: {error}")
    try:
        assignment = None if assigned is None else decode_assignment(assigned)
        _same_name(name, assignment)
    except InvalidInput as error:
        assignment = None
        problems.append(str(error))
    return Entry(name, definition, assignment, assigned, "; ".join(problems))


def _same_name(key: str, record: Definition | Assignment | None) -> None:
    if record is not None and record.experiment.name != key:
        raise InvalidInput(f"under the key {key!r} stands {record.experiment.name!r}")
