"""Many processes on one store, with kills: no user reports twice, none that was committed is lost.

    python -m tests.producers.many_processes      # 8 processes, 100 000 users, 40 kills

Every visit goes to a random process. A process chooses, clicks for some, "sends" by appending to a
file of its own, and is killed (SIGKILL) at a random moment. At the end one more process takes over
what waits. What is sent twice has the same id and the same count, as a retry to Kafka has.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from producers.client_state import ClientState
from producers.file_store import FileStore
from producers.store_tables import connect
from tests.producers.build import assignment, banners, state

WINDOW_S = "1"
# Many visits within one tick of the store: so races of processes for one user do happen.
VISITS_AT_ONCE = 40
PAUSE_S = 0.02


class Process:
    """One process of the product."""

    def __init__(self, folder: Path, users: int, seed: int) -> None:
        self._log = os.open(folder / f"{seed}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._random = random.Random(seed)
        self._users = users
        self._store = FileStore(folder / "store")
        self._made = client(self._store)
        self._clicks: list[tuple[str, int]] = []

    def run(self) -> None:
        """Until killed."""
        while True:
            for _ in range(VISITS_AT_ONCE):
                self._visit(str(self._random.randrange(self._users)))
            self.send()
            time.sleep(PAUSE_S)

    def _visit(self, user: str) -> None:
        made = self._made
        shown = made.choose(user)
        own = shown.report_id in made.waiting
        if shown.batch_id and self._random.random() < 0.3 and made.report(shown, 1) and own:
            self._clicks.append((shown.report_id.hex(), made.waiting[shown.report_id].noise))

    def send(self) -> None:
        """What is due, after it is durable; then what is durable of clicks."""
        made = self._made
        made.take_news()
        made.due()
        self._store.sync()
        made.take_news()
        if not self._store._commits.rewards:
            # A lost claim takes its click along.
            self._say([["clicked", *each] for each in self._clicks])
            self._clicks.clear()
        sent = [
            ["sent", report.shown.report_id.hex(), report.ones, report.user.hex()]
            for report in made.leaving
        ]
        self._say(sent)
        made.end(made.leaving)
        made.leaving.clear()

    def _say(self, lines: list[list[Any]]) -> None:
        os.write(self._log, b"".join(json.dumps(line).encode() + b"\n" for line in lines))

    def finish(self) -> None:
        """Take over all that waits, and send it."""
        while self._made.bound or self._store._tables.pending():
            self.send()
            time.sleep(PAUSE_S)
        self._store.close()


def client(store: FileStore) -> ClientState:
    """A client with one long batch and a short window."""
    experiment = banners(attribution_s=WINDOW_S)
    return state(
        assignment(experiment),
        store=store,
        clock=lambda: time.time_ns() // 1_000_000,
        max_waiting=1_000_000,
    )


@dataclass(frozen=True, slots=True)
class Found:
    """What the logs and the store say at the end."""

    users: int  # with a claim in the store
    reports: int
    twice: int  # users with two reports
    lost: int  # users with a claim and no report
    other_count: int  # reports that were sent again with another count
    clicks: int  # durable ones
    clicks_lost: int

    @property
    def holds(self) -> bool:
        """Whether all is as promised."""
        return not (self.twice or self.lost or self.other_count or self.clicks_lost)


def play(folder: Path, processes: int, users: int, kills: int, least_s: float, seed: int) -> Found:
    """Run processes, kill some, end all by kill, and look at what is left."""
    chance = random.Random(seed)
    numbers = iter(range(1, 1 + processes + kills))
    running = [_start(folder, users, next(numbers)) for _ in range(processes)]
    until = time.monotonic() + least_s
    for _ in range(kills):
        time.sleep(max(0.2, least_s / (kills + 1)) * chance.uniform(0.5, 1.5))
        place = chance.randrange(processes)
        _kill(running[place])
        running[place] = _start(folder, users, next(numbers))
    time.sleep(max(0.0, until - time.monotonic()))
    for process in running:
        _kill(process)
    Process(folder, users, 0).finish()
    return _found(folder)


def _start(folder: Path, users: int, seed: int) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", __spec__.name, str(folder), str(users), str(seed)]
    process = subprocess.Popen(command)
    while not (folder / f"{seed}.log").exists() and process.poll() is None:
        time.sleep(0.01)
    return process


def _kill(process: "subprocess.Popen[bytes]") -> None:
    assert process.poll() is None, "a process ended by itself"
    process.send_signal(signal.SIGKILL)
    process.wait()


def _found(folder: Path) -> Found:
    counts: dict[str, set[int]] = {}
    by_user: dict[str, set[str]] = {}
    noise: dict[str, int] = {}  # of those who clicked
    for log in folder.glob("*.log"):
        # A kill may cut the last line off.
        for line in log.read_bytes().split(b"\n")[:-1]:
            kind, report_id, number, *user = json.loads(line)
            if kind == "clicked":
                noise[report_id] = number
            else:
                counts.setdefault(report_id, set()).add(number)
                by_user.setdefault(user[0], set()).add(report_id)
    with closing(connect(folder / "store")) as database:
        claimed = {tag.hex() for (tag,) in database.execute("SELECT tag FROM users")}
    clicked = noise.keys() & counts.keys()
    return Found(
        users=len(claimed),
        reports=len(counts),
        twice=sum(len(ids) > 1 for ids in by_user.values()),
        lost=len(claimed - by_user.keys()),
        other_count=sum(len(each) > 1 for each in counts.values()),
        clicks=len(clicked),
        clicks_lost=sum(counts[each] != {noise[each] + 1} for each in clicked),
    )


def main() -> None:
    """A worker, or the whole run."""
    if len(sys.argv) > 1:
        folder, users, seed = sys.argv[1:]
        Process(Path(folder), int(users), int(seed)).run()
    with tempfile.TemporaryDirectory() as made:
        found = play(Path(made), processes=8, users=100_000, kills=40, least_s=240, seed=1)
    print(found)
    print("holds" if found.holds else "DOES NOT HOLD")
    sys.exit(0 if found.holds else 1)


if __name__ == "__main__":
    main()
