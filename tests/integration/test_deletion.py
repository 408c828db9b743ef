"""After its experiment no report is left on the topic; and none was missed, kills or not.

The reports are gone from the log, so the clients here remember what they sent, and the naive
auditor recounts from that.
"""

import asyncio
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from stream_app import kafka, registry
from stream_app.audit.recount import audit
from stream_app.audit.verify import verify
from stream_app.core.state import Status
from stream_app.core.terms import Terms
from stream_app.kafka.reading import read_partition
from stream_app.local.broker import LocalBroker
from stream_app.settings import Settings
from stream_app.wire.assignment import Assignment, decode_assignment
from stream_app.wire.report import encode_report
from tests.integration.service import (
    experiment,
    settings_for,
    topics,
    workers,
)
from tests.support import partition_log

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


class Clients:
    """Fill open batches, and remember every report with its place in the log."""

    def __init__(
        self, settings: Settings, producer: AIOKafkaProducer, reader: AIOKafkaConsumer
    ) -> None:
        self.settings = settings
        self.producer = producer
        self.reader = reader
        reader.assign([TopicPartition(kafka.topic(settings.kafka, "assignments"), 0)])
        self.newest: dict[str, Assignment] = {}
        self.copy = partition_log.Kafka(topics={"reports": []})
        self.filled: dict[str, int] = {}
        self.next_id = 0

    async def fill(self, name: str, most: int | None = None) -> Status:
        """The open batches up to their size, or so many reports each; what the agent says."""
        for records in (await self.reader.getmany(timeout_ms=100)).values():
            for record in records:
                self.newest[record.key.decode()] = decode_assignment(record.value)
        assignment = self.newest.get(name)
        if assignment is None:
            return Status.RUNNING
        for batch in assignment.state.open:
            terms = assignment.terms(batch)
            size = terms.mechanism.promise.batch_size + 1
            await self._send(terms, size if most is None else most)
        return assignment.state.status

    async def _send(self, terms: Terms, upto: int) -> None:
        sent = []
        for number in range(self.filled.get(terms.batch_id, 0), upto):
            self.next_id += 1
            ones = terms.mechanism.max_ones // 2 + number % 2
            value = encode_report(terms.batch_id, partition_log.report_id(self.next_id), ones)
            key = terms.experiment.encode()
            name = kafka.topic(self.settings.kafka, "reports")
            sent.append((key, value, await self.producer.send(name, value, key=key, partition=0)))
        for key, value, future in sent:
            record = partition_log.Record((await future).offset, key, value)
            self.copy.topics["reports"].append((record, True))
        self.filled[terms.batch_id] = max(upto, self.filled.get(terms.batch_id, 0))

    async def audit(self) -> int:
        """Recount every sum, aborted ones too, from what was sent; returns how many there are."""
        self.copy.topics["sums"] = [
            (partition_log.Record(record.offset, record.key, record.value), True)
            async for chunk in read_partition(self.settings.kafka, "sums", 0, committed=False)
            for record in chunk
        ]
        return len(partition_log.audit(self.copy))


async def bounds(settings: Settings) -> tuple[int, int]:
    place = TopicPartition(kafka.topic(settings.kafka, "reports"), 0)
    async with kafka.consumer(settings.kafka, committed=False) as reader:
        first = await reader.beginning_offsets([place])
        end = await reader.end_offsets([place])
    return first[place], end[place]


async def emptied(settings: Settings) -> int:
    """Wait until no report is on the topic; returns how many were."""
    async with asyncio.timeout(30):
        while True:
            first, end = await bounds(settings)
            if first == end:
                return end
            await asyncio.sleep(0.2)


async def test_no_report_is_left(broker: LocalBroker, tmp_path: Path) -> None:
    """One experiment runs, one stalls beside it, the worker is killed on the way: all right, all
    gone; and what the stalled one had is not lost, though its reports were deleted too.
    """
    settings = settings_for(
        broker.bootstrap,
        retain_reports_for_audit=False,
        max_reread_records=200,
        max_unsaved_s=1,
        instance_id="one",
    )
    await topics(settings, 1)
    for name in ("busy", "stalled"):
        await registry.create(settings.kafka, experiment(name, horizon=3000, means=[0.5] * 3))
    async with kafka.producer(settings.kafka) as producer, kafka.consumer(settings.kafka) as reader:
        clients = Clients(settings, producer, reader)
        with workers(settings, tmp_path, "shuffle", "agent") as running:
            async with asyncio.timeout(120):
                kills = 0
                while await clients.fill("busy") is Status.RUNNING:
                    await clients.fill("stalled", most=5)
                    if len(clients.filled) > 3 * (kills + 1) and kills < 4:
                        running[0].kill()
                        running[0].start()
                        kills += 1
                await clients.fill("stalled", most=5)
                early = await emptied(settings)
                running[0].kill()
                running[0].start()
                while await clients.fill("stalled") is Status.RUNNING:
                    pass
                whole = await emptied(settings)
    batches = await clients.audit()
    print(f"{kills + 1} kills, {batches} batches, {early} and {whole} reports deleted")

    assert kills == 4
    assert 0 < early < whole
    for name in ("busy", "stalled"):
        verified = await verify(settings.kafka, name)
        audited = await audit(settings.kafka, name)
        assert verified.differences == audited.differences == ()
        assert len(audited.unchecked) == verified.batches > 5
        assert "its reports were deleted" in audited.unchecked[0]
