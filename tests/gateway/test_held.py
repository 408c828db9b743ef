"""What waits of a partition of `held`: laws over random logs, deaths of owners included."""

import random
from typing import NamedTuple

from stream_app.gateway.held import HeldReports, Waiting
from stream_app.wire.held import Handover, Progress

KEY = b"shop"


def handover(due_ms: int, report_id: str, value: str = "") -> Handover:
    return Handover(due_ms, report_id, f"{report_id}:{value}".encode())


def test_each_leaves_when_it_is_due() -> None:
    """In the order of time, whatever the order of the log."""
    held = HeldReports()
    for offset, due_ms in enumerate((30, 10, 20)):
        held.take(offset, KEY, handover(due_ms, str(due_ms)))

    assert 10 == held.next_due_ms()
    assert [] == held.due(9)
    assert [b"10:", b"20:"] == [one.report for one in held.due(20)]
    assert 30 == held.next_due_ms()


def test_the_newest_value_of_an_id_leaves_once() -> None:
    """A page that came back and was clicked replaces its value; once it leaves, no more."""
    held = HeldReports()
    held.take(0, KEY, handover(10, "a", "before"))
    held.take(1, b"other", handover(10, "a", "another experiment"))
    held.take(2, KEY, handover(11, "a", "after"))
    left = held.due(11)
    held.take(3, KEY, handover(12, "a", "too late"))
    for one in left:
        held.left(one)
    held.take(4, KEY, handover(13, "a", "too late"))

    assert {b"a:another experiment", b"a:after"} == {one.report for one in left}
    assert [] == held.due(100)
    assert 5 == held.restart()


def test_what_could_not_be_sent_stays() -> None:
    """It is due again at once, and a restart would read it again."""
    held = HeldReports()
    held.take(0, KEY, handover(10, "a"))
    [one] = held.due(10)
    assert 0 == held.restart()
    held.stays(one)

    assert [one] == held.due(10)


def test_a_record_that_says_nothing_is_passed_over() -> None:
    held = HeldReports()
    held.skip(4)

    assert (5, 5, 0) == (held.position, held.restart(), len(held))


class Entry(NamedTuple):
    """One record of the log."""

    key: bytes
    said: Handover | Progress


class Owner:
    """Plays the gateway that owns the partition, on a log that all of them share."""

    def __init__(self, log: list[Entry], committed: int) -> None:
        self.log = log
        self.held = HeldReports()
        self.held.position = committed
        self.read()

    def read(self) -> None:
        for offset in range(self.held.position, len(self.log)):
            self.held.take(offset, *self.log[offset])


def test_none_is_lost_and_few_leave_twice_over_any_number_of_owners() -> None:
    """Random handovers, sends that fail, notes and commits that may be missing, owners that die.

    Every id leaves; a value that was replaced in time never does; and after an orderly end (note
    and commit) nothing leaves twice. 300 random logs, fixed seed.
    """
    chance = random.Random(17)
    for _ in range(300):
        _one_log(chance)


def _one_log(chance: random.Random) -> None:
    log: list[Entry] = []
    sent: list[bytes] = []
    newest: dict[str, bytes] = {}
    committed = 0
    owner = Owner(log, committed)
    repeats_allowed = 0
    unnoted: list[Waiting] = []
    for now_ms in range(0, 400, 5):
        if now_ms < 200:
            name = f"{chance.randrange(40)}"
            due_ms = 205 + 4 * int(name)  # of an id always the same, after all handovers
            log.append(Entry(KEY, handover(due_ms, name, str(chance.randrange(9)))))
            newest[name] = log[-1].said.report  # type: ignore[union-attr]
        owner.read()
        for one in owner.held.due(now_ms):
            if chance.random() < 0.3:
                owner.held.stays(one)
                continue
            sent.append(one.report)
            unnoted.append(one)
            owner.held.left(one)
        if chance.random() < 0.3:
            progress = owner.held.progress(now_ms)
            if progress is not None:
                log.append(Entry(b"", progress))
                unnoted = [one for one in unnoted if one.due_ms > progress.until_ms]
        if chance.random() < 0.3:
            owner.read()
            committed = owner.held.restart()
        if chance.random() < 0.1:
            repeats_allowed += len(unnoted)
            unnoted.clear()
            owner = Owner(log, committed)
    for one in owner.held.due(1000):
        sent.append(one.report)
        owner.held.left(one)
    owner.read()

    assert set(newest.values()) == set(sent)
    assert len(sent) - len(set(sent)) <= repeats_allowed
    assert len(log) == owner.held.restart()
