"""The edge to Kafka, and the only package that imports its library: clients, topics, errors."""

from stream_app.kafka.clients import (
    GroupReader,
    PartitionReader,
    Record,
    TopicPartition,
    TransactionalWriter,
    Writer,
)
from stream_app.kafka.connection import (
    admin,
    client_options,
    consumer,
    producer,
    stop,
    transactional_writer,
)
from stream_app.kafka.errors import KafkaError, unreachable
from stream_app.kafka.topics import (
    DEFAULT_PARTITIONS,
    PUBLIC,
    TOPICS,
    create_topics,
    partition_count,
    partition_of,
    topic,
)

__all__ = [
    "DEFAULT_PARTITIONS",
    "PUBLIC",
    "TOPICS",
    "GroupReader",
    "KafkaError",
    "PartitionReader",
    "Record",
    "TopicPartition",
    "TransactionalWriter",
    "Writer",
    "admin",
    "client_options",
    "consumer",
    "create_topics",
    "partition_count",
    "partition_of",
    "producer",
    "stop",
    "topic",
    "transactional_writer",
    "unreachable",
]
