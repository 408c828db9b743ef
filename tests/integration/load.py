"""Long runs: a steady rate for half an hour, or more reports than the service can take.

`python -m tests.integration.load soak --minutes 30 --rate 2000` and `... overload --minutes 2`;
`make soak` and `make overload` call them. Both print a line every few seconds (reports sent, taken
and waiting; memory) and fail if a report is not counted, if the service does not catch up, or if
the worker's memory grows. Senders, broker and worker share the cores, so in an overload the worker
is stopped half of the time: its senders are then more than twice as fast. In the end the log is
audited.
"""

import argparse
import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.sharedctypes import Synchronized

from aiokafka import TopicPartition

from producers.transport import KafkaTransport
from stream_app import kafka, registry
from stream_app.core.terms import parse
from stream_app.local.stack import local_stack, on_free_ports
from stream_app.settings import Settings, ShuffleSettings
from stream_app.wire.assignment import decode_offer
from tests.benchmarks.traffic import rows
from tests.integration.probes import rss_mb, series
from tests.integration.service import check, environment, experiment

# A line of figures so often: half an hour then fits on a few screens.
_EVERY_S = 5.0
# Reports that a sender makes at once: a tenth of a second's work, so it sees new batches soon.
_CHUNK = 20_000
# Users of a batch: some batches are released in every second of the overload.
_BATCH = 5_000
# How long the worker is stopped, and then runs: far shorter than its session with Kafka (6 s).
_MOMENT_S = 0.05
# Malloc, Kafka's buffers, and windows that are fuller at one moment than at another.
MARGIN_MB = 20


@dataclass
class Watch:
    """One worker, looked at every few seconds."""

    port: int
    pid: int
    began: float = field(default_factory=time.monotonic)
    memory: list[int] = field(default_factory=list)
    most_waiting: int = 0

    def taken(self) -> int:
        """Reports counted, whatever became of them."""
        return sum(series(self.port, "shufflebandit_reports_total").values())

    def look(self, sent: int) -> int:
        """Print how things stand; returns the reports that wait."""
        taken = self.taken()
        self.memory.append(rss_mb(self.pid))
        waiting = max(0, sent - taken)
        self.most_waiting = max(self.most_waiting, waiting)
        seconds = time.monotonic() - self.began
        print(
            f"{seconds:6.0f} s  sent {sent:>10}  taken {taken:>10}  waiting {waiting:>9}  "
            f"memory {self.memory[-1]} MB",
            flush=True,
        )
        return waiting

    def flat(self) -> None:
        """Memory of the last quarter against that of the second: the first fills the buffers."""
        quarter = max(1, len(self.memory) // 4)
        before = max(self.memory[quarter : 2 * quarter])
        after = max(self.memory[-quarter:])
        print(f"memory: {before} MB before, {after} MB after; most waiting {self.most_waiting}")
        assert after <= before + MARGIN_MB, "memory grows"


@contextmanager
def service(names: Sequence[str], *, retain: bool) -> Iterator[tuple[Settings, Watch]]:
    """A broker, a worker with all roles, and experiments without an end."""
    wanted = Settings(shuffle=ShuffleSettings(retain_reports_for_audit=retain))
    with local_stack(on_free_ports(wanted), partitions=len(names)) as stack:
        asyncio.run(_create(stack.settings, names))
        yield stack.settings, Watch(stack.settings.metrics.port, stack.worker.pid)


async def _create(settings: Settings, names: Sequence[str]) -> None:
    for name in names:
        await registry.create(
            settings.kafka,
            # Batches of one size: windows that grow would look like memory that grows.
            experiment(
                name,
                preset="vb-sdp-ae",
                epsilon=0.9,
                horizon=10**9,
                means=[0.5] * 3,
                schedule="fixed",
                batch_size=_BATCH,
            ),
        )


def catch_up(watch: Watch, sent: int, limit_s: float = 600) -> None:
    """Until every report is counted; fails if that takes too long."""
    deadline = time.monotonic() + limit_s
    while watch.look(sent):
        assert time.monotonic() < deadline, "it does not catch up"
        time.sleep(_EVERY_S)
    assert watch.taken() == sent, f"{watch.taken()} counted of {sent}"


def soak(minutes: float, rate: float) -> None:
    """Real clients at a steady rate; their processes tell how many reports were acknowledged."""
    names = ["soak-0", "soak-1"]
    with service(names, retain=False) as (settings, watch):
        users = int(rate * minutes * 60 / len(names))
        command = [sys.executable, "-m", "stream_app", "users"]
        crowds = [
            subprocess.Popen(
                [*command, name, "--rate", str(rate / len(names)), "--users", str(users)],
                env=environment(settings),
                stdout=subprocess.DEVNULL,
            )
            for name in names
        ]
        while any(crowd.poll() is None for crowd in crowds):
            watch.look(watch.taken())
            time.sleep(_EVERY_S)
        assert [crowd.returncode for crowd in crowds] == [0, 0]
        catch_up(watch, users * len(names))
        watch.flat()


def overload(minutes: float) -> None:
    """Senders that are more than twice as fast as the service, and no slower when it is behind."""
    names = ["overload-0", "overload-1"]
    with service(names, retain=True) as (settings, watch):
        sent: Synchronized[int] = multiprocessing.Value("q", 0)
        ends = time.monotonic() + 60 * minutes
        senders = [
            multiprocessing.Process(target=_sender, args=(settings, name, ends, sent))
            for name in names
        ]
        for sender in senders:
            sender.start()
        with _halved(watch.pid):
            while any(sender.is_alive() for sender in senders):
                watch.look(sent.value)
                time.sleep(_EVERY_S)
        assert [sender.exitcode for sender in senders] == [0, 0]
        taken = watch.taken()
        total = sent.value
        print(f"sent {total / taken:.2f} times what was taken in that time")
        assert total > 2 * taken, "the senders were not twice as fast: this shows too little"
        catch_up(watch, total)
        watch.flat()
        written, audited = asyncio.run(_audited(settings, names))
        print(f"{written} reports in the log; {audited[0]} batches of {audited[1]} audited")
        assert written == total


@contextmanager
def _halved(pid: int) -> Iterator[None]:
    """Stop a process for every other moment, far shorter than its session with Kafka."""
    over = threading.Event()

    def halve() -> None:
        while not over.wait(_MOMENT_S):
            os.kill(pid, signal.SIGSTOP)
            over.wait(_MOMENT_S)
            os.kill(pid, signal.SIGCONT)

    halving = threading.Thread(target=halve)
    halving.start()
    try:
        yield
    finally:
        over.set()
        halving.join()


async def _audited(settings: Settings, names: Sequence[str]) -> tuple[int, tuple[int, int]]:
    """How many reports the log holds, and what verify and audit found in it."""
    topic = kafka.topic(settings.kafka, "reports")
    async with kafka.consumer(settings.kafka) as consumer:
        ends = await consumer.end_offsets([TopicPartition(topic, n) for n in range(len(names))])
    return sum(ends.values()), await check(settings, names)


def _sender(settings: Settings, name: str, ends: float, sent: "Synchronized[int]") -> None:
    asyncio.run(_flood(settings, name, ends, sent))


async def _flood(settings: Settings, name: str, ends: float, sent: "Synchronized[int]") -> None:
    """Reports to the batch that was open when each chunk began: many will be late, none lost."""
    transport = KafkaTransport(settings.kafka, name)
    await transport.open()
    newest: list[bytes] = []

    async def follow() -> None:
        async for value in transport.follow():
            newest[:] = [value or b""]

    following = asyncio.ensure_future(follow())
    try:
        while not newest:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        sending: list[asyncio.Future[None]] = []
        while time.monotonic() < ends:
            batch = parse(decode_offer(newest[0]).open[0][1])
            sending.append(asyncio.ensure_future(transport.send([rows(batch, _CHUNK)])))
            if len(sending) == 3:
                await sending.pop(0)
                with sent.get_lock():
                    sent.value += _CHUNK
            await asyncio.sleep(0)
        for rest in sending:
            await rest
            with sent.get_lock():
                sent.value += _CHUNK
    finally:
        following.cancel()
        await transport.close()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["soak", "overload"])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--rate", type=float, default=2_000, help="users a second, for soak")
    given = parser.parse_args()
    if given.what == "soak":
        soak(given.minutes, given.rate)
    else:
        overload(given.minutes)
    print("nothing lost, memory flat")


if __name__ == "__main__":
    main()
