"""The shuffle stage and its log, without Kafka: what a restart finds, and one value per batch."""

import orjson
import pytest

from stream_app.core.window import Refusal
from stream_app.runtime.stage import Output
from tests.support.partition_log import (
    Kafka,
    Record,
    Worker,
    assignment,
    audit,
    by_key,
    filled,
    offer,
    refusals,
    report,
    sums_in,
    terms,
)

# -- what is listed no longer --------------------------------------------------------------------


def test_unlisted_batch_is_dropped() -> None:
    """A batch that the newest assignment does not list is closed and never released."""
    kafka = Kafka()
    old = terms(1, size=2)
    new = terms(2, size=2)
    offer(kafka, old)
    report(kafka, old, 1)
    worker = Worker(kafka)
    worker.run()
    assert worker.state.restart_offset() == 0
    offer(kafka, new)
    report(kafka, old, 2)
    report(kafka, old, 3)

    worker.run()

    assert audit(kafka) == {}
    assert refusals(worker) == {"late": 2}
    assert worker.state.restart_offset() == 3


def test_dropped_batch_tombstones_its_checkpoints() -> None:
    """Its deltas go in the same transaction; a later restart finds none."""
    kafka = Kafka()
    batch = terms(size=9)
    offer(kafka, batch)
    worker = Worker(kafka, max_reread=0)
    for number in range(3):
        report(kafka, batch, number)
        worker.run()
    keys = [record.key for record in kafka.records("windows")]
    assert len(set(keys)) == 3
    offer(kafka)

    outputs = worker.run()

    assert [(o.topic, o.key, o.value) for o in outputs] == [("windows", k, None) for k in keys]
    assert Worker(kafka).flush() == []


def test_dropped_while_away() -> None:
    """The same when the assignment came while no worker was there."""
    kafka = Kafka()
    batch = terms(size=9)
    offer(kafka, batch)
    report(kafka, batch, 1)
    Worker(kafka, max_reread=0).run()
    (delta,) = kafka.records("windows")
    offer(kafka, terms(2))

    outputs = Worker(kafka).flush()

    assert outputs == [Output("windows", delta.key or b"", None)]


def test_dropped_batch_stays_closed() -> None:
    """Listing it again does not bring it back."""
    kafka = Kafka()
    batch = terms(size=2)
    offer(kafka, batch)
    report(kafka, batch, 1)
    worker = Worker(kafka)
    worker.run()
    offer(kafka)
    offer(kafka, batch)
    filled(kafka, batch, 5)

    worker.run()

    assert audit(kafka) == {}


# -- one value, ever -----------------------------------------------------------------------------


def test_aborted_sum_is_released_again() -> None:
    """A sum in an aborted transaction is the batch's value: the same bytes, whatever came since."""
    kafka = Kafka()
    batch = terms(size=3)
    worker = Worker(kafka)
    report(kafka, batch, 0, ones=9)
    worker.feed()
    worker.state.take()
    offer(kafka, batch)
    filled(kafka, batch, 1)
    worker.feed()
    (aborted,) = worker.flush(committed=False)

    again = Worker(kafka)
    outputs = again.flush()
    again.run()

    assert outputs == [aborted]
    assert set(audit(kafka)) == {batch.batch_id}
    assert refusals(again) == {"late": 4}


def test_aborted_twice() -> None:
    """As often as it takes; once it is committed, no more."""
    kafka = Kafka()
    batch = terms(size=1)
    offer(kafka, batch)
    report(kafka, batch, 1)
    worker = Worker(kafka)
    worker.feed()
    for _ in range(3):
        worker.flush(committed=False)
        worker = Worker(kafka)
    worker.flush()

    assert Worker(kafka).flush() == []
    assert len(kafka.records("sums")) == 1
    audit(kafka)


def test_lost_release_is_made_again() -> None:
    """A release that never reached the log is computed again from the reports."""
    kafka = Kafka()
    batch = terms(size=2)
    offer(kafka, batch)
    filled(kafka, batch, 0)
    worker = Worker(kafka)
    worker.feed()
    worker.state.take()

    Worker(kafka).run()

    assert set(audit(kafka)) == {batch.batch_id}


def test_aborted_release_with_checkpoints() -> None:
    """Sum and tombstones share a transaction: both come again after it was aborted."""
    kafka = Kafka()
    batch = terms(size=3)
    offer(kafka, batch)
    worker = Worker(kafka, max_reread=0)
    report(kafka, batch, 0)
    worker.run()
    report(kafka, batch, 1)
    report(kafka, batch, 2)
    worker.feed()
    aborted = worker.flush(committed=False)
    assert {output.topic for output in aborted} == {"sums", "windows"}

    again = Worker(kafka)

    assert sorted(again.flush(), key=by_key) == sorted(aborted, key=by_key)
    assert Worker(kafka).flush() == []


@pytest.mark.parametrize("restart", [False, True])
def test_released_batch_is_not_opened_again(restart: bool) -> None:
    """Not by the same assignment, an older one, or a list that had dropped it."""
    kafka = Kafka()
    one = terms(1, size=2)
    two = terms(2, size=2)
    offer(kafka, one)
    filled(kafka, one, 0)
    worker = Worker(kafka)
    worker.run()
    for number, listed in enumerate([(one,), (two,), (one,), (one, two), (), (one,)]):
        offer(kafka, *listed)
        if restart:
            kafka.restart_offset = None
            worker = Worker(kafka).recovered()
        filled(kafka, one, 10 * number + 10)
        worker.run()

    assert list(audit(kafka)) == [one.batch_id]
    assert len(kafka.records("sums", committed=False)) == 1


@pytest.mark.parametrize("broken", [None, b"not json", assignment(experiment="other")])
def test_released_batch_is_not_opened_after_a_broken_assignment(broken: bytes | None) -> None:
    """A worker that starts while the newest assignment is unreadable still knows every release.

    Otherwise whoever writes assignments gets a second value: an early report, refused the first
    time, is in it, and the difference of the two totals is one person's.
    """
    kafka = Kafka()
    batch = terms(size=2)
    worker = Worker(kafka)
    report(kafka, batch, 0, ones=9)
    worker.feed()
    offer(kafka, batch)
    filled(kafka, batch, 1)
    worker.run()
    kafka.append("assignments", b"demo", broken)
    kafka.restart_offset = None

    worker = Worker(kafka).recovered()
    offer(kafka, batch)
    worker.run()

    audit(kafka)


@pytest.mark.parametrize("broken", [None, b"not json"])
def test_aborted_sum_survives_a_broken_assignment(broken: bytes | None) -> None:
    """The same for a sum that was aborted: it is released in the end, and no other."""
    kafka = Kafka()
    batch = terms(size=2)
    worker = Worker(kafka)
    report(kafka, batch, 0, ones=9)
    worker.feed()
    offer(kafka, batch)
    filled(kafka, batch, 1)
    worker.feed()
    worker.flush(committed=False)
    kafka.append("assignments", b"demo", broken)
    worker = Worker(kafka).recovered()
    offer(kafka, batch)
    filled(kafka, batch, 5)
    worker.run()

    Worker(kafka).recovered().run()

    audit(kafka)
    assert len(kafka.records("sums")) == 1


def test_checkpoint_survives_a_broken_assignment() -> None:
    """A restart beside an unreadable assignment does not throw a window's reports away."""
    kafka = Kafka()
    batch = terms(size=3)
    offer(kafka, batch)
    report(kafka, batch, 1)
    report(kafka, batch, 2)
    Worker(kafka, max_reread=0).run()
    kafka.append("assignments", b"demo", b"not json")
    Worker(kafka).recovered()
    offer(kafka, batch)
    report(kafka, batch, 3)

    Worker(kafka).recovered().run()

    assert set(audit(kafka)) == {batch.batch_id}


def test_unreadable_sum_is_still_a_release() -> None:
    """A sum of a later version, or one that a check refuses, has released its batch as well."""
    kafka = Kafka()
    batch = terms(size=2)
    offer(kafka, batch)
    filled(kafka, batch, 0)
    worker = Worker(kafka)
    worker.feed()
    (output,) = worker.state.take()
    newer = orjson.dumps({**orjson.loads(output.value or b""), "version": 2})
    kafka.append("sums", b"demo", newer)
    filled(kafka, batch, 10)

    assert sums_in(Worker(kafka).run()) == []


# -- restart offset and checkpoints ----------------------------------------------------------


def test_mark_waits_for_the_oldest_report() -> None:
    """The offset stands at the first report that only memory holds, else at the position."""
    kafka = Kafka()
    slow = terms(1, size=9)
    fast = terms(2, size=2)
    offer(kafka, slow, fast)
    worker = Worker(kafka)
    report(kafka, fast, 0)
    report(kafka, slow, 1)
    worker.run()
    assert kafka.restart_offset == 0
    report(kafka, fast, 2)
    worker.run()
    assert kafka.restart_offset == 1
    offer(kafka, fast)
    worker.run()

    assert kafka.restart_offset == 3


def test_mark_never_falls() -> None:
    """A window whose batch became known late does not pull the offset back."""
    kafka = Kafka()
    batch = terms(size=9)
    for number in range(5):
        kafka.append("reports", b"demo", b"?%d" % number)
    worker = Worker(kafka)
    worker.run()
    offer(kafka, batch)
    report(kafka, batch, 1)
    worker.run()

    assert kafka.restart_offset == 5


def test_checkpoint_moves_the_restart_offset() -> None:
    """A stalled window beside a busy one is saved once the offset lags, and only then."""
    kafka = Kafka()
    stalled = terms(experiment="stalled", size=9)
    busy = terms(experiment="busy", size=4)
    offer(kafka, stalled, experiment="stalled")
    offer(kafka, busy, experiment="busy")
    report(kafka, stalled, 0)
    worker = Worker(kafka, max_reread=20)
    for number in range(19):
        report(kafka, busy, number)
        worker.run()
        assert kafka.restart_offset == 0
        assert not kafka.records("windows")
    report(kafka, busy, 99)
    worker.run()

    assert kafka.restart_offset == 21
    assert len(kafka.records("windows")) == 1


def test_reread_is_bounded() -> None:
    """However long a window stays open, a restart reads no more than the setting, about."""
    kafka = Kafka()
    stalled = terms(experiment="stalled", size=50)
    offer(kafka, stalled, experiment="stalled")
    worker = Worker(kafka, max_reread=30)
    chunk = 7
    for number in range(400):
        if number % 40 == 0:
            report(kafka, stalled, number)
        else:
            kafka.append("reports", b"busy", b"?")
        if number % chunk == 0:
            worker.run()
            assert kafka.end("reports") - Worker(kafka).begin <= 30 + chunk


def test_restored_window_goes_on() -> None:
    """Checkpoint, restart, reread: the same sum as without, and the same first report."""
    totals = []
    for restarts in (False, True):
        kafka = Kafka()
        batch = terms(size=6)
        offer(kafka, batch)
        worker = Worker(kafka, max_reread=1)
        for number in range(6):
            report(kafka, batch, number, ones=number)
            report(kafka, batch, number, ones=50)
            worker.run()
            if restarts:
                kafka.restart_offset = max(0, (kafka.restart_offset or 0) - 3)
                worker = Worker(kafka, max_reread=1).recovered()
        totals.append(audit(kafka))

    assert totals[0] == totals[1]
    assert len(totals[0]) == 1


def test_old_windows_are_saved_in_time() -> None:
    """A quiet window is saved before the retention of `reports` (7 days) takes its reports.

    It holds the offset back by few records, but for long: count alone does not save it.
    """
    kafka = Kafka()
    batch = terms(size=20)
    offer(kafka, batch)
    worker = Worker(kafka)
    day = 24 * 3600 * 1000
    for number in range(10):
        now = 1_700_000_000_000 + number * day
        report(kafka, batch, number, timestamp=now)
        worker.run()
        worker.state.tick(now)
        worker.flush()

    assert kafka.records("windows")


def test_damaged_checkpoint_is_named() -> None:
    """A record in `windows` that cannot be read is refused in words, not by a bare crash."""
    kafka = Kafka()
    batch = terms(size=2)
    offer(kafka, batch)
    kafka.append("windows", b"demo/x/0", b"?")
    filled(kafka, batch, 0)

    assert len(sums_in(Worker(kafka).run())) == 1


@pytest.mark.parametrize("damage", [b"?", None])
def test_what_is_left_of_damaged_checkpoints_is_not_taken_up(damage: bytes | None) -> None:
    """A window that begins anew, as one of its checkpoints is lost, has nothing of the others."""
    kafka = Kafka()
    batch = terms(size=6)
    offer(kafka, batch)
    worker = Worker(kafka, max_reread=1)
    for number in range(12):
        report(kafka, batch, number, ones=number)
        worker.run()
        if number == 4:
            assert len(kafka.records("windows")) == 2
            kafka.append("windows", kafka.records("windows")[0].key, damage)
        worker = Worker(kafka, max_reread=1).recovered()

    assert audit(kafka)[batch.batch_id]["total"] == sum(range(4, 10))


def test_retention_does_not_touch_what_is_needed() -> None:
    """Reports below the committed offset may be deleted at any time."""
    kafka = Kafka()
    batch = terms(size=5)
    busy = terms(2, size=2)
    offer(kafka, batch, busy)
    worker = Worker(kafka, max_reread=2)
    for number in range(5):
        report(kafka, batch, number, ones=number)
        for junk in range(3):
            kafka.append("reports", b"demo", b"?%d" % junk)
        worker.run()
        kafka.start["reports"] = kafka.restart_offset or 0
        worker = Worker(kafka, max_reread=2).recovered()

    assert audit(kafka)[batch.batch_id]["total"] == 10


def test_record_type_is_enough() -> None:
    """The stage needs offset, key, value and timestamp of a record, nothing else."""
    state = Worker(Kafka()).state

    assert not state.feed([Record(0, b"demo", b"?", 0)], refreshed=False)
    assert state.counts()[Refusal.MALFORMED] == 1
