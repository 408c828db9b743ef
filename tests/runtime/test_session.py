"""A session: what it waits for, and that no record of a client's stops it."""

import asyncio
import struct
import time
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c

from stream_app import agent, kafka
from stream_app.local.broker import LocalBroker
from stream_app.metrics.instruments import Metrics
from stream_app.runtime.session import Session
from stream_app.runtime.stage import Stage
from stream_app.settings import Settings
from stream_app.wire.report import encode_report
from tests.runtime.site import open_partitions, opened, site, until
from tests.support.partition_log import assignment, report_id, terms


async def test_ready_with_all_partitions_open_and_transactions_through() -> None:
    """In the order of a life: joined, opened, a slow transaction, Kafka away."""
    stage = Stage(
        "shuffle", "reports", "assignments", False, "group", "", agent.EliminationPartition
    )
    life = Session(Settings().kafka, stage, Metrics().stage("shuffle"))
    assert life.unready() == "its share of the partitions"

    life.partitions.joined = True
    life.partitions.assigned = {1, 2}
    assert life.unready() == "2 partitions to be opened"

    life.partitions.assigned = set()
    assert life.unready() == ""

    life.health.begun = [time.monotonic()]
    assert life.unready() == ""

    life.health.begun = [time.monotonic(), time.monotonic() - 6]
    assert life.unready() == "a transaction to go through"

    life.health.trouble.begins("Kafka is away")
    assert life.unready() == "Kafka is away"
    await life.close()


@pytest.mark.kafka
@pytest.mark.slow
async def test_negative_timestamp(broker: LocalBroker) -> None:
    """A client chooses its records' time, the broker takes any before now: one value even so."""
    async with site(broker) as here:
        worker = here.shuffle()
        await opened(worker)
        batch = terms(size=1)
        await here.send("assignments", b"demo", assignment(batch))
        value = encode_report(batch.batch_id, report_id(1), 1)
        await here.send("reports", b"demo", value, timestamp_ms=-5)
        await until(lambda: here.read("sums"))
        await here.stop(worker)
        await here.report("demo", batch.batch_id, 9)
        again = here.shuffle()
        await opened(again)
        reread: Any = open_partitions(again)[0].state
        await until(lambda: reread.restart_offset() == 2)
        await asyncio.sleep(0.5)

        assert len(await here.audit()) == 1


def compressed(value: bytes) -> bytes:
    """A record batch in zstd, of a stored block: what any client library may send."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    builder.append(0, int(time.time() * 1000), b"demo", value, [])
    plain = bytes(builder.build())
    head = bytearray(plain[:61])
    body = plain[61:]
    block = (1 | len(body) << 3).to_bytes(3, "little") + body
    frame = b"\x28\xb5\x2f\xfd\x20" + bytes([len(body)]) + block
    struct.pack_into(">i", head, 8, 61 - 12 + len(frame))
    struct.pack_into(">h", head, 21, 4)
    whole = head + frame
    struct.pack_into(">I", whole, 17, calc_crc32c(bytes(whole[21:])))
    return bytes(whole)


@pytest.mark.kafka
@pytest.mark.slow
async def test_compressed_report(broker: LocalBroker) -> None:
    """A client that compresses its batches does not stop the stage."""
    async with site(broker) as here:
        worker = here.shuffle()
        await opened(worker)
        name = kafka.topic(here.settings.kafka, "reports")
        await here.send("reports", b"demo", b"?")
        client = here.producer.client
        node = client.cluster.leader_for_partition(TopicPartition(name, 0))
        await client.send(node, ProduceRequest(None, 1, 5_000, [(name, [(0, compressed(b"?"))])]))
        batch = terms(size=1)
        await here.send("assignments", b"demo", assignment(batch))
        await here.report("demo", batch.batch_id, 1)

        assert await until(lambda: here.read("sums"), 6)
