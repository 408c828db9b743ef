"""The file store: what survives, what does not get in, and what damage does."""

import os
import stat
from pathlib import Path

import orjson
import pytest

from producers.file_store import FileStore
from stream_app.core.agents import agent_for
from stream_app.errors import ConfigurationError
from tests.producers.build import Clock, assignment, banners, state

WINDOW = banners(attribution_s="60")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "reports.journal"


def lines(path: Path) -> list[list[object]]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def crash(store: FileStore) -> None:
    """End as a killed process does: the kernel closes, nothing is written."""
    store._file.close()
    os.close(store._guard)


def test_waiting_reports_survive_a_restart(path: Path) -> None:
    """The encoded one keeps its count; the other is encoded as 0 at its deadline."""
    clock = Clock()
    store = FileStore(path)
    before = state(assignment(WINDOW), store=store, clock=clock)
    encoded = before.choose("ada")
    silent = before.choose("bob")
    before.report(encoded, 1)
    kept = before._by_user[store.tag("ada")].ones
    store.sync()
    crash(store)

    after = state(store=FileStore(path), clock=clock)
    assert after.restore() == []
    assert not after.report(encoded, 0)
    clock.now_ms += 60_000
    after.due()
    assert [report.shown for report in after.leaving] == [encoded, silent]
    assert after.leaving[0].ones == kept


def test_a_restored_choice_takes_its_reward(path: Path) -> None:
    """Also when its batch has closed and an older one is still open."""
    experiment = banners(attribution_s="60", order="interleaved")
    agent = agent_for(experiment)
    clock = Clock()
    first = agent.begin()
    store = FileStore(path)
    before = state(assignment(experiment, first), store=store, clock=clock)
    shown = next(s for i in range(99) if (s := before.choose(f"{i}")).batch_id.startswith("2."))
    store.close()

    after = state(store=FileStore(path), clock=clock)
    after.restore()
    assert after.follow(assignment(experiment, agent.record(first, 2, 3.0))) == []
    assert [batch_id[:2] for batch_id in after.batches.open] == ["1."]
    assert after.report(shown, 1)


def test_one_report_per_user_survives_a_restart(path: Path) -> None:
    """And so does what was spent, through several compactions."""
    made = state(assignment(), store=(store := FileStore(path)))
    made.report(made.choose("ada"), 1)
    made.end(made.leaving)
    store.close()

    for _ in range(3):
        store = FileStore(path)
        made = state(assignment(), store=store)
        assert made.restore() == []
        assert made.choose("ada").batch_id == ""
        store.close()
    assert [line[0] for line in lines(path)] == ["shufflebandit-store", "user"]


def test_users_and_rewards_are_not_in_the_file(path: Path) -> None:
    """A user is a keyed hash; of a reward there is only the count of ones, once it is encoded."""
    clock = Clock()
    store = FileStore(path)
    made = state(assignment(WINDOW), store=store, clock=clock)
    first = made.choose("ada@example.org")
    second = made.choose("bob@example.org")
    store.sync()
    before = path.read_bytes()
    made.report(first, 0.765625)
    made.report(second, 0)
    store.sync()
    added = path.read_bytes().removeprefix(before)

    assert b"example" not in before + added
    assert b"0.765625" not in added
    assert [orjson.loads(line) for line in added.splitlines()] == [
        ["encoded", shown.report_id.hex(), made._by_user[store.tag(f"{user}@example.org")].ones]
        for user, shown in (("ada", first), ("bob", second))
    ]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("tail", [b'["encoded","ab', b"\0\0\0\0", b'["chosen"]\n["ended'])
def test_a_torn_end_is_tolerated(path: Path, tail: bytes) -> None:
    """It is what a crash leaves, and nothing that it describes was sent."""
    store = FileStore(path)
    made = state(assignment(WINDOW), store=store)
    shown = made.choose("ada")
    store.sync()
    crash(store)
    with path.open("ab") as file:
        file.write(tail)

    after = state(store=FileStore(path))
    after.restore()
    assert list(after.unanswered) == [shown.report_id]
    assert after.choose("ada") == shown


def test_damage_before_the_end_is_refused(path: Path) -> None:
    """Skipping a line could let a user report twice."""
    store = FileStore(path)
    made = state(assignment(WINDOW), store=store)
    made.choose("ada")
    made.choose("bob")
    store.close()
    content = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([content[0], content[1][:40] + b"\n", *content[2:]]))

    with pytest.raises(ConfigurationError, match="damaged at line 2"):
        FileStore(path)


def test_another_file_is_not_overwritten(path: Path) -> None:
    """A wrong path must not destroy what is there."""
    path.write_bytes(b"my diary\n")

    with pytest.raises(ConfigurationError, match="damaged at line 1"):
        FileStore(path)
    assert path.read_bytes() == b"my diary\n"


def test_two_processes_cannot_share_a_file(path: Path) -> None:
    """Each would let a user report once."""
    store = FileStore(path)

    with pytest.raises(ConfigurationError, match="another process uses it"):
        FileStore(path)
    store.close()
    FileStore(path).close()


def test_a_full_disk_keeps_everything_for_the_next_try(path: Path) -> None:
    """A failed write leaves neither half a line nor a lost one."""
    store = FileStore(path)
    made = state(assignment(WINDOW), store=store)
    made.choose("ada")
    good = store._file
    store._file = open("/dev/full", "ab", buffering=0)  # noqa: SIM115
    with pytest.raises(OSError, match="No space"):
        store.sync()
    store._file.close()
    store._file = good
    store.close()

    assert [line[0] for line in lines(path)] == ["shufflebandit-store", "batch", "chosen"]


def test_terms_that_no_longer_fit_the_limits_are_given_up(path: Path) -> None:
    """A report of an earlier run is checked again before noise is drawn for it."""
    store = FileStore(path)
    state(assignment(WINDOW), store=store).choose("ada")
    store.close()
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b'"delta":"0.000001"', b'"delta":"0.01"'))

    after = state(store=FileStore(path))
    (reason,) = after.restore()
    assert "its terms hash to" in reason
    assert (after.bound, after.unanswered) == (0, {})
