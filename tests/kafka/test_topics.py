"""Which topics there are: made once, with their clean-up, all with the same partition count."""

import asyncio

import pytest
from aiokafka.admin import NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from stream_app import kafka
from stream_app.errors import ConfigurationError, Unavailable
from stream_app.local.broker import LocalBroker
from stream_app.settings import KafkaSettings
from tests.support.transcripts import PARTITIONS, Writer, fresh_settings, make_topics, spring

pytestmark = pytest.mark.kafka


@pytest.fixture
async def writer(broker: LocalBroker) -> Writer:
    settings = fresh_settings(broker)
    await make_topics(settings)
    return Writer(settings, spring())


async def existing(settings: KafkaSettings, counts: dict[str, int]) -> None:
    """Topics with these partition counts, made by someone else."""
    wanted = [NewTopic(kafka.topic(settings, name), n, 1) for name, n in counts.items()]
    async with kafka.admin(settings) as admin, asyncio.timeout(20):
        await admin.create_topics(wanted)
        while not {topic.name for topic in wanted} <= set(await admin.list_topics()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_create_is_idempotent(broker: LocalBroker) -> None:
    """Only what is missing is created; the second call creates nothing."""
    settings = fresh_settings(broker)
    full = {name: kafka.topic(settings, name) for name in kafka.TOPICS}
    await existing(settings, {"sums": PARTITIONS})
    created = await kafka.create_topics(settings, PARTITIONS, 1)
    await make_topics(settings)
    again = await kafka.create_topics(settings, PARTITIONS, 1)

    assert [full[name] for name in kafka.TOPICS if name != "sums"] == created
    assert [] == again


async def test_topics_have_their_clean_up(writer: Writer) -> None:
    """Sums are kept for ever, reports deleted after a while, the others compacted."""
    names = {kafka.topic(writer.settings, name): name for name in kafka.TOPICS}
    async with kafka.admin(writer.settings) as admin:
        found = await admin.describe_configs(
            [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
        )
    policies = {}
    for response in found:
        for *_, full_name, entries in response.resources:
            settings = {entry[0]: entry[1] for entry in entries}
            policies[names[full_name]] = (settings["cleanup.policy"], settings["retention.ms"])

    assert ("delete", "-1") == policies["sums"]
    assert ("delete", str(7 * 24 * 3600 * 1000)) == policies["reports"]
    assert {"compact"} == {policies[n][0] for n in ("experiments", "assignments", "windows")}


async def test_another_partition_count_is_refused(writer: Writer) -> None:
    with pytest.raises(ConfigurationError, match=r"--partitions 5: the topics exist with 2"):
        await kafka.create_topics(writer.settings, 5, 1)


async def test_mixed_partition_counts_are_refused(broker: LocalBroker) -> None:
    settings = fresh_settings(broker)
    await existing(settings, {name: 1 + (name == "sums") for name in kafka.TOPICS})
    with pytest.raises(ConfigurationError, match="different partition counts"):
        await kafka.partition_count(settings)
    with pytest.raises(ConfigurationError, match="different partition counts"):
        await kafka.create_topics(settings, 1, 1)


async def test_missing_topics_are_named(broker: LocalBroker) -> None:
    with pytest.raises(Unavailable, match="topics create"):
        await kafka.partition_count(fresh_settings(broker))


async def test_an_experiment_has_kafkas_own_partition(writer: Writer) -> None:
    """A client of another language finds it with its default partitioner."""
    async with kafka.producer(writer.settings) as producer:
        topic = kafka.topic(writer.settings, "sums")
        for name in ("spring", "five-arms", "x", "a-longer.name_0"):
            sent = await producer.send_and_wait(topic, b"x", key=name.encode())

            assert kafka.partition_of(name, PARTITIONS) == sent.partition
