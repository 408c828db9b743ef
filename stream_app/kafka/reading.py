"""Reading a partition from a start to its end, which a plain loop gets wrong in three ways.

The end is often not a record: a transaction's marker, an aborted record that is not shown, or
nothing at all after compaction. `read_to_end` ends in each of these cases, and fails in bounded
time when the cluster does not answer. This module knows partitions, not what the records say.
"""

import time
from collections.abc import AsyncGenerator

from stream_app.kafka import connection, topics
from stream_app.kafka.clients import PartitionReader, Record, TopicPartition
from stream_app.kafka.errors import KafkaError, KafkaTimeoutError, unreachable
from stream_app.settings import KafkaSettings

# As long as Kafka may hold back the answer to a fetch.
_POLL_MS = 50
# So many fetches at one position were answered: compaction left no record there. The first may have
# been sent before the end was known. If the second had brought records, there would be no third
# before they were taken; but their time is seen a moment before they are.
_EMPTY_ANSWERS = 3
# No fetch was answered for this long: the cluster is unreachable. A broker's restart takes less.
_SILENT_S = 15.0


async def read_to_end(
    consumer: PartitionReader,
    partition: TopicPartition,
    start: int | None = None,
    *,
    compacted: bool = False,
    silent_s: float = _SILENT_S,
) -> AsyncGenerator[list[Record], None]:
    """All records from `start` (None: the oldest) to the end as of this call, and perhaps newer.

    The partition must be assigned to the consumer, and not paused. Afterwards the consumer's
    position is behind the last record that was given. The end depends on the consumer's isolation
    level: the last stable offset if it reads committed records. Raises KafkaError.
    """
    first = (await consumer.beginning_offsets([partition]))[partition]
    end = (await consumer.end_offsets([partition]))[partition]
    position = first if start is None else max(start, first)
    consumer.seek(partition, min(position, end))
    answered = consumer.last_poll_timestamp(partition)
    answers = 0
    since = time.monotonic()
    while position < end:
        records = (await consumer.getmany(partition, timeout_ms=_POLL_MS)).get(partition)
        if records:
            yield records
        reached = await consumer.position(partition)
        latest = consumer.last_poll_timestamp(partition)
        if reached > position:
            position = reached
            answered = latest
            answers = 0
            since = time.monotonic()
            continue
        answers += latest != answered
        answered = latest
        if compacted and answers >= _EMPTY_ANSWERS:
            return
        if time.monotonic() - since > silent_s:
            raise KafkaTimeoutError(f"{partition.topic}: no answer for {silent_s:.0f} s")


async def read_partition(
    settings: KafkaSettings,
    topic: str,
    partition: int,
    *,
    committed: bool = True,
    start: int | None = None,
) -> AsyncGenerator[list[Record], None]:
    """`read_to_end` of one partition with a consumer of its own; `topic` without its prefix.

    Raises Unavailable if the cluster cannot be read.
    """
    source = TopicPartition(topics.topic(settings, topic), partition)
    async with connection.consumer(settings, committed=committed) as consumer:
        consumer.assign([source])
        try:
            compacted = topics.TOPICS[topic]["cleanup.policy"] == "compact"
            async for records in read_to_end(consumer, source, start, compacted=compacted):
                yield records
        except KafkaError as error:
            raise unreachable(settings, error) from None
