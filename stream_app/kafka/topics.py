"""Which topics there are, how they are set up, and where an experiment lives in them."""

import asyncio
from collections.abc import Iterable
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import TopicAlreadyExistsError, for_code
from aiokafka.partitioner import murmur2

from stream_app.errors import ConfigurationError, Unavailable
from stream_app.kafka.clients import Writer
from stream_app.kafka.connection import admin
from stream_app.settings import KafkaSettings

# One worker does with one; more let more share the work, and adding some later is refused.
DEFAULT_PARTITIONS = 8
# What an outsider may read: the definitions, the decisions, and the noisy sums they follow from.
PUBLIC = ("experiments", "assignments", "sums")
# The broker unpacks what clients compress: no codec of theirs can stop a reader, and no length of
# a packed report tells what is in it.
_PLAIN = {"compression.type": "uncompressed"}
# Of these topics only each key's newest record is ever needed.
_COMPACT = {**_PLAIN, "cleanup.policy": "compact"}
_HOUR_MS = str(3600 * 1000)
_WEEK_MS = 7 * 24 * 3600 * 1000
# Every topic with its clean-up; `reports` is kept a week at most, `sums` for ever; `held` a week
# beyond the longest attribution window. Deleted reports and checkpoints leave the brokers' disks
# with their segment's file: it is closed after an hour.
TOPICS: dict[str, dict[str, str]] = {
    "experiments": _COMPACT,
    "assignments": {**_COMPACT, "min.cleanable.dirty.ratio": "0.1"},
    "reports": {
        **_PLAIN,
        "cleanup.policy": "delete",
        "retention.ms": str(_WEEK_MS),
        "segment.ms": _HOUR_MS,
        "message.timestamp.type": "LogAppendTime",
    },
    "held": {
        **_PLAIN,
        "cleanup.policy": "delete",
        "retention.ms": str(2 * _WEEK_MS),
        "segment.ms": _HOUR_MS,
        "message.timestamp.type": "LogAppendTime",
    },
    "windows": {
        **_COMPACT,
        "min.cleanable.dirty.ratio": "0.1",
        "max.compaction.lag.ms": _HOUR_MS,
    },
    "sums": {**_PLAIN, "cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"},
}
# Whoever may describe a topic sees its end move. That of `held` moves when a page is left, often
# after a click: so only gateways see it, and whoever creates the topics does not.
_UNSEEN = frozenset({"held"})
SEEN = tuple(name for name in TOPICS if name not in _UNSEEN)


def topic(settings: KafkaSettings, name: str) -> str:
    """A topic's full name."""
    return f"{settings.topic_prefix}.{name}"


def partition_of(experiment: str, partitions: int) -> int:
    """The partition number that an experiment has in every topic: Kafka's default for its key."""
    return int(murmur2(experiment.encode()) & 0x7FFFFFFF) % partitions


async def create_topics(
    settings: KafkaSettings, partitions: int | None, replication: int
) -> list[str]:
    """Create the topics that are missing, wait until all are there; returns the new ones' names.

    `partitions` None means as many as the topics that exist, else DEFAULT_PARTITIONS.
    """
    async with admin(settings) as client:
        existing = await _partition_counts(client, settings, TOPICS)
        _require_same_count(existing)
        present = next(iter(existing.values()), None)
        wanted = partitions or present or DEFAULT_PARTITIONS
        if present is not None and wanted != present:
            raise ConfigurationError(
                f"--partitions {wanted}: the topics exist with {present}; adding partitions to a "
                "running system could release a batch twice, use the same number or another "
                "kafka.topic_prefix"
            )
        missing = [name for name in TOPICS if name not in existing]
        if not missing:
            return []
        return await _create(client, settings, missing, wanted, replication)


async def _create(
    client: AIOKafkaAdminClient,
    settings: KafkaSettings,
    names: list[str],
    partitions: int,
    replication: int,
) -> list[str]:
    response = await client.create_topics(
        [
            NewTopic(topic(settings, name), partitions, replication, topic_configs=TOPICS[name])
            for name in names
        ]
    )
    there = set()
    for full_name, code, *message in response.topic_errors:
        error = for_code(code)
        if error is TopicAlreadyExistsError:
            there.add(full_name)
        elif code:
            raise Unavailable(f"topic {full_name}: {error.__name__}: {' '.join(map(str, message))}")
    async with asyncio.timeout(settings.connect_timeout_s):
        while len(await _partition_counts(client, settings, SEEN)) < len(SEEN):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    full_names = [topic(settings, name) for name in names]
    return [name for name in full_names if name not in there]


async def partition_count(settings: KafkaSettings, names: Iterable[str] = SEEN) -> int:
    """How many partitions these topics have. Raises if one is missing or differs."""
    async with admin(settings) as client:
        existing = await _partition_counts(client, settings, names)
    missing = [topic(settings, name) for name in names if name not in existing]
    if missing:
        raise Unavailable(
            f"topics {', '.join(missing)}: missing on {settings.bootstrap}, or no right to see "
            "them; create them with: shufflebandit topics create"
        )
    _require_same_count(existing)
    return next(iter(existing.values()))


async def partition_counts_seen(writer: Writer, full_names: Iterable[str]) -> dict[str, int]:
    """How many partitions a writer sees of each topic, without an admin's rights; 0 if none."""
    aiokafka_producer: Any = writer
    cluster = await aiokafka_producer.client.fetch_all_metadata()
    return {name: len(cluster.partitions_for_topic(name) or ()) for name in full_names}


async def _partition_counts(
    client: AIOKafkaAdminClient, settings: KafkaSettings, names: Iterable[str]
) -> dict[str, int]:
    """Of the topics that are there; one that is just coming or going has no partitions yet."""
    present = set(await client.list_topics())
    full = {topic(settings, name): name for name in names}
    wanted = [name for name in full if name in present]
    described = await client.describe_topics(wanted) if wanted else []
    return {
        full[entry["topic"]]: len(entry["partitions"]) for entry in described if entry["partitions"]
    }


def _require_same_count(counts: dict[str, int]) -> None:
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise ConfigurationError(
            f"topics have different partition counts ({listed}): an experiment must have the same "
            "partition in each; delete them, or use another kafka.topic_prefix, and then: "
            "shufflebandit topics create"
        )
