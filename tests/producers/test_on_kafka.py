"""Client and simulated users on a real broker: what they write to `reports`."""

import asyncio
import secrets
from pathlib import Path

import pytest
from aiokafka import ConsumerRecord, TopicPartition

from producers.client import Client
from producers.file_store import FileStore
from producers.simulated_users import run_users
from producers.store import MemoryStore
from stream_app import kafka
from stream_app.core.agents import agent_for
from stream_app.core.experiment import Experiment
from stream_app.core.state import Status
from stream_app.errors import ConfigurationError, Unavailable
from stream_app.kafka.reading import read_partition
from stream_app.local.broker import LocalBroker
from stream_app.settings import KafkaSettings, Settings
from stream_app.wire.assignment import Assignment
from stream_app.wire.definition import Definition
from stream_app.wire.report import REPORT_BYTES, decode_report
from tests.producers.build import assignment, banners, changed

pytestmark = pytest.mark.kafka
PARTITIONS = 3


@pytest.fixture
async def settings(broker: LocalBroker) -> Settings:
    name = f"producers-{secrets.token_hex(4)}"
    made = KafkaSettings(bootstrap=broker.bootstrap, topic_prefix=name, connect_timeout_s=5)
    await kafka.create_topics(made, PARTITIONS, 1)
    return Settings(kafka=made)


def partition_of(name: str) -> int:
    return kafka.partition_of(name, PARTITIONS)


async def publish(settings: Settings, topic: str, name: str, value: bytes) -> None:
    async with kafka.producer(settings.kafka) as producer:
        await producer.send_and_wait(
            kafka.topic(settings.kafka, topic),
            value,
            key=name.encode(),
            partition=partition_of(name),
        )


async def reports(settings: Settings) -> list[ConsumerRecord]:
    return [
        record
        for partition in range(PARTITIONS)
        async for records in read_partition(settings.kafka, "reports", partition, committed=False)
        for record in records
    ]


async def test_reports_arrive_on_the_experiments_partition(
    settings: Settings, tmp_path: Path
) -> None:
    """Each once, keyed by the experiment, all of one length."""
    experiment = banners("banners")
    for other in ("other", "third", "fourth"):
        await publish(settings, "assignments", other, assignment(banners(other)))
    await publish(settings, "assignments", "banners", assignment(experiment))
    store = FileStore(tmp_path / "store")
    async with Client(settings, "banners", store=store, immediate=True) as client:
        shown = [client.choose(f"user {i}") for i in range(5_000)]
        for i, one in enumerate(shown):
            client.report(one, i % 2)
    store.close()
    found = await reports(settings)

    assert {record.partition for record in found} == {partition_of("banners")}
    assert {record.key for record in found} == {b"banners"}
    assert {len(record.value) for record in found} == {REPORT_BYTES}
    ids = [decode_report(record.value)[:2] for record in found]
    assert sorted(ids) == sorted((one.batch_id, one.report_id) for one in shown)


async def test_a_malicious_assignment_is_refused(settings: Settings) -> None:
    """Second terms under a known number, then tampered ones: nobody reports to them."""
    experiment = banners("banners")
    first = assignment(experiment)
    second = assignment(banners("banners", epsilon="0.7"))
    tampered = changed(first, lambda terms: terms.update(batch_size=4, sequence=2), rehash=True)
    await publish(settings, "assignments", "banners", first)
    async with Client(settings, "banners", store=MemoryStore(), immediate=True) as client:
        honest = client.choose("ada")
        client.report(honest, 1)
        for n, bad in enumerate((second, tampered), 1):
            await publish(settings, "assignments", "banners", bad)
            async with asyncio.timeout(10):
                while client.refused_terms < n:
                    await client.changed(0.1)
            assert not client.report(client.choose(f"user {n}"), 1)
    found = await reports(settings)

    assert [decode_report(record.value)[0] for record in found] == [honest.batch_id]


async def test_an_aborted_assignment_is_not_followed(settings: Settings) -> None:
    """Clients read committed records only."""
    experiment = banners("banners")
    agent = agent_for(experiment)
    await publish(settings, "assignments", "banners", assignment(experiment))
    async with Client(settings, "banners", store=MemoryStore(), immediate=True) as client:
        async with kafka.producer(settings.kafka, transactional_id=secrets.token_hex()) as writer:
            await writer.begin_transaction()
            later = assignment(experiment, agent.fold(agent.begin(), 1, 3.0))
            topic = kafka.topic(settings.kafka, "assignments")
            await writer.send_and_wait(
                topic, later, key=b"banners", partition=partition_of("banners")
            )
            await writer.abort_transaction()
        assert not await client.changed(0.5)
        assert client.choose("ada").batch_id.startswith("1.")


async def agent_of(settings: Settings, experiment: Experiment) -> None:
    """The service in small: full windows in, assignments out, until the decision."""
    agent = agent_for(experiment)
    name = experiment.name
    state = agent.begin()
    topic = kafka.topic(settings.kafka, "reports")
    await publish(settings, "experiments", name, Definition(experiment).encode())
    async with kafka.consumer(settings.kafka, committed=False) as consumer:
        partition = TopicPartition(topic, partition_of(name))
        consumer.assign([partition])
        while state.status is Status.RUNNING:
            record = Assignment(experiment, state)
            await publish(settings, "assignments", name, record.encode())
            terms = record.terms(state.open[0])
            ones: list[int] = []
            while len(ones) < terms.mechanism.promise.batch_size:
                message = await consumer.getone()
                batch_id, _, count = decode_report(message.value)
                ones += [count] if batch_id == terms.batch_id else []
            estimate = terms.mechanism.debias(sum(ones))
            state = agent.fold(state, terms.sequence, estimate)
    await publish(settings, "assignments", name, Assignment(experiment, state).encode())


async def test_users_take_an_experiment_to_its_decision(settings: Settings) -> None:
    """Through real topics: the means come from the definition, the counts agree."""
    experiment = banners("prices", means=(0.9, 0.1))
    service = asyncio.create_task(agent_of(settings, experiment))
    async with asyncio.timeout(60):
        while True:
            try:
                outcome = await run_users(settings, "prices")
                break
            except ConfigurationError:  # the service has not written the definition yet
                await asyncio.sleep(0.1)
        await service
    found = await reports(settings)

    assert (outcome.status, outcome.serve) == (Status.DECIDED, "arm-0")
    assert outcome.users == outcome.reports == len(found)
    assert {record.key for record in found} == {b"prices"}


async def test_an_unknown_experiment_is_named(settings: Settings) -> None:
    """With the command that lists the known ones."""
    with pytest.raises(ConfigurationError, match=r"'nosuch': not on .*experiment list"):
        await run_users(settings, "nosuch")


async def test_missing_topics_are_named(broker: LocalBroker) -> None:
    """Before anything is chosen."""
    missing = KafkaSettings(bootstrap=broker.bootstrap, topic_prefix=secrets.token_hex(4))

    with pytest.raises(Unavailable, match="topics create"):
        async with Client(Settings(kafka=missing), "banners", store=MemoryStore(), immediate=True):
            pass
