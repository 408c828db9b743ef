"""The chaos run: workers, producers and broker under a seeded schedule of kills and freezes.

`python -m tests.integration.chaos.chaos --minutes 10 --seed 7` runs it by hand; `make chaos`
calls that. A failure prints the seed, which replays the same schedule of events.
"""

import argparse
import asyncio
import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stream_app import registry
from stream_app.core.experiment import Experiment
from stream_app.core.state import Status
from stream_app.kafka.reading import read_partition
from stream_app.local.broker import LocalBroker
from stream_app.settings import Settings
from stream_app.shuffler.released import SAVED
from tests.integration.service import (
    WorkerProcess,
    check,
    environment,
    experiment,
    last_assignment,
    settings_for,
    topics,
    workers,
)

# Longer than the group's session: when it wakes up, its partitions are another's.
_FREEZE_S = 9.0
_ROLES = ("shuffle,agent", "shuffle", "agent")
_EVENTS = {
    "kill worker": 40,
    "stop worker": 10,
    "freeze worker": 6,
    "kill broker": 4,
    "freeze broker": 4,
    "restart broker": 2,
    "fill disk": 2,
    "kill producer": 38,
}
_DISK_MB = 3_000
# An idle machine of two cores has about one kill in four seconds.
_KILLS_A_SECOND = 1 / 6
_PATIENCE = 3  # times the given time, for a machine that is busy with other things
_AGENTS: tuple[dict[str, Any], ...] = (
    {"order": "sequential"},
    {"order": "interleaved"},
    {"preset": "vb-sdp-ae", "epsilon": 0.9, "schedule": "fixed", "batch_size": 60},  # many sums
    {"preset": "kl-ucb", "order": "interleaved"},
)


@dataclass
class Chaos:
    """One run: what happened, and to whom."""

    settings: Settings
    broker: LocalBroker
    chance: random.Random
    running: list[WorkerProcess]
    events: Counter[str] = field(default_factory=Counter)
    producers: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)

    async def event(self) -> None:
        """One of the events, by weight."""
        (name,) = self.chance.choices(list(_EVENTS), list(_EVENTS.values()))
        if name == "fill disk" and not _is_mounted(self.broker.data):
            name = "restart broker"  # never fill a disk that others use
        worker = self.chance.choice(self.running)
        self.events[name] += 1
        match name:
            case "kill worker":
                worker.kill()
                worker.start()
            case "stop worker":
                await asyncio.to_thread(worker.stop)  # `revive` starts it again
            case "freeze worker":
                worker.pause()
                await asyncio.sleep(_FREEZE_S)
                worker.resume()
            case "kill broker":
                await asyncio.to_thread(self.broker.kill)
                await asyncio.sleep(self.chance.uniform(0, 3))
                await asyncio.to_thread(self.broker.start)
            case "freeze broker":
                await asyncio.to_thread(self.broker.freeze, self.chance.uniform(1, 5))
            case "restart broker":
                await asyncio.to_thread(self.broker.restart)
            case "fill disk":
                await self.fill_disk()
            case "kill producer":
                with contextlib.suppress(ProcessLookupError):
                    self.chance.choice(list(self.producers.values())).kill()

    async def fill_disk(self) -> None:
        """Not a byte is left for Kafka, which fails in its own way; then there is room again."""
        assert self.broker.data is not None
        junk = self.broker.data / "junk"
        try:
            with junk.open("wb") as file:
                offset = 0
                size = 1 << 30
                while size >= 1 << 12:  # Kafka takes of it at the same time
                    try:
                        os.posix_fallocate(file.fileno(), offset, size)
                        offset += size
                    except OSError:
                        size //= 2
            await asyncio.sleep(5)
            await asyncio.to_thread(self.broker.kill)
        finally:
            junk.unlink()
        await asyncio.to_thread(self.broker.start)

    @property
    def kills(self) -> int:
        """Workers and producers that were killed."""
        return self.events["kill worker"] + self.events["kill producer"]

    async def rage(self, users: list[asyncio.Future[None]], seconds: float) -> None:
        """Events at random moments, for so long or until all users are through.

        A busy machine gets longer, until it has seen as many kills as it should have.
        """
        least = int(seconds * _KILLS_A_SECOND)
        while len(self.producers) < len(users):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        start = time.monotonic()
        while not all(task.done() for task in users):
            passed = time.monotonic() - start
            if passed > seconds and (self.kills >= least or passed > _PATIENCE * seconds):
                return
            await asyncio.sleep(self.chance.uniform(0.2, 1.4))
            await self.event()

    async def revive(self) -> None:
        """Start workers again that were stopped, or gave up since no Kafka answered them."""
        while True:
            await asyncio.sleep(1)
            for worker in self.running:
                if worker.process.poll() is not None:
                    worker.start()

    def end(self, users: list[asyncio.Future[None]]) -> None:
        """Leave nothing running, whatever happened."""
        for task in users:
            task.cancel()
        for process in self.producers.values():
            if process.returncode is None:
                process.kill()

    async def produce(self, definition: Experiment) -> None:
        """Users for one experiment, from a new process whenever the old one dies."""
        while True:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "stream_app", "users", definition.name, "--rate", "300",
                env=environment(self.settings),
                stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            self.producers[definition.name] = process
            if await process.wait() == 0:
                return
            await asyncio.sleep(1)


def _is_mounted(folder: Path | None) -> bool:
    return folder is not None and folder.is_mount()


@contextlib.contextmanager
def small_disk() -> Iterator[Path]:
    """A disk of its own for the broker, where this user may mount one; else a folder."""
    with tempfile.TemporaryDirectory() as name:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_MB}m", "chaos", name]
        mounted = not subprocess.run(mount, capture_output=True, check=False).returncode
        try:
            yield Path(name)
        finally:
            if mounted:
                subprocess.run(["umount", "--lazy", name], check=True)


async def run(broker: LocalBroker, folder: Path, minutes: float, seed: int) -> Counter[str]:
    """Chaos for some minutes, then quiet until every experiment has ended, then the auditor."""
    # Little may be read again, so that checkpoints and the list of releases are written often.
    settings = settings_for(broker.bootstrap, max_reread_records=1_000)
    await topics(settings, 4)
    # About as many users as come in that time: the experiments end soon after the chaos.
    definitions = [
        experiment(f"chaos-{i}", horizon=int(minutes * 60 * 150), means=[0.5, 0.5, 0.5], **agent)
        for i, agent in enumerate(_AGENTS)
    ]
    for definition in definitions:
        await registry.create(settings.kafka, definition)
    with workers(settings, folder, *_ROLES) as running:
        chaos = Chaos(settings, broker, random.Random(seed), running)
        users = [asyncio.ensure_future(chaos.produce(d)) for d in definitions]
        reviving = asyncio.ensure_future(chaos.revive())
        try:
            await chaos.rage(users, 60 * minutes)
            async with asyncio.timeout(120 + 60 * minutes):
                await asyncio.gather(*users)
        finally:
            reviving.cancel()
            chaos.end(users)
    for definition in definitions:
        state = (await last_assignment(settings, definition.name)).state
        assert state.status is not Status.RUNNING
    batches, reports = await check(settings, [d.name for d in definitions])
    lists = [
        record.offset
        for partition in range(4)
        async for records in read_partition(settings.kafka, "windows", partition)
        for record in records
        if record.key == SAVED
    ]
    return chaos.events + Counter(batches=batches, reports=reports, lists=len(lists))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    with (
        small_disk() as disk,
        LocalBroker(disk) as broker,
        tempfile.TemporaryDirectory() as folder,
    ):
        print(dict(asyncio.run(run(broker, Path(folder), given.minutes, given.seed))))


if __name__ == "__main__":
    main()
