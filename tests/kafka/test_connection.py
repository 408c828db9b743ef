"""Clients that cannot connect, or cannot stop, are given up in bounded time."""

import asyncio
import logging
import socket
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from aiokafka import AIOKafkaProducer

from stream_app import kafka
from stream_app.errors import Unavailable
from stream_app.local.broker import LocalBroker
from stream_app.settings import KafkaSettings
from tests.support.transcripts import fresh_settings, make_topics

pytestmark = pytest.mark.kafka


@pytest.fixture
def mute() -> Iterator[str]:
    """An address that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


async def test_a_mute_address_is_given_up(mute: str) -> None:
    """In one line, by the deadline, whatever the client."""
    settings = replace(KafkaSettings(), bootstrap=mute, connect_timeout_s=1)
    started = time.monotonic()
    for client in (kafka.admin(settings), kafka.consumer(settings), kafka.producer(settings)):
        with pytest.raises(Unavailable, match="no Kafka answers there"):
            await client.__aenter__()

    assert time.monotonic() - started < 9


@pytest.mark.slow
async def test_a_producer_that_cannot_stop_is_ended(caplog: pytest.LogCaptureFixture) -> None:
    """Kafka goes away within a transaction: it ends in bounded time, and tries no connection."""
    caplog.set_level(logging.INFO, "aiokafka")  # whatever a command in this process has set
    with LocalBroker() as own:
        settings = fresh_settings(own)
        await make_topics(settings)
        producer = AIOKafkaProducer(
            **kafka.client_options(settings), transactional_id="test", retry_backoff_ms=10
        )
        await producer.start()
        await producer.begin_transaction()
        own.kill()
        sent = await producer.send(kafka.topic(settings, "sums"), b"{}", partition=0)
        async with asyncio.timeout(10):
            await kafka.stop(producer)
        sent.cancel()
        tried = "Unable connect" in caplog.text
        caplog.clear()
        await asyncio.sleep(1)

        assert tried
        assert caplog.text == ""
