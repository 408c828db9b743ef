"""The edge to Kafka: clients, topics, readings, and errors in one line."""

from stream_app.kafka.connection import (
    admin,
    client_options,
    consumer,
    make_consumer,
    producer,
    stop,
)
from stream_app.kafka.errors import unreachable
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
    "admin",
    "client_options",
    "consumer",
    "create_topics",
    "make_consumer",
    "partition_count",
    "partition_of",
    "producer",
    "stop",
    "topic",
    "unreachable",
]
