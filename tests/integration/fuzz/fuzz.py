"""The fuzz run: nonsense on the topics while real experiments go on beside it.

`python -m tests.integration.fuzz.fuzz --inputs 1000000 --seed 7` runs it by hand; `make fuzz`
calls that. Reports come from clients, who are trusted with nothing; assignments from the agent,
whom clients, shuffle stage and monitor do not trust; definitions from the operator. Only the
shuffle stage may write `sums` and `windows`: what damage there does is looked at as well.
"""

import argparse
import asyncio
import contextlib
import random
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from aiokafka import TopicPartition

from stream_app import kafka, registry
from stream_app.core.state import Status
from stream_app.errors import InvalidInput
from stream_app.local.broker import LocalBroker
from stream_app.shuffler.released import SAVED, ReleasedBatches
from stream_app.wire.checkpoint import encode_released
from stream_app.wire.definition import Definition
from stream_app.wire.sum import decode_sum
from tests.integration.fuzz.inputs import Inputs
from tests.integration.fuzz.site import Site
from tests.integration.service import (
    check,
    environment,
    experiment,
    last_assignment,
    settings_for,
    topics,
)

_ROUND = 500
# What the endpoint's own growth, malloc and Kafka's buffers may add.
MARGIN_MB = 40
# What a warning names: a key in Python's notation, a batch, an offset.
_REFUSED = re.compile(
    r"""refused (.*? b(?:'(?:[^'\\]|\\.)*'|"[^"]*")|batch \S+|sum at offset \d+)"""
)


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
    await site.send("windows", SAVED, unlisted(site))
    for _ in range(200):
        value = site.inputs.value(b'{"version":1,"batch":"1.x","number":0,"ids":""}')
        key = site.inputs.chance.choice([b"x", b"/", b"//", b"\xff/\xff/\xff", b"a/b/c"])
        await site.producer.send(site.topic("windows"), value, key=key, partition=0)
    await site.producer.flush()


def unlisted(site: Site) -> bytes | None:
    """A list of releases that cannot be read; one that could be would be believed."""
    while True:
        value = site.inputs.value(encode_released(7, {b"a": 5}, {(b"a", 7)}))
        try:
            ReleasedBatches.saved(value)
        except InvalidInput:
            return value


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
    over = asyncio.Event()
    began = time.monotonic()
    site.start("agent", "agent,monitor")
    living = asyncio.ensure_future(live(site, over))
    try:
        await damage_windows(site)
        site.start("shuffle", "shuffle")
        # What is on a topic before a worker is ready is read, but not counted singly.
        for worker in site.workers.values():
            await asyncio.to_thread(worker.await_ready)
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
        await asyncio.to_thread(site.workers[name].await_ready)
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
