"""The shuffle stage without Kafka: what is counted, what is refused, and what is not known yet."""

import pytest

from stream_app.wire.report import MAX_REPORT_BYTES, encode_report
from tests.support.partition_log import (
    Kafka,
    Worker,
    audit,
    filled,
    offer,
    refusals,
    report,
    report_id,
    sums_in,
    terms,
)

# -- counting and refusing -----------------------------------------------------------------------


def test_exact_size() -> None:
    """The window closes at exactly its size; what follows is late; the auditor agrees."""
    kafka = Kafka()
    batch = terms(size=3)
    offer(kafka, batch)
    filled(kafka, batch, 0, 5)
    worker = Worker(kafka)

    outputs = worker.run()

    assert [output.topic for output in outputs] == ["sums"]
    assert refusals(worker) == {"late": 2}
    assert worker.state.counts()["accepted"] == 3
    assert audit(kafka)[batch.batch_id]["last"] == {"offset": 2, "time_ms": 1_002}


def test_a_sum_shows_nothing_else() -> None:
    """What leaves is the terms, the total and where the reports stand: no ids, no ones."""
    kafka = Kafka()
    batch = terms(size=2)
    offer(kafka, batch)
    filled(kafka, batch, 0)

    (released,) = sums_in(Worker(kafka).run())

    assert set(released) == {
        "version", "batch", "terms", "total", "estimate", "digest", "first", "last",
    }  # fmt: skip


HEX = report_id(0).hex()
MALFORMED: list[bytes | None] = [
    None,
    b"",
    b"[]",
    b"1",
    b"null",
    b'"text"',
    b"\xff\xfe",
    b"{" * 200,
    b"[" * 500,
    b'{"batch":"BATCH","id":"%b"}' % HEX.encode(),
    b'{"batch":"BATCH","id":"%b","ones":1,"more":1}' % HEX.encode(),
    b'{"batch":"BATCH","id":"%b","ones":1.0}' % HEX.encode(),
    b'{"batch":"BATCH","id":"%b","ones":true}' % HEX.encode(),
    b'{"batch":"BATCH","id":"%b","ones":"1"}' % HEX.encode(),
    b'{"batch":"BATCH","id":"%b","ones":null}' % HEX.encode(),
    b'{"batch":"BATCH","id":"%b","ones":1e400}' % HEX.encode(),
    b'{"batch":"BATCH","id":"%b","ones":%b}' % (HEX.encode(), b"9" * 60),
    b'{"batch":"BATCH","id":"%b","ones":1}' % HEX[:30].encode(),
    b'{"batch":"BATCH","id":"%b00","ones":1}' % HEX.encode(),
    b'{"batch":"BATCH","id":"zz%b","ones":1}' % HEX[2:].encode(),
    b'{"batch":"BATCH","id":5,"ones":1}',
    b'{"batch":"BATCH","id":null,"ones":1}',
    b'{"batch":[],"id":"%b","ones":1}' % HEX.encode(),
    b'{"batch":{},"id":"%b","ones":1}' % HEX.encode(),
    b'{"batch":"","id":"%b","ones":1}' % HEX.encode(),
    b'{"batch":"x","id":"%b","ones":1}' % HEX.encode(),
    b'{"batch":"1.","id":"%b","ones":1}' % HEX.encode(),
    b'{"batch":"-1.x","id":"%b","ones":1}' % HEX.encode(),
    b'{"batch":"9999999999999999.x","id":"%b","ones":1}' % HEX.encode(),
    f'{{"batch":"²².x","id":"{HEX}","ones":1}}'.encode(),
]


@pytest.mark.parametrize("value", MALFORMED)
def test_malformed(value: bytes | None) -> None:
    """Whatever the bytes are, they are counted and dropped, and the stage goes on."""
    kafka = Kafka()
    batch = terms(size=1)
    offer(kafka, batch)
    raw = value and value.replace(b"BATCH", batch.batch_id.encode())
    kafka.append("reports", b"demo", raw)
    report(kafka, batch, 1)
    worker = Worker(kafka)

    outputs = worker.run()

    assert refusals(worker) == {"malformed": 1}
    assert len(outputs) == 1


@pytest.mark.parametrize("batch", [b"5", b"null", b"true", b"1.5", b"-1"])
def test_batch_that_is_no_text(batch: bytes) -> None:
    """A batch id of another type is malformed: one report must not end the stage."""
    kafka = Kafka()
    value = b'{"batch":%b,"id":"%b","ones":1}' % (batch, HEX.encode())
    kafka.append("reports", b"demo", value)
    worker = Worker(kafka)

    worker.run()

    assert refusals(worker) == {"malformed": 1}


def test_every_reason() -> None:
    """Each refusal is counted under its own reason; only the valid report takes a place."""
    kafka = Kafka()
    batch = terms(2, size=2)
    offer(kafka, batch)
    report(kafka, batch, 1)
    report(kafka, batch, 1, ones=3)
    report(kafka, batch, 2, ones=batch.mechanism.max_ones + 1)
    report(kafka, batch, 2, ones=-1)
    kafka.append("reports", b"other", encode_report(batch.batch_id, report_id(3), 1))
    kafka.append("reports", None, encode_report(batch.batch_id, report_id(3), 1))
    kafka.append("reports", b"demo", b" " * (MAX_REPORT_BYTES + 1))
    kafka.append("reports", b"demo", b"?")
    report(kafka, terms(1), 4)
    report(kafka, terms(3), 4)
    worker = Worker(kafka)

    outputs = worker.run()

    assert outputs == []
    assert worker.state.counts()["accepted"] == 1
    assert refusals(worker) == {
        "malformed": 1,
        "oversized": 1,
        "wrong_key": 2,
        "unknown_batch": 1,
        "late": 1,
        "duplicate": 1,
        "out_of_range": 2,
    }


def test_wrong_key_where_the_window_fills() -> None:
    """A report under another's key is that, also if its batch is released in the same chunk."""
    kafka = Kafka()
    batch = terms(size=2)
    offer(kafka, batch)
    kafka.append("reports", b"other", encode_report(batch.batch_id, report_id(3), 1))
    filled(kafka, batch, 0)
    worker = Worker(kafka)

    assert len(worker.run()) == 1
    assert refusals(worker) == {"wrong_key": 1}


@pytest.mark.parametrize(
    "timestamp",
    [
        -1,
        0,
        2**53 - 1,
        -5,
        -(2**62),
        2**62,
    ],
)
def test_any_timestamp(timestamp: int) -> None:
    """The producer chooses a record's time: whatever it is, a restart knows the release."""
    kafka = Kafka()
    batch = terms(size=1)
    offer(kafka, batch)
    report(kafka, batch, 1, timestamp=timestamp)
    Worker(kafka).run()
    report(kafka, batch, 2, ones=30)

    Worker(kafka).recovered().run()

    assert len(audit(kafka)) == 1


@pytest.mark.parametrize("timestamp", [-5, 2**62])
def test_any_timestamp_in_a_checkpoint(timestamp: int) -> None:
    """A checkpoint of such a report can be read again."""
    kafka = Kafka()
    batch = terms(size=9)
    offer(kafka, batch)
    report(kafka, batch, 1, timestamp=timestamp)
    report(kafka, batch, 2)
    Worker(kafka, max_reread=0).run()
    assert kafka.records("windows")

    assert Worker(kafka).begin == 2


def test_interleaved() -> None:
    """Several open batches fill side by side, each with its own reports and ids."""
    kafka = Kafka()
    batches = [terms(n, size=2, arm=f"arm-{n}") for n in (1, 2, 3)]
    offer(kafka, *batches)
    for number, batch in enumerate([*batches, *reversed(batches)]):
        report(kafka, batch, number // 3, ones=number)
    worker = Worker(kafka)

    released = sums_in(worker.run())

    assert [s["batch"] for s in released] == [b.batch_id for b in reversed(batches)]
    assert [s["total"] for s in released] == [2 + 3, 1 + 4, 0 + 5]
    assert refusals(worker) == {}
    assert len(audit(kafka)) == 3


def test_interleaved_experiments() -> None:
    """Experiments of a partition do not touch each other, even under equal sequence numbers."""
    kafka = Kafka()
    one = terms(experiment="one", size=2)
    two = terms(experiment="two", size=2)
    offer(kafka, one, experiment="one")
    offer(kafka, two, experiment="two")
    for number, batch in enumerate([one, two, one]):
        report(kafka, batch, number)
    offer(kafka, experiment="one")
    report(kafka, two, 9)

    Worker(kafka).run()

    assert set(audit(kafka)) == {two.batch_id}


def test_release_before_the_drop_is_seen() -> None:
    """Reports before the stage has read that a batch was dropped still make its sum, once."""
    kafka = Kafka()
    one = terms(experiment="one", size=2)
    two = terms(experiment="two", size=2)
    offer(kafka, one, experiment="one")
    offer(kafka, two, experiment="two")
    worker = Worker(kafka)
    filled(kafka, one, 0)
    offer(kafka, experiment="one")

    worker.feed()
    worker.flush()
    worker.run()

    assert set(audit(kafka)) == {one.batch_id}


# -- batches that are not known yet --------------------------------------------------------------


def test_unknown_batch_asks_first() -> None:
    """A report ahead of its assignment stops the feed; after the refresh it is counted."""
    kafka = Kafka()
    batch = terms(size=2)
    worker = Worker(kafka)
    offer(kafka, batch)
    filled(kafka, batch, 0)
    records = kafka.records("reports")

    assert len(worker.state.feed(records, refreshed=False) or ()) == len(records)
    assert refusals(worker) == {}
    worker.feed()
    outputs = worker.flush()

    assert worker.refreshes == 1
    assert [o.topic for o in outputs] == ["sums"]
    assert refusals(worker) == {}


def test_unknown_in_the_middle() -> None:
    """What stands before the unknown report is counted once, what stands after it too."""
    kafka = Kafka()
    old = terms(1, size=2)
    new = terms(2, size=2)
    offer(kafka, old)
    worker = Worker(kafka)
    report(kafka, old, 1)
    report(kafka, new, 2)
    report(kafka, old, 3)
    report(kafka, new, 4)
    offer(kafka, old, new)

    worker.feed()
    outputs = worker.flush()

    assert len(sums_in(outputs)) == 2
    assert worker.refreshes == 1
    audit(kafka)


def test_unknown_flood_asks_once_per_chunk() -> None:
    """A flood of made-up batches costs one refresh a chunk, and does not hold up the rest."""
    kafka = Kafka()
    batch = terms(size=2)
    offer(kafka, batch)
    worker = Worker(kafka)
    for number in range(50):
        value = encode_report(f"{number + 2}.{'x' * 43}", report_id(number), 1)
        kafka.append("reports", b"demo", value)
        kafka.append("reports", b"nobody", value)
    filled(kafka, batch, 0)

    worker.feed()

    assert worker.refreshes == 1
    assert refusals(worker) == {"unknown_batch": 100}
    assert len(sums_in(worker.flush())) == 1


def test_refused_unknown_is_not_in_the_sum() -> None:
    """A report refused before its batch was known: the auditor starts at the sum's first offset."""
    kafka = Kafka()
    batch = terms(size=2)
    worker = Worker(kafka)
    report(kafka, batch, 1)
    worker.run()
    offer(kafka, batch)
    report(kafka, batch, 2)
    report(kafka, batch, 3)

    worker.run()

    assert audit(kafka)[batch.batch_id]["first"]["offset"] == 1
