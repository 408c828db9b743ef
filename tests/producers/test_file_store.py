"""The file store: one report of a user whatever processes there are, and what survives a kill."""

import os
import resource
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from decimal import Decimal
from pathlib import Path

import pytest

from producers.batches import Shown
from producers.client_state import ClientState
from producers.file_store import FileStore
from producers.store import Budget
from stream_app.core.agents import agent_for
from stream_app.errors import ConfigurationError, IllegalTransition
from tests.producers.build import Clock, assignment, banners, state
from tests.producers.shared_store import crash, files

WINDOW = banners(attribution_s="60")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "reports.db"


def client(store: FileStore, clock: Clock, value: bytes | None = None) -> ClientState:
    """A client that has taken over whatever it could."""
    made = state(value or assignment(WINDOW), store=store, clock=clock, max_waiting=100_000)
    store.sync()
    assert made.take_news() == []
    return made


def send_all(made: ClientState, store: FileStore) -> list[Shown]:
    """What a client sends when its deadlines have come."""
    made.take_news()
    made.due()
    store.sync()
    made.take_news()
    sent = [report.shown for report in made.leaving]
    made.end(made.leaving)
    made.leaving.clear()
    return sent


def test_waiting_reports_survive_a_kill(path: Path) -> None:
    """With the reward that was given, and with their noise."""
    clock = Clock()
    store = FileStore(path)
    before = client(store, clock)
    clicked = before.choose("ada")
    silent = before.choose("bob")
    before.report(clicked, 1)
    noise = {report.shown: report.noise for report in before.waiting.values()}
    store._commits.last_block = 0.0
    store.sync()
    crash(store)

    after = client(FileStore(path), clock, assignment(WINDOW))
    assert after.choose("ada") == clicked
    assert not after.report(clicked, 0)
    clock.now_ms += 61_000
    after.due()
    assert {r.shown: (r.noise, r.bit) for r in after.leaving} == {
        clicked: (noise[clicked], 1),
        silent: (noise[silent], None),
    }
    assert after.counts.adopted == 2


def test_what_was_about_to_leave_leaves_the_same(path: Path) -> None:
    """Killed between the commit and the acknowledgement: the same ids and counts."""
    clock = Clock()
    store = FileStore(path)
    before = client(store, clock)
    for user in range(50):
        before.report(before.choose(f"{user}"), user % 2)
    clock.now_ms += 61_000
    before.due()
    store.sync()
    said = {report.shown: report.ones for report in before.leaving}
    crash(store)

    after = client(FileStore(path), clock)
    assert {report.shown: report.ones for report in after.leaving} == said


def test_what_was_acknowledged_is_not_sent_again(path: Path) -> None:
    """After a reopen, and by a second client of the same store; nor may its users report again."""
    clock = Clock()
    store = FileStore(path)
    made = client(store, clock)
    made.choose("ada")
    clock.now_ms += 61_000
    assert len(send_all(made, store)) == 1
    store.sync()
    second = client(store, clock)
    assert (second.bound, second.choose("ada").batch_id) == (0, "")
    store.close()

    again = client(FileStore(path), clock)
    assert (again.bound, again.choose("ada").batch_id) == (0, "")
    assert again.counts.repeated == 1


def test_the_next_client_of_a_process_takes_over(path: Path) -> None:
    """The first one ended while Kafka was unreachable."""
    clock = Clock()
    store = FileStore(path)
    first = client(store, clock)
    shown = first.choose("ada")
    first.close()

    second = client(store, clock)
    assert list(second.waiting) == [shown.report_id]
    assert second.report(shown, 1)


def test_two_processes_cannot_both_have_a_user(path: Path) -> None:
    """Within a tick both bind ada; the second to commit drops its report and shows the first's."""
    clock = Clock()
    stores = [FileStore(path), FileStore(path)]
    one, two = (client(store, clock) for store in stores)
    with stores[0]._committing, stores[1]._committing:
        first = one.choose("ada")
        second = two.choose("ada")
        other = two.choose("bob")
    assert first.batch_id
    assert second.batch_id
    stores[0].sync()
    stores[1].sync()
    one.take_news()
    two.take_news()

    assert (one.counts.lost, two.counts.lost) in {(0, 1), (1, 0)}
    winner = first if two.counts.lost else second
    assert one.choose("ada") == two.choose("ada") == winner
    clock.now_ms += 61_000
    sent = send_all(one, stores[0]) + send_all(two, stores[1])
    assert sorted(sent) == sorted([winner, other])


def test_any_process_may_report(path: Path) -> None:
    """By the text that a session kept; the first reward counts, whoever was told."""
    clock = Clock()
    stores = [FileStore(path), FileStore(path)]
    one, two = (client(store, clock) for store in stores)
    kept = str(one.choose("ada"))
    stores[0].sync()

    assert two.choose("ada") == Shown.parse(kept)
    assert two.report(Shown.parse(kept), 1)
    for store in (stores[1], stores[0]):
        store._commits.last_block = 0.0
        store.sync()
    one.take_news()
    assert not one.report(Shown.parse(kept), 0)
    clock.now_ms += 61_000
    assert not two.report(Shown.parse(kept), 1)
    one.due()
    assert [report.bit for report in one.leaving] == [1]


def test_a_reported_choice_of_another_process_leaves_at_once_without_a_window(path: Path) -> None:
    """And a second report of it is refused."""
    clock = Clock()
    stores = [FileStore(path), FileStore(path)]
    one, two = (client(store, clock, assignment()) for store in stores)
    shown = one.choose("ada")
    stores[0].sync()
    assert two.report(shown, 1)
    for store in (stores[1], stores[0]):
        store._commits.last_block = 0.0
        store.sync()
    one.take_news()
    assert [report.bit for report in one.leaving] == [1]
    stores[0].sync()

    assert not two.report(shown, 1)


def test_a_restored_choice_takes_its_reward_when_its_batch_has_closed(path: Path) -> None:
    """And an older one is still open."""
    experiment = banners(attribution_s="60", order="interleaved")
    agent = agent_for(experiment)
    clock = Clock()
    first = agent.begin()
    store = FileStore(path)
    before = client(store, clock, assignment(experiment, first))
    shown = next(s for i in range(99) if (s := before.choose(f"{i}")).batch_id.startswith("2."))
    store.close()

    after = client(FileStore(path), clock, assignment(experiment, agent.record(first, 2, 3.0)))
    assert [batch_id[:2] for batch_id in after.batches.open] == ["1."]
    assert after.report(shown, 1)


def test_costs_add_up_over_experiments_and_processes(path: Path) -> None:
    """Two experiments fit into the budget, the third does not, whichever process asks."""
    clock = Clock()
    budget = Budget(max_user_epsilon=Decimal(1))
    for number, name in enumerate(("one", "two", "three")):
        store = FileStore(path)
        made = state(assignment(banners(name)), store=store, budget=budget, name=name, clock=clock)
        assert bool(made.choose("ada").batch_id) is (number < 2)
        store.close()


def test_one_user_in_two_experiments_within_a_tick(path: Path) -> None:
    """Both count, beside users who are in the second already."""
    clock = Clock()
    store = FileStore(path)
    names = ("one", "two")
    one, two = (
        state(assignment(banners(name)), store=store, name=name, clock=clock) for name in names
    )
    two.choose("bob")
    store.sync()
    one.choose("bob")
    two.choose("ada")
    one.choose("ada")
    store.sync()
    one.take_news()
    two.take_news()

    assert (one.bound, two.bound, one.counts.lost + two.counts.lost) == (2, 2, 0)
    assert store.spent(store.tag("ada")).experiments == {"one", "two"}
    assert store.spent(store.tag("bob")).epsilon == 1


def test_users_cost_tens_of_bytes_and_ended_experiments_none(path: Path) -> None:
    """Forty experiments one after the other, a random half of 2000 users in each."""
    clock = Clock()
    store = FileStore(path)
    sizes = []
    budget = Budget(Decimal(1000), Decimal(1))
    for number in range(40):
        name = f"experiment-{number}"
        made = state(
            assignment(banners(name)), store=store, name=name, clock=clock, max_waiting=10_000,
            budget=budget,
        )  # fmt: skip
        for user in range(2_000):
            if hash((number, user)) % 2:
                made.report(made.choose(f"{user}"), user % 2)
        store.sync()
        made.end(made.leaving)
        store.over(name)
        made.close()
        store.sync()
        sizes.append(_used(path))
    store.close()

    assert max(sizes[2:]) - sizes[2] < 100_000
    assert sizes[-1] < 2_000 * 100 + 100_000
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT count(*) FROM users").fetchone() == (2_000,)
        assert database.execute("SELECT count(*) FROM histories").fetchone()[0] < 1_000
        assert database.execute("SELECT count(*) FROM batches").fetchone() == (0,)


def _used(path: Path) -> int:
    with closing(sqlite3.connect(path)) as database:
        pages = database.execute("PRAGMA page_count").fetchone()[0]
        free = database.execute("PRAGMA freelist_count").fetchone()[0]
    return (pages - free) * 4096


def test_an_experiment_that_is_over_takes_nobody_twice(path: Path) -> None:
    """An agent that ends it and opens it again: who has reported does not report again."""
    clock = Clock()
    stores = [FileStore(path), FileStore(path)]
    one, two = (client(store, clock) for store in stores)
    one.choose("ada")
    stores[0].over("test")
    stores[0].sync()

    clock.now_ms += 61_000
    assert len(send_all(one, stores[0])) == 1
    for made in (one, two):
        assert not made.choose("ada").batch_id
    assert stores[1].spent(stores[1].tag("ada")).epsilon == Decimal("0.5")


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Files may not grow beyond this size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_keeps_everything_for_the_next_try(path: Path) -> None:
    """Choosing goes on; nothing leaves, nothing is lost or doubled."""
    clock = Clock()
    store = FileStore(path)
    made = client(store, clock)
    with full_disk(path.stat().st_size):
        shown = [made.choose(f"{user}") for user in range(2_000)]
        for _ in range(3):
            with pytest.raises(OSError, match=r"reports\.db: cannot be written"):
                store.sync()
        for each in shown:
            made.report(each, 1)
        assert made.choose("7") == shown[7]
    clock.now_ms += 61_000

    assert sorted(send_all(made, store)) == sorted(shown)
    store.sync()
    store.close()
    again = client(FileStore(path), clock)
    assert (again.bound, again.choose("7").batch_id) == (0, "")


def test_a_store_that_is_none_is_refused_and_left_as_it_is(path: Path) -> None:
    """A wrong path must not destroy what is there."""
    path.write_bytes(b"my diary\n" * 200)
    path.with_name("reports.db.key").write_bytes(bytes(32))

    with pytest.raises(ConfigurationError, match=r"reports\.db: not a store of reports"):
        FileStore(path)
    assert path.read_bytes() == b"my diary\n" * 200


def test_another_database_is_refused(path: Path) -> None:
    """Also if its tables have the same names."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE users (tag)")
    path.with_name("reports.db.key").write_bytes(bytes(32))

    with pytest.raises(ConfigurationError, match="a database, but not a store of reports"):
        FileStore(path)


def test_a_store_of_another_version_is_refused(path: Path) -> None:
    """The line says which."""
    FileStore(path).close()
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 7")

    with pytest.raises(ConfigurationError, match="a store of version 7, this client reads 2"):
        FileStore(path)


def test_the_key_stands_beside_and_is_needed(path: Path, tmp_path: Path) -> None:
    """Readable for its owner only; another one, or none, is refused."""
    FileStore(path).close()
    key = tmp_path / "reports.db.key"
    made = key.read_bytes()

    assert len(made) == 32
    assert stat.S_IMODE(key.stat().st_mode) == stat.S_IMODE(path.stat().st_mode) == 0o600
    assert made not in path.read_bytes()
    key.write_bytes(bytes(32))
    with pytest.raises(ConfigurationError, match="made with another key"):
        FileStore(path)
    key.unlink()
    with pytest.raises(ConfigurationError, match=r"reports\.db\.key: missing"):
        FileStore(path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(made)
    FileStore(path, key_file=elsewhere).close()


def test_a_folder_that_is_missing_is_one_line(tmp_path: Path) -> None:
    """Naming the file."""
    with pytest.raises(ConfigurationError, match=r"reports\.db.*: cannot be opened: No such file"):
        FileStore(tmp_path / "missing" / "reports.db")


def test_closing_leaves_two_files(path: Path) -> None:
    """No lock, no log."""
    store = FileStore(path)
    client(store, Clock()).choose("ada")
    store.close()

    assert {each.name for each in path.parent.iterdir()} == {"reports.db", "reports.db.key"}
    assert b"ada" not in files(path)


def test_a_forked_child_may_not_use_its_parents_store(path: Path) -> None:
    """Nor does it keep the lock, which would make the parent look alive."""
    store = FileStore(path)
    child = os.fork()
    if child == 0:
        try:
            store.tag("ada")
        except IllegalTransition:
            os._exit(7)
        os._exit(1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    store.close()
