"""Whoever copies the store's files at any moment cannot tell those who clicked from the others."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from producers.file_store import FileStore
from tests.producers.build import Clock, assignment, banners, state
from tests.producers.many_processes import play
from tests.producers.shared_store import crash, files

WINDOW = banners(attribution_s="60")
USERS = 300
TICKS = 20


def rows(path: Path) -> dict[bytes, tuple[Any, ...]]:
    """What the file says of every report that waits."""
    with closing(sqlite3.connect(path)) as database:
        found = database.execute("SELECT * FROM pending").fetchall()
    return {row[0]: row for row in found}


def blocks(path: Path) -> list[int]:
    """The lengths of the blocks of rewards."""
    with closing(sqlite3.connect(path)) as database:
        return [n for (n,) in database.execute("SELECT length(sealed) FROM rewards ORDER BY seq")]


class Run:
    """A product whose users click as `clicks` says, tick by tick; a copy is looked at each time."""

    def __init__(self, path: Path, clicks: int) -> None:
        self.path = path
        self.clock = Clock()
        self.store = FileStore(path)
        self.store._closing.set()
        self.store._thread.join()
        self.made = state(assignment(WINDOW), store=self.store, clock=self.clock)
        self.shown = [self.made.choose(f"{user}") for user in range(USERS)]
        self.tick()
        self.seen = [rows(path)]
        self.sizes = [blocks(path)]
        for tick in range(TICKS):
            for number in range(clicks):
                self.made.report(self.shown[tick * clicks + number], number % 3 > 0)
            self.tick()
            self.seen.append(rows(path))
            self.sizes.append(blocks(path))

    def tick(self) -> None:
        self.store._commits.last_block = 0.0
        self.store.sync()

    def send(self) -> None:
        self.clock.now_ms += 61_000
        self.made.due()
        self.tick()


def test_no_row_changes_when_its_reward_comes(tmp_path: Path) -> None:
    """Until the deadline, rows of those who clicked and of the others stay byte for byte."""
    run = Run(tmp_path / "store", clicks=10)

    assert len(run.seen[0]) == USERS
    assert all(seen == run.seen[0] for seen in run.seen)
    # All but report, user and masked count is the same for everybody.
    assert len({(row[1:3], row[4:6], len(row[6])) for row in run.seen[0].values()}) == 1
    run.store.close()


def test_number_and_sizes_of_blocks_do_not_depend_on_rewards(tmp_path: Path) -> None:
    """None, a few, or more than a block holds: the same at every tick."""
    runs = [Run(tmp_path / f"{clicks}", clicks) for clicks in (0, 1, 15)]

    assert runs[0].sizes == runs[1].sizes == runs[2].sizes
    assert len(runs[0].sizes[-1]) == TICKS + 1
    for run in runs:
        run.store.close()


def test_at_the_deadline_all_change_alike(tmp_path: Path) -> None:
    """Every row becomes final and gets another masked count, click or not."""
    run = Run(tmp_path / "store", clicks=5)
    before = run.seen[-1]
    run.send()
    after = rows(run.path)

    assert {row[5] for row in after.values()} == {1}
    assert all(after[key][6] != before[key][6] for key in before)
    run.store.close()


def test_what_is_acknowledged_is_gone(tmp_path: Path) -> None:
    """From the file and from its log, while the process runs: ids, counts, blocks."""
    run = Run(tmp_path / "store", clicks=10)
    run.send()
    waited = list(run.seen[-1].values()) + list(rows(run.path).values())
    secrets = [value for row in waited for value in (row[0], row[6])]
    assert all(secret in files(run.path) for secret in secrets[-10:])
    run.made.end(run.made.leaving)
    run.store._last_tidy = 0.0
    run.tick()

    left = files(run.path)
    assert not any(secret in left for secret in secrets)
    assert blocks(run.path) == []
    crash(run.store)


def test_overflowing_rewards_come_in_later_blocks(tmp_path: Path) -> None:
    """After a kill whoever takes over has all of them."""
    run = Run(tmp_path / "store", clicks=15)
    for _ in range(200):
        run.tick()
    crash(run.store)
    store = FileStore(run.path)
    made = state(assignment(WINDOW), store=store, clock=run.clock)
    store.sync()
    made.take_news()

    given = [made.waiting[shown.report_id].bit for shown in run.shown]
    assert given == [int(number % 15 % 3 > 0) for number in range(USERS)]
    store.close()


def test_many_processes_and_kills(tmp_path: Path) -> None:
    """The short form of `python -m tests.producers.many_processes`."""
    found = play(tmp_path, processes=4, users=4_000, kills=5, least_s=4, seed=1)

    assert found.holds, found
    assert found.reports >= found.users > 100
    assert found.clicks > 10
