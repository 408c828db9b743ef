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


def test_an_aborted_sum_before_a_committed_one_is_found() -> None:
    """A stale worker's sum may stand before the new owner's: a start looks into such gaps too."""
    donor = Kafka()
    first = terms(1, size=2)
    second = terms(2, size=2)
    offer(donor, first, second)
    filled(donor, first, 0)
    filled(donor, second, 2)
    aborted, committed = Worker(donor).run()
    kafka = Kafka()
    offer(kafka, first, second)
    kafka.append("sums", aborted.key, aborted.value, committed=False)
    kafka.append("sums", committed.key, committed.value)

    assert Worker(kafka).flush() == [aborted]


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


def test_record_type_is_enough() -> None:
    """The stage needs offset, key, value and timestamp of a record, nothing else."""
    state = Worker(Kafka()).state

    assert not state.feed([Record(0, b"demo", b"?", 0)], refreshed=False)
    assert state.counts()[Refusal.MALFORMED] == 1
