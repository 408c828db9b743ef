"""The fuzz run: nonsense on the topics while real experiments go on beside it.

`python -m tests.integration.fuzz.fuzz --inputs 1000000 --seed 7` runs it by hand; `make fuzz`
calls that. Reports come from clients, who are trusted with nothing; assignments from the agent,
whom clients, shuffle stage and monitor do not trust; definitions from the operator. Only the
shuffle stage may write `sums` and `windows`: what damage there does is looked at as well.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import random
import re
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.protocol.produce import ProduceRequest
from prometheus_client.parser import text_string_to_metric_families

from stream_app import kafka, registry
from stream_app.broker import LocalBroker, free_port
from stream_app.config import Settings
from stream_app.core.agents import Status
from stream_app.errors import InvalidInput
from stream_app.messages import (
    Definition,
    decode_assignment,
    decode_sum,
    encode_report,
)
from tests.integration.fuzz.inputs import Inputs, unparsable
from tests.integration.service import (
    Worker,
    check,
    environment,
    experiment,
    last_assignment,
    settings_for,
    topics,
)

_ROUND = 500
_TOPICS = {"reports": 90, "assignments": 5, "experiments": 5}
# What the endpoint's own growth, malloc and Kafka's buffers may add.
MARGIN_MB = 40
# What a warning names: a key in Python's notation, a batch, an offset.
_REFUSED = re.compile(
    r"""refused (.*? b(?:'(?:[^'\\]|\\.)*'|"[^"]*")|batch \S+|sum at offset \d+)"""
)


@dataclass
class Site:
    """Two workers, what was sent to them, and good records to make bad ones from."""

    settings: Settings
    folder: Path
    inputs: Inputs
    producer: AIOKafkaProducer
    reader: AIOKafkaConsumer
    workers: dict[str, Worker] = field(default_factory=dict)
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
        self.workers[name] = Worker(settings, roles, self.folder / f"{name}.log")

    async def samples_of(self, worker: str, metric: str) -> dict[tuple[str, ...], int]:
        """A metric's series by their labels' values, from the worker's endpoint."""
        url = f"http://127.0.0.1:{self.ports[worker]}/metrics"
        text = await asyncio.to_thread(
            lambda: urllib.request.urlopen(url, timeout=20).read().decode()
        )
        return {
            tuple(sample.labels.values()): int(sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == metric
        }

    async def counted(self) -> tuple[int, int, int]:
        """Reports by the shuffle stage, and what both stages refused on the other topics."""
        refusals = "shufflebandit_refusals_total"
        return (
            sum((await self.samples_of("shuffle", "shufflebandit_reports_total")).values()),
            (await self.samples_of("shuffle", refusals))["shuffle",],
            (await self.samples_of("agent", refusals))["agent",],
        )

    def rss_mb(self) -> dict[str, int]:
        return {name: _rss_mb(worker.process.pid) for name, worker in self.workers.items()}

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
                    self.batch = (terms.batch_id, terms.mechanism.bits)
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
        chance, (batch_id, bits) = self.inputs.chance, self.batch
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
        name, client = self.topic(topic), self.producer.client
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
        due, deadline = await self.due(), time.monotonic() + limit_s
        while True:
            counted = await self.counted()
            if all(a >= b for a, b in zip(counted, due, strict=True)):
                return
            assert time.monotonic() < deadline, f"counted {counted}, due {due}"
            await asyncio.sleep(0.5)


def _rss_mb(pid: int) -> int:
    (line,) = [
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmRSS" in line
    ]
    return int(line.split()[1]) // 1024


async def live(site: Site, over: asyncio.Event) -> None:
    """One real experiment after the other, until all inputs are sent; at least one whole."""
    while not (over.is_set() and site.names):
        name = f"fuzz-{len(site.names)}"
        definition = experiment(name, horizon=5_000, means=[0.5] * 3)
        await registry.create(site.settings.kafka, definition)
        site.names.append(name)
        site.samples["experiments"] = Definition(definition).encode()
        await users(site, name)


async def users(site: Site, name: str) -> None:
    """As processes of their own; they may take long to read through the nonsense, and try again."""
    for _ in range(10):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "stream_app", "users", name, "--rate", "400",
            env=environment(site.settings),
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            if await process.wait() == 0:
                return
        finally:
            if process.returncode is None:
                process.kill()
    raise AssertionError(f"{name}: its users get nowhere")


async def damage_windows(site: Site) -> None:
    """Before the shuffle stage starts: nonsense among its checkpoints, one of an open batch."""
    async with asyncio.timeout(60):
        while site.batch[0] == "1.x":
            await site.learn()
            await asyncio.sleep(0.1)
    key = f"{site.names[-1]}/{site.batch[0]}/0".encode()
    await site.send("windows", key, b"?")
    for _ in range(200):
        value = site.inputs.value(b'{"version":1,"batch":"1.x","number":0,"ids":""}')
        key = site.inputs.chance.choice([b"x", b"/", b"//", b"\xff/\xff/\xff", b"a/b/c"])
        await site.producer.send(site.topic("windows"), value, key=key, partition=0)
    await site.producer.flush()


async def damage_sums(site: Site, inputs: int) -> None:
    """After all: the agent refuses and counts; the shuffle stage does not open such a partition.

    What cannot be read could hide a release, so there is no safe way on; the log names the place.
    """
    shuffle = site.workers["shuffle"]
    for _ in range(inputs):
        value = site.inputs.value(site.samples["sums"])
        with contextlib.suppress(InvalidInput):
            decode_sum(value)
            continue
        await site.send("sums", site.inputs.key(b"fuzz", null=True), value)
    await site.producer.flush()
    await site.caught_up()
    assert await site.counted() == await site.due()
    await asyncio.to_thread(shuffle.stop)
    shuffle.start()
    assert await asyncio.to_thread(shuffle.process.wait, 60) == 1
    assert "partition not opened" in shuffle.log.read_text()


async def fuzz(site: Site, inputs: int) -> dict[str, Any]:
    """All inputs, in rounds, beside real experiments; what came of them."""
    over, began = asyncio.Event(), time.monotonic()
    site.start("agent", "agent,monitor")
    living = asyncio.ensure_future(live(site, over))
    try:
        await damage_windows(site)
        site.start("shuffle", "shuffle")
        await ready(site, "shuffle")
        await ready(site, "agent")
        before: dict[str, int] = {}
        while site.sent.total() < inputs and not living.done():
            await site.round(min(_ROUND, inputs - site.sent.total()))
            if not before and site.sent.total() >= inputs / 5:
                await site.caught_up()
                before = site.rss_mb()
        over.set()
        await living
    finally:
        living.cancel()
    await site.poison("assignments", b"{}")
    await site.caught_up()
    return {"seconds": round(time.monotonic() - began), "before": before, "after": site.rss_mb()}


async def ready(site: Site, name: str) -> None:
    """Until a worker does its work: what is on a topic before is read, but not counted singly."""
    url = f"http://127.0.0.1:{site.ports[name]}/readyz"
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(OSError):
                await asyncio.to_thread(urllib.request.urlopen, url, timeout=20)
                return
            await asyncio.sleep(0.2)


async def run(broker: LocalBroker, folder: Path, inputs: int, seed: int) -> dict[str, Any]:
    """The whole run; figures out, or an error if anything was lost, stopped or grew."""
    settings = settings_for(broker.bootstrap)
    await topics(settings, 1)
    options = {"max_request_size": 1 << 20, "max_batch_size": 1 << 18, "linger_ms": 2}
    async with (
        kafka.producer(settings.kafka, **options) as producer,
        kafka.consumer(settings.kafka) as reader,
    ):
        site = Site(settings, folder, Inputs(seed), producer, reader)
        reader.assign([TopicPartition(site.topic(name), 0) for name in ("assignments", "sums")])
        try:
            found = await fuzz(site, inputs)
            assert await site.counted() == await site.due()
            await no_harm(site, found)
            found["reports"] = {
                reason or outcome: count
                for (outcome, reason), count in (
                    await site.samples_of("shuffle", "shufflebandit_reports_total")
                ).items()
            }
            found["audited"] = await check(settings, site.names)
            await damage_sums(site, 1_000)
        finally:
            for worker in site.workers.values():
                worker.kill()
    return {**found, "sent": dict(site.sent), "kinds": dict(site.inputs.kinds)}


async def no_harm(site: Site, found: dict[str, Any]) -> None:
    """Nothing stopped, nothing grew, each refusal named once, and the experiments ended."""
    for name in ("shuffle", "agent"):
        await ready(site, name)
        restarts = await site.samples_of(name, "shufflebandit_session_restarts_total")
        assert set(restarts.values()) == {0}
        grown = found["after"][name] - found["before"][name]
        assert grown < MARGIN_MB, f"{name} grew by {grown} MB"
        refused = _REFUSED.findall(site.workers[name].log.read_text())
        repeated = [what for what, times in Counter(refused).items() if times > 1]
        assert repeated == []
        assert 0 < len(refused) <= 1_000
    for name in site.names:
        state = (await last_assignment(site.settings, name)).state
        assert state.status is not Status.RUNNING


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    with LocalBroker() as broker, tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(run(broker, Path(folder), given.inputs, given.seed))
    for name, value in found.items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()
