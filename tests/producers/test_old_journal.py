"""A journal of version 0.1.0 is imported once: its users do not report twice."""

import fcntl
import hashlib
import os
from pathlib import Path

import orjson
import pytest

from producers.file_store import FileStore
from stream_app.core.agents import agent_for
from stream_app.errors import ConfigurationError
from stream_app.wire.assignment import terms_of
from tests.producers.build import NAME, Clock, assignment, banners, state

WINDOW = banners(attribution_s="60")
SALT = bytes(range(32))


def tag(user: str) -> str:
    return hashlib.blake2b(user.encode(), digest_size=16, key=SALT).hexdigest()


def journal(path: Path, *tail: bytes) -> None:
    """As version 0.1.0 wrote it: ada has reported, bob's is encoded, eve's is not, dan's ended."""
    terms = terms_of(WINDOW, agent_for(WINDOW).begin().open[0])
    batch_id = terms.batch_id
    deadline = Clock().now_ms + 60_000

    def chosen(number: int, user: str) -> list[object]:
        report_id = f"{number:032x}"
        bound = [NAME, batch_id, "arm-0", tag(user), deadline, "0.5", "0.000001"]
        return ["chosen", report_id, *bound]

    lines: list[list[object]] = [
        ["shufflebandit-store", 1, SALT.hex()],
        ["user", tag("ada"), "0.5", "0.000001", [NAME]],
        ["user", tag("old"), "3.9", "0.000001", ["other"]],
        ["batch", batch_id, terms.as_json()],
        ["waiting", f"{1:032x}", NAME, batch_id, "arm-0", tag("bob"), deadline, 17],
        ["user", tag("bob"), "0.5", "0.000001", [NAME]],
        chosen(2, "eve"),
        chosen(3, "dan"),
        ["encoded", f"{3:032x}", 9],
        ["ended", f"{3:032x}"],
    ]
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines) + b"".join(tail))


@pytest.mark.parametrize("tail", [b"", b'["encoded","ab', b"\0\0\0\0", b'["chosen"]\n["ended'])
def test_users_and_waiting_reports_are_taken_over(tmp_path: Path, tail: bytes) -> None:
    """Once; a torn end is what a crash left. What was encoded leaves as it was, in time."""
    path = tmp_path / "journal"
    journal(path, tail)
    clock = Clock()
    store = FileStore(path)
    made = state(assignment(WINDOW), store=store, clock=clock)
    store.sync()
    assert made.take_news() == []

    assert [made.choose(user).batch_id for user in ("ada", "dan", "old")] == ["", "", ""]
    assert (made.counts.repeated, made.counts.over_budget) == (2, 1)
    assert made.choose("eve").report_id == bytes([*[0] * 15, 2])
    assert made.choose("new").batch_id
    assert made.report(made.choose("eve"), 1)
    bob = made.choose("bob")
    assert bob.report_id == bytes([*[0] * 15, 1])
    assert not made.report(bob, 1)
    assert made.leaving == []
    clock.now_ms += 61_000
    made.due()
    assert sorted(report.ones for report in made.leaving if report.shown == bob) == [17]
    made.close()
    store.close()
    assert path.read_bytes().startswith(b"SQLite format 3")
    assert (tmp_path / "journal.key").read_bytes() == SALT

    again = FileStore(path)
    later = state(assignment(WINDOW), store=again, clock=clock)
    again.sync()
    later.take_news()
    assert (later.bound, later.choose("ada").batch_id) == (3, "")
    again.close()


def test_damage_before_the_end_is_refused(tmp_path: Path) -> None:
    """Skipping a line could let a user report twice; the journal stays."""
    path = tmp_path / "journal"
    journal(path)
    lines = path.read_bytes().splitlines(keepends=True)
    damaged = b"".join([lines[0], lines[1][:40] + b"\n", *lines[2:]])
    path.write_bytes(damaged)

    with pytest.raises(ConfigurationError, match="damaged at line 2"):
        FileStore(path)
    assert path.read_bytes() == damaged


def test_a_journal_in_use_is_refused(tmp_path: Path) -> None:
    """A client of version 0.1.0 holds its lock."""
    path = tmp_path / "journal"
    journal(path)
    guard = os.open(tmp_path / "journal.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(guard, fcntl.LOCK_EX)

    with pytest.raises(ConfigurationError, match=r"a client of version 0\.1\.0 uses it"):
        FileStore(path)
    os.close(guard)
    FileStore(path).close()


def test_a_waiting_report_whose_terms_do_not_hold_is_given_up(tmp_path: Path) -> None:
    """They are checked again before noise is drawn."""
    path = tmp_path / "journal"
    journal(path)
    path.write_bytes(path.read_bytes().replace(b'"delta":"0.000001"', b'"delta":"0.01"'))
    store = FileStore(path)
    made = state(assignment(WINDOW), store=store)
    store.sync()

    (reason,) = made.take_news()
    assert "its terms hash to" in reason
    assert made.bound == 1
    store.close()
