"""What is saved of the released batches: a start reads a few sums, and releases nothing twice."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_app.errors import InvalidInput
from stream_app.shuffler.released import SAVED, ReleasedBatches
from stream_app.wire.checkpoint import decode_released, encode_released
from tests.support.partition_log import Kafka, Worker, audit, filled, offer, report, terms

MAX_REREAD = 500  # so a start reads ten sums again, and those of a second


def released(kafka: Kafka, count: int, first: int = 1, max_reread: int = MAX_REREAD) -> Worker:
    """A worker that has released so many batches, with a tick after each."""
    worker = Worker(kafka, max_reread=max_reread).recovered()
    for sequence in range(first, first + count):
        batch = terms(sequence, size=1)
        offer(kafka, batch)
        report(kafka, batch, sequence)
        worker.run()
        worker.state.tick(0)
        worker.flush()
    return worker


def saved(kafka: Kafka) -> list[bytes | None]:
    return [r.value for r in kafka.records("windows") if r.key == SAVED]


def test_start_reads_few_sums() -> None:
    """However many sums there are: those since the last saving, and once more the one before."""
    kafka = Kafka()
    released(kafka, 100)
    kafka.compact("windows")

    for count in range(25):
        worker = released(kafka, 1, first=101 + count)
        assert worker.read["sums"] <= 13
        assert worker.read["windows"] <= 2 + count
    assert len(audit(kafka)) == 125


def test_saved_seldom() -> None:
    """Not with every release, nor again and again without one."""
    kafka = Kafka()
    worker = released(kafka, 100)
    for _ in range(30):
        worker.state.tick(0)
        worker.flush()

    assert len(saved(kafka)) == 9


def test_saved_after_a_long_reading() -> None:
    """A log that has nothing saved is read as a whole once."""
    kafka = Kafka()
    released(kafka, 100, max_reread=1_000_000)
    assert saved(kafka) == []

    worker = Worker(kafka, max_reread=MAX_REREAD).recovered()
    worker.state.tick(0)
    worker.flush()

    assert worker.read["sums"] == 100
    assert Worker(kafka).read["sums"] == 1


def test_old_batches_stay_closed() -> None:
    """A batch whose sum is not read any more is not opened, whatever the assignment lists."""
    kafka = Kafka()
    released(kafka, 30)
    again = [terms(sequence, size=1) for sequence in range(1, 31)]
    offer(kafka, *again)
    kafka.restart_offset = None

    worker = Worker(kafka).recovered()
    assert worker.read["sums"] < 13
    for number, batch in enumerate(again):
        report(kafka, batch, 1_000 + number, ones=9)
    worker.run()

    assert len(kafka.records("sums", committed=False)) == 30
    audit(kafka)


@pytest.mark.parametrize("ticked", [False, True])
def test_aborted_before_it_was_saved(ticked: bool) -> None:
    """An aborted sum is released again before, or with, the list that has it; then no more."""
    kafka = Kafka()
    batch = terms(31, size=2)
    worker = released(kafka, 30)
    offer(kafka, batch)
    filled(kafka, batch, 100)
    worker.tail()
    worker.feed()
    worker.state.tick(0)
    worker.flush(committed=False)
    again = Worker(kafka, max_reread=0)
    if ticked:
        again.state.tick(0)
    (first, *_) = again.flush()
    assert first.topic == "sums"
    again.state.tick(0)
    again.flush()

    last = Worker(kafka)

    assert last.flush() == []
    assert last.read["sums"] <= (11 if ticked else 2)
    assert len(audit(kafka)) == 31


def listed_at_once(kafka: Kafka) -> Worker:
    """A worker with its first sum and the list of releases for one transaction."""
    batch = terms(1, size=1)
    offer(kafka, batch)
    report(kafka, batch, 1)
    worker = Worker(kafka, max_reread=0)
    worker.feed()
    worker.state.tick(0)
    return worker


def test_list_beside_the_first_sums() -> None:
    """It has their numbers and no offset yet: all sums are read."""
    kafka = Kafka()
    listed_at_once(kafka).flush()
    assert len(saved(kafka)) == 1

    again = Worker(kafka)

    assert again.read["sums"] == 1
    assert (again.flush(), again.state.counts()["refused"]) == ([], 0)


def test_aborted_list_is_not_believed() -> None:
    """A list whose transaction was aborted names sums that were aborted with it."""
    kafka = Kafka()
    (aborted, listed) = listed_at_once(kafka).flush(committed=False)
    assert listed.key == SAVED

    assert Worker(kafka).flush() == [aborted]


@pytest.mark.parametrize(
    "damage", [b"?", b"{}", b'{"version":2,"reached":1,"through":{},"beyond":[]}', None]
)
def test_list_that_cannot_be_read(damage: bytes | None) -> None:
    """All sums are read instead."""
    kafka = Kafka()
    released(kafka, 30)
    kafka.append("windows", SAVED, damage)

    worker = Worker(kafka).recovered()

    assert worker.read["sums"] == 30
    assert worker.state.counts()["refused"] == (damage is not None)


@pytest.mark.parametrize("kept", [0, 5, 29])
def test_lost_sums_are_named(kept: int) -> None:
    """Sums that are gone could be released anew: no way on, and the words say what to do."""
    kafka = Kafka()
    released(kafka, 30, max_reread=0)
    kafka.topics["sums"] = kafka.topics["sums"][:kept]

    with pytest.raises(InvalidInput, match=r"sums, offset \d+: .* not there.*topic_prefix"):
        Worker(kafka)


def test_other_sums_are_named() -> None:
    """A topic that was made anew has other sums at these offsets."""
    kafka = Kafka()
    other = Kafka()
    released(kafka, 5, max_reread=0)
    released(other, 9, first=20, max_reread=1_000_000)
    kafka.topics["sums"] = other.topics["sums"]

    with pytest.raises(InvalidInput, match="not there"):
        Worker(kafka)


def test_list_that_is_too_long_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka would refuse the record, and the whole transaction with it."""
    monkeypatch.setattr("stream_app.shuffler.released._MOST_BYTES", 50)
    kafka = Kafka()
    released(kafka, 30)

    assert saved(kafka) == []
    assert Worker(kafka).read["sums"] == 30


NUMBERS = st.tuples(st.binary(max_size=6), st.integers(1, 12))


@given(st.lists(NUMBERS), st.integers(0, 2**53 - 1))
def test_saved_and_read_again(numbers: list[tuple[bytes, int]], reached: int) -> None:
    """Any keys, any gaps."""
    found = ReleasedBatches(reached)
    for key, sequence in numbers:
        found.add(key, sequence)

    assert ReleasedBatches.saved(found.save()) == found


@pytest.mark.parametrize(
    "changed",
    [{"reached": -1}, {"reached": "1"}, {"through": []}, {"through": {"a": 1e9}},
     {"through": {"\u1234": 1}}, {"beyond": 7}, {"beyond": [["a"]]}, {"beyond": [[1, 2]]}],
)  # fmt: skip
def test_what_is_no_list_is_refused(changed: dict[str, object]) -> None:
    good = orjson.loads(encode_released(1, {b"a": 1}, {(b"a", 3)}))

    with pytest.raises(InvalidInput):
        decode_released(orjson.dumps({**good, **changed}))
