"""Two workers under fire: what is sent to them, and what their endpoints say they counted."""

import asyncio
import contextlib
import dataclasses
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.protocol.produce import ProduceRequest

from stream_app import kafka
from stream_app.errors import InvalidInput
from stream_app.local.broker import free_port
from stream_app.settings import Settings
from stream_app.wire.assignment import decode_assignment
from stream_app.wire.report import encode_report
from stream_app.wire.sum import decode_sum
from tests.integration.fuzz.inputs import Inputs, unparsable
from tests.integration.probes import rss_mb, series
from tests.integration.service import WorkerProcess

_TOPICS = {"reports": 90, "assignments": 5, "experiments": 5}


@dataclass
class Site:
    """Two workers, what was sent to them, and good records to make bad ones from."""

    settings: Settings
    folder: Path
    inputs: Inputs
    producer: AIOKafkaProducer
    reader: AIOKafkaConsumer
    workers: dict[str, WorkerProcess] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    sent: Counter[str] = field(default_factory=Counter)
    samples: dict[str, bytes] = field(default_factory=dict)
    batch: tuple[str, int] = ("1.x", 1)
    names: list[str] = field(default_factory=list)

    def topic(self, name: str) -> str:
        return kafka.topic(self.settings.kafka, name)

    def start(self, name: str, roles: str) -> None:
        """A worker with an endpoint of its own."""
        port = free_port()
        metrics = dataclasses.replace(self.settings.metrics, port=port)
        monitor = dataclasses.replace(self.settings.monitor, port=free_port())
        settings = dataclasses.replace(self.settings, metrics=metrics, monitor=monitor)
        self.ports[name] = port
        self.workers[name] = WorkerProcess(settings, roles, self.folder / f"{name}.log")

    async def samples_of(self, worker: str, metric: str) -> dict[tuple[str, ...], int]:
        """A metric's series by their labels' values, from the worker's endpoint."""
        return await asyncio.to_thread(series, self.ports[worker], metric)

    async def counted(self) -> tuple[int, int, int]:
        """Reports by the shuffle stage, and what both stages refused on the other topics."""
        refusals = "shufflebandit_refusals_total"
        return (
            sum((await self.samples_of("shuffle", "shufflebandit_reports_total")).values()),
            (await self.samples_of("shuffle", refusals))["shuffle",],
            (await self.samples_of("agent", refusals))["agent",],
        )

    def rss_mb(self) -> dict[str, int]:
        return {name: rss_mb(worker.pid) for name, worker in self.workers.items()}

    async def learn(self) -> None:
        """Keep the newest good record of each topic."""
        for place, records in (await self.reader.getmany(timeout_ms=0)).items():
            short = place.topic.rpartition(".")[2]
            for record in records:
                if record.key in {name.encode() for name in self.names}:
                    self._learn(short, record.value)

    def _learn(self, topic: str, value: bytes | None) -> None:
        with contextlib.suppress(InvalidInput):
            if topic == "assignments":
                assignment = decode_assignment(value)
                if assignment.state.open:
                    terms = assignment.terms(assignment.state.open[0])
                    self.batch = (terms.batch_id, terms.mechanism.max_ones)
            else:
                decode_sum(value)
            self.samples[topic] = value or b""

    async def send(self, topic: str, key: bytes | None, value: bytes | None) -> None:
        headers = self.inputs.headers()
        value = b"" if key is None and value is None else value  # aiokafka would not send it
        await self.producer.send(self.topic(topic), value, key=key, partition=0, headers=headers)
        self.sent[topic] += 1

    async def round(self, size: int) -> None:
        """So many inputs, and a batch that cannot be parsed; all are acknowledged at its end."""
        await self.learn()
        for topic in self.inputs.chance.choices(list(_TOPICS), list(_TOPICS.values()), k=size):
            if topic == "reports":
                key = self.inputs.key(self.names[-1].encode(), null=True)
                await self.send(topic, key, self._report())
            else:
                key = self.inputs.key(b"fuzz", null=False)
                await self.send(topic, key, self.inputs.value(self.samples[topic]))
        await self.producer.flush()
        await self.poison("reports", self._report() or b"")

    def _report(self) -> bytes | None:
        """Nonsense made from a report to the open batch; now and then one that is almost right."""
        chance = self.inputs.chance
        (batch_id, bits) = self.batch
        sample = encode_report(batch_id, chance.randbytes(16), bits // 2)
        if chance.random() > 0.1:
            return self.inputs.value(sample)
        self.inputs.kinds["almost right"] += 1
        almost = (
            encode_report(batch_id, b"the same as ever", bits // 2),
            encode_report(batch_id, chance.randbytes(16), bits + 1),
            encode_report(batch_id, chance.randbytes(16), 10**9),
            encode_report(batch_id, chance.randbytes(16), -1),
            encode_report(batch_id, chance.randbytes(15), 1),
            encode_report("999." + batch_id.partition(".")[2], chance.randbytes(16), 1),
            sample.rstrip() + b" " * chance.choice([0, 1, 200, 2_000]),
        )
        return chance.choice(almost)

    async def poison(self, topic: str, value: bytes) -> None:
        """Past aiokafka, which would not write such a batch."""
        name = self.topic(topic)
        client = self.producer.client
        node = client.cluster.leader_for_partition(TopicPartition(name, 0))
        batch = unparsable(b"other", value)
        answer = await client.send(node, ProduceRequest(None, -1, 5_000, [(name, [(0, batch)])]))
        assert answer.topics[0][1][0][1] == 0
        self.inputs.kinds["unparsable"] += 3
        self.sent[topic] += 3

    async def end(self, topic: str) -> int:
        place = TopicPartition(self.topic(topic), 0)
        return int((await self.reader.end_offsets([place]))[place])

    async def due(self) -> tuple[int, int, int]:
        """What must have been counted: all that is on `reports`, and all nonsense elsewhere."""
        return (
            await self.end("reports"),
            self.sent["assignments"] + self.sent["windows"],
            self.sent["experiments"] + self.sent["sums"],
        )

    async def caught_up(self, limit_s: float = 300) -> None:
        """Until all that stands on the topics now has been counted."""
        due = await self.due()
        deadline = time.monotonic() + limit_s
        while True:
            counted = await self.counted()
            if all(a >= b for a, b in zip(counted, due, strict=True)):
                return
            assert time.monotonic() < deadline, f"counted {counted}, due {due}"
            await asyncio.sleep(0.5)
