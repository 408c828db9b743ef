"""The shuffle stage without Kafka: what is counted, what is refused, and what a restart finds."""

import logging
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import orjson
import pytest

from stream_app.core.mechanisms import Calibration, MechanismName, calibrate
from stream_app.core.terms import Limits, Terms, batch_id
from stream_app.core.window import Refusal
from stream_app.messages import MAX_REPORT_BYTES, encode_report
from stream_app.stages.partition import Output
from tests.stages.fakes import (
    Kafka,
    Record,
    Worker,
    assignment,
    audit,
    offer,
    report,
    report_id,
    sums_in,
    terms,
)


def by_key(output: Output) -> tuple[str, bytes]:
    return output.topic, output.key


def refusals(worker: Worker) -> dict[str, int]:
    return {str(reason): count for reason, count in worker.state.refused.items() if count}


def filled(kafka: Kafka, batch: Terms, first: int, count: int | None = None) -> None:
    """As many distinct reports as the batch needs, or `count`."""
    for number in range(first, first + (count or batch.mechanism.promise.batch_size)):
        report(kafka, batch, number, ones=number % 7)


# -- counting and refusing -----------------------------------------------------------------------


def test_exact_size() -> None:
    """The window closes at exactly its size; what follows is late; the auditor agrees."""
    kafka, batch = Kafka(), terms(size=3)
    offer(kafka, batch)
    filled(kafka, batch, 0, 5)
    worker = Worker(kafka)

    outputs = worker.run()

    assert [output.topic for output in outputs] == ["sums"]
    assert refusals(worker) == {"late": 2}
    assert worker.state.accepted == 3
    assert audit(kafka)[batch.batch_id]["last"] == {"offset": 2, "time_ms": 1_002}


def test_a_sum_shows_nothing_else() -> None:
    """What leaves is the terms, the total and where the reports stand: no ids, no ones."""
    kafka, batch = Kafka(), terms(size=2)
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
    kafka, batch = Kafka(), terms(size=1)
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
    kafka, batch = Kafka(), terms(2, size=2)
    offer(kafka, batch)
    report(kafka, batch, 1)
    report(kafka, batch, 1, ones=3)
    report(kafka, batch, 2, ones=batch.mechanism.bits + 1)
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
    assert worker.state.accepted == 1
    assert refusals(worker) == {
        "malformed": 1,
        "oversized": 1,
        "wrong_key": 2,
        "unknown_batch": 1,
        "late": 1,
        "duplicate": 1,
        "out_of_range": 2,
    }


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
    kafka, batch = Kafka(), terms(size=1)
    offer(kafka, batch)
    report(kafka, batch, 1, timestamp=timestamp)
    Worker(kafka).run()
    report(kafka, batch, 2, ones=30)

    Worker(kafka).recovered().run()

    assert len(audit(kafka)) == 1


@pytest.mark.parametrize("timestamp", [-5, 2**62])
def test_any_timestamp_in_a_checkpoint(timestamp: int) -> None:
    """A checkpoint of such a report can be read again."""
    kafka, batch = Kafka(), terms(size=9)
    offer(kafka, batch)
    report(kafka, batch, 1, timestamp=timestamp)
    report(kafka, batch, 2)
    Worker(kafka, max_reread=0).run()
    assert kafka.records("windows")

    assert Worker(kafka).begin == 2


def test_interleaved() -> None:
    """Several open batches fill side by side, each with its own reports and ids."""
    kafka, batches = Kafka(), [terms(n, size=2, arm=f"arm-{n}") for n in (1, 2, 3)]
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
    kafka, one, two = Kafka(), terms(experiment="one", size=2), terms(experiment="two", size=2)
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
    kafka, one, two = Kafka(), terms(experiment="one", size=2), terms(experiment="two", size=2)
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
    kafka, batch = Kafka(), terms(size=2)
    worker = Worker(kafka)
    offer(kafka, batch)
    filled(kafka, batch, 0)
    records = kafka.records("reports")

    assert worker.state.feed(records, refreshed=False) == 0
    assert refusals(worker) == {}
    worker.feed()
    outputs = worker.flush()

    assert worker.refreshes == 1
    assert [o.topic for o in outputs] == ["sums"]
    assert refusals(worker) == {}


def test_unknown_in_the_middle() -> None:
    """What stands before the unknown report is counted once, what stands after it too."""
    kafka, old, new = Kafka(), terms(1, size=2), terms(2, size=2)
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
    kafka, batch = Kafka(), terms(size=2)
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
    kafka, batch = Kafka(), terms(size=2)
    worker = Worker(kafka)
    report(kafka, batch, 1)
    worker.run()
    offer(kafka, batch)
    report(kafka, batch, 2)
    report(kafka, batch, 3)

    worker.run()

    assert audit(kafka)[batch.batch_id]["first"]["offset"] == 1


# -- terms ---------------------------------------------------------------------------------------

Tamper = Callable[[dict[str, Any]], Any]
TAMPERED: dict[str, Tamper] = {
    "size": lambda t: t.update(batch_size=2),
    "larger size": lambda t: t.update(batch_size=1_000),
    "epsilon": lambda t: t.update(epsilon="1.9"),
    "delta": lambda t: t.update(delta="0.00009"),
    "honest fraction": lambda t: t.update(honest_fraction="1"),
    "attribution": lambda t: t.update(attribution_ms=1),
    "clip": lambda t: t["parameters"].update(clip=1),
    "table": lambda t: t["parameters"].update(table_bits=128),
    "arm": lambda t: t.update(arm="red"),
    "sequence": lambda t: t.update(sequence=2),
    "mechanism": lambda t: t.update(
        mechanism="binomial",
        parameters={"trials": 3, "success_numerator": str(2**63), "success_bits": 64},
    ),
}


@pytest.mark.parametrize("tamper", TAMPERED.values(), ids=TAMPERED)
def test_tampered_terms_under_an_honest_id(tamper: Tamper) -> None:
    """Terms that do not hash to their id open no window."""
    kafka, batch = Kafka(), terms(size=3)
    raw = batch.as_json()
    tamper(raw)
    offer(kafka, (batch.batch_id, raw))
    filled(kafka, batch, 0)
    worker = Worker(kafka)

    assert worker.run() == []
    assert worker.state.refused_terms == 1
    assert worker.state.accepted == 0


WEAK: dict[str, Tamper] = {
    "noise too small": lambda t: t["parameters"].update(clip=1),
    "epsilon above the limit": lambda t: t.update(epsilon="2.5"),
    "delta above the limit": lambda t: t.update(delta="0.01"),
    "attribution above the limit": lambda t: t.update(attribution_ms=8 * 24 * 3600 * 1000),
    "few bits": lambda t: t.update(
        mechanism="binomial",
        parameters={"trials": 3, "success_numerator": str(2**63), "success_bits": 64},
    ),
    "paper's name on few bits": lambda t: t.update(
        mechanism="binomial",
        calibration="paper",
        parameters={"trials": 30, "success_numerator": str(2**63), "success_bits": 64},
    ),
    "another experiment": lambda t: t.update(experiment="other"),
    "a float": lambda t: t.update(epsilon=0.5),
    "an exponent": lambda t: t.update(epsilon="5e-1"),
    "a trailing zero": lambda t: t.update(epsilon="0.50"),
    "no noise": lambda t: t["parameters"].update(clip=0),
    "a key more": lambda t: t.update(note="x"),
    "a key less": lambda t: t.pop("arm"),
    "size 0": lambda t: t.update(batch_size=0),
    "a negative sequence": lambda t: t.update(sequence=-1),
    "an empty arm": lambda t: t.update(arm=""),
    "a list": lambda t: t.update(mechanism=["binomial"]),
}


@pytest.mark.parametrize("tamper", WEAK.values(), ids=WEAK)
def test_weak_terms_under_their_own_id(tamper: Tamper) -> None:
    """Terms that hash to their id but promise too little, or are not canonical, are refused."""
    kafka, good = Kafka(), terms(2, size=1)
    raw = terms(1).as_json()
    tamper(raw)
    offer(kafka, (batch_id(raw), raw), good)
    report(kafka, good, 1)
    worker = Worker(kafka)

    assert len(worker.run()) == 1
    assert worker.state.refused_terms == 1


@pytest.mark.parametrize(
    ("trials", "numerator"),
    [
        (1, 1),
        (1, 2**64 - 1),
        (3, 1),
        (3, 2**64 - 1),
        (300, 1),
    ],
)
def test_extreme_noise(trials: int, numerator: int) -> None:
    """The most lopsided noise that can be written down is refused; it does not end the stage."""
    kafka, good = Kafka(), terms(2, size=1)
    parameters = {"trials": trials, "success_numerator": str(numerator), "success_bits": 64}
    size = min(trials, 3)
    raw = {
        **terms(1).as_json(), "mechanism": "binomial", "parameters": parameters, "batch_size": size
    }  # fmt: skip
    offer(kafka, (batch_id(raw), raw), good)
    report(kafka, good, 1)
    worker = Worker(kafka)

    assert len(worker.run()) == 1
    assert worker.state.refused_terms == 1


@pytest.mark.parametrize(
    ("limits", "refused"),
    [
        (Limits(max_batch_size=2), True),
        (Limits(max_epsilon=Decimal("0.4")), True),
        (Limits(max_delta=Decimal("0.0000001")), True),
        (Limits(max_honest_fraction=Decimal("0.8")), True),
        (Limits(max_attribution_ms=999), True),
        (Limits(Decimal("0.5"), Decimal("0.000001"), Decimal("0.9"), 3, 1000), False),
    ],
)
def test_own_limits(limits: Limits, refused: bool) -> None:
    """The stage's own settings bound what the agent may ask for."""
    kafka, batch = Kafka(), terms(size=3, attribution_ms=1000)
    offer(kafka, batch)
    filled(kafka, batch, 0)
    worker = Worker(kafka, limits)

    assert (worker.run() == []) is refused
    assert worker.state.refused_terms == refused


def test_other_mechanisms() -> None:
    """Binomial batches, by the paper's constants and exact, are taken as well."""
    kafka = Kafka()
    promise = terms(size=2).mechanism.promise
    batches = [
        replace(terms(n + 1), mechanism=calibrate(promise, MechanismName.BINOMIAL, calibration))
        for n, calibration in enumerate(Calibration)
    ]
    offer(kafka, *batches)
    for number, batch in enumerate(batches * 2):
        report(kafka, batch, number, ones=number)

    assert [s["total"] for s in sums_in(Worker(kafka).run())] == [0 + 2, 1 + 3]


def test_second_terms_in_one_assignment() -> None:
    """Of two sets of terms under one sequence number the first is taken."""
    kafka, first, second = Kafka(), terms(size=2), terms(size=2, arm="red")
    offer(kafka, first, second)
    filled(kafka, second, 0)
    filled(kafka, first, 10)
    worker = Worker(kafka)

    worker.run()

    assert set(audit(kafka)) == {first.batch_id}
    assert worker.state.refused_terms == 1


def test_second_terms_later() -> None:
    """Other terms under a known sequence number are refused, open or released."""
    kafka, first, second = Kafka(), terms(size=2), terms(size=2, arm="red")
    offer(kafka, first)
    worker = Worker(kafka)
    offer(kafka, first, second)
    filled(kafka, second, 0)
    filled(kafka, first, 10)
    worker.run()
    offer(kafka, second)
    filled(kafka, second, 20)
    worker.run()

    assert set(audit(kafka)) == {first.batch_id}
    assert worker.state.refused_terms == 2


def test_second_terms_after_a_restart() -> None:
    """Nor can a restart make a second batch of a sequence number that has its sum."""
    kafka, first, second = Kafka(), terms(size=2), terms(size=2, arm="red")
    offer(kafka, first)
    filled(kafka, first, 0)
    Worker(kafka).run()
    offer(kafka, second)
    filled(kafka, second, 10)

    Worker(kafka).recovered().run()

    assert set(audit(kafka)) == {first.batch_id}


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"not json",
        b"[]",
        b'{"version":2}',
        b'{"version":1,"experiment":"demo","state":"running","serve":null,"open":7}',
        b'{"version":1,"experiment":"demo","state":"asleep","serve":null,"open":[]}',
        b'{"version":1,"experiment":"other","state":"running","serve":null,"open":[]}',
        b'{"version":1,"experiment":7,"state":"running","serve":null,"open":[]}',
        b'{"version":1,"experiment":"demo","state":[],"serve":null,"open":[]}',
        b'{"version":1,"experiment":"demo","state":"running","serve":null,"open":[{}]}',
        b'{"version":1,"experiment":"\\ud800","state":"running","serve":null,"open":[]}',
        b"[" * 100_000,
    ],
)
def test_broken_assignment_leaves_windows_alone(value: bytes | None) -> None:
    """An assignment that cannot be read closes nothing; it is counted."""
    kafka, batch = Kafka(), terms(size=2)
    offer(kafka, batch)
    report(kafka, batch, 1)
    worker = Worker(kafka)
    worker.run()
    kafka.append("assignments", b"demo", value)
    kafka.append("assignments", None, assignment(batch))
    report(kafka, batch, 2)

    worker.run()

    assert worker.state.refused_terms == 2
    assert set(audit(kafka)) == {batch.batch_id}


def test_refusals_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """A bad record repeated is counted each time and logged once."""
    kafka = Kafka()
    worker = Worker(kafka)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            kafka.append("assignments", b"demo", b"?")
            worker.tail()

    assert worker.state.refused_terms == 5
    assert len(caplog.records) == 1


def test_the_log_is_not_flooded(caplog: pytest.LogCaptureFixture) -> None:
    """However many bad records come, the log and the memory of them stay bounded."""
    kafka = Kafka()
    worker = Worker(kafka)
    for number in range(1_500):
        kafka.append("assignments", b"k%d" % number, b"?")
    worker.tail()

    assert worker.state.refused_terms == 1_500
    assert len(caplog.records) == 1_000


def test_nothing_of_open_windows_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """At the finest level, a life with every kind of report logs nothing of their ones."""
    kafka, batch = Kafka(), terms(size=4)
    with caplog.at_level(logging.DEBUG):
        offer(kafka, batch)
        report(kafka, batch, 1, ones=51)
        report(kafka, batch, 1, ones=51)
        report(kafka, batch, 2, ones=9_151)
        worker = Worker(kafka, max_reread=0)
        worker.run()
        kafka.mark = 0
        Worker(kafka).recovered().run()

    assert caplog.records == []


# -- what is listed no longer --------------------------------------------------------------------


def test_unlisted_batch_is_dropped() -> None:
    """A batch that the newest assignment does not list is closed and never released."""
    kafka, old, new = Kafka(), terms(1, size=2), terms(2, size=2)
    offer(kafka, old)
    report(kafka, old, 1)
    worker = Worker(kafka)
    worker.run()
    assert worker.state.mark() == 0
    offer(kafka, new)
    report(kafka, old, 2)
    report(kafka, old, 3)

    worker.run()

    assert audit(kafka) == {}
    assert refusals(worker) == {"late": 2}
    assert worker.state.mark() == 3


def test_dropped_batch_tombstones_its_checkpoints() -> None:
    """Its deltas go in the same transaction; a later restart finds none."""
    kafka, batch = Kafka(), terms(size=9)
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
    kafka, batch = Kafka(), terms(size=9)
    offer(kafka, batch)
    report(kafka, batch, 1)
    Worker(kafka, max_reread=0).run()
    (delta,) = kafka.records("windows")
    offer(kafka, terms(2))

    outputs = Worker(kafka).flush()

    assert outputs == [Output("windows", delta.key or b"", None)]


def test_dropped_batch_stays_closed() -> None:
    """Listing it again does not bring it back."""
    kafka, batch = Kafka(), terms(size=2)
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
    kafka, batch = Kafka(), terms(size=3)
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
    kafka, batch = Kafka(), terms(size=1)
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
    kafka, batch = Kafka(), terms(size=2)
    offer(kafka, batch)
    filled(kafka, batch, 0)
    worker = Worker(kafka)
    worker.feed()
    worker.state.take()

    Worker(kafka).run()

    assert set(audit(kafka)) == {batch.batch_id}


def test_aborted_release_with_checkpoints() -> None:
    """Sum and tombstones share a transaction: both come again after it was aborted."""
    kafka, batch = Kafka(), terms(size=3)
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
    kafka, one, two = Kafka(), terms(1, size=2), terms(2, size=2)
    offer(kafka, one)
    filled(kafka, one, 0)
    worker = Worker(kafka)
    worker.run()
    for number, listed in enumerate([(one,), (two,), (one,), (one, two), (), (one,)]):
        offer(kafka, *listed)
        if restart:
            kafka.mark = None
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
    kafka, batch = Kafka(), terms(size=2)
    worker = Worker(kafka)
    report(kafka, batch, 0, ones=9)
    worker.feed()
    offer(kafka, batch)
    filled(kafka, batch, 1)
    worker.run()
    kafka.append("assignments", b"demo", broken)
    kafka.mark = None

    worker = Worker(kafka).recovered()
    offer(kafka, batch)
    worker.run()

    audit(kafka)


@pytest.mark.parametrize("broken", [None, b"not json"])
def test_aborted_sum_survives_a_broken_assignment(broken: bytes | None) -> None:
    """The same for a sum that was aborted: it is released in the end, and no other."""
    kafka, batch = Kafka(), terms(size=2)
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
    kafka, batch = Kafka(), terms(size=3)
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
    kafka, batch = Kafka(), terms(size=2)
    offer(kafka, batch)
    filled(kafka, batch, 0)
    worker = Worker(kafka)
    worker.feed()
    (output,) = worker.state.take()
    newer = orjson.dumps({**orjson.loads(output.value or b""), "version": 2})
    kafka.append("sums", b"demo", newer)
    filled(kafka, batch, 10)

    assert sums_in(Worker(kafka).run()) == []


# -- marks and checkpoints -----------------------------------------------------------------------


def test_mark_waits_for_the_oldest_report() -> None:
    """The mark stands at the first report that only memory holds, else at the position."""
    kafka, slow, fast = Kafka(), terms(1, size=9), terms(2, size=2)
    offer(kafka, slow, fast)
    worker = Worker(kafka)
    report(kafka, fast, 0)
    report(kafka, slow, 1)
    worker.run()
    assert kafka.mark == 0
    report(kafka, fast, 2)
    worker.run()
    assert kafka.mark == 1
    offer(kafka, fast)
    worker.run()

    assert kafka.mark == 3


def test_mark_never_falls() -> None:
    """A window whose batch became known late does not pull the mark back."""
    kafka, batch = Kafka(), terms(size=9)
    for number in range(5):
        kafka.append("reports", b"demo", b"?%d" % number)
    worker = Worker(kafka)
    worker.run()
    offer(kafka, batch)
    report(kafka, batch, 1)
    worker.run()

    assert kafka.mark == 5


def test_checkpoint_moves_the_mark() -> None:
    """A stalled window beside a busy one is saved once the mark lags, and only then."""
    kafka, stalled = Kafka(), terms(experiment="stalled", size=9)
    busy = terms(experiment="busy", size=4)
    offer(kafka, stalled, experiment="stalled")
    offer(kafka, busy, experiment="busy")
    report(kafka, stalled, 0)
    worker = Worker(kafka, max_reread=20)
    for number in range(19):
        report(kafka, busy, number)
        worker.run()
        assert kafka.mark == 0
        assert not kafka.records("windows")
    report(kafka, busy, 99)
    worker.run()

    assert kafka.mark == 21
    assert len(kafka.records("windows")) == 1


def test_reread_is_bounded() -> None:
    """However long a window stays open, a restart reads no more than the setting, about."""
    kafka, stalled = Kafka(), terms(experiment="stalled", size=50)
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
        kafka, batch = Kafka(), terms(size=6)
        offer(kafka, batch)
        worker = Worker(kafka, max_reread=1)
        for number in range(6):
            report(kafka, batch, number, ones=number)
            report(kafka, batch, number, ones=50)
            worker.run()
            if restarts:
                kafka.mark = max(0, (kafka.mark or 0) - 3)
                worker = Worker(kafka, max_reread=1).recovered()
        totals.append(audit(kafka))

    assert totals[0] == totals[1]
    assert len(totals[0]) == 1


def test_old_windows_are_saved_in_time() -> None:
    """A quiet window is saved before the retention of `reports` (7 days) takes its reports.

    It holds the mark back by few records, but for long: count alone does not save it.
    """
    kafka, batch = Kafka(), terms(size=20)
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
    kafka, batch = Kafka(), terms(size=2)
    offer(kafka, batch)
    kafka.append("windows", b"demo/x/0", b"?")
    filled(kafka, batch, 0)

    assert len(sums_in(Worker(kafka).run())) == 1


def test_retention_does_not_touch_what_is_needed() -> None:
    """Reports below the committed mark may be deleted at any time."""
    kafka, batch, busy = Kafka(), terms(size=5), terms(2, size=2)
    offer(kafka, batch, busy)
    worker = Worker(kafka, max_reread=2)
    for number in range(5):
        report(kafka, batch, number, ones=number)
        for junk in range(3):
            kafka.append("reports", b"demo", b"?%d" % junk)
        worker.run()
        kafka.start["reports"] = kafka.mark or 0
        worker = Worker(kafka, max_reread=2).recovered()

    assert audit(kafka)[batch.batch_id]["total"] == 10


def test_record_type_is_enough() -> None:
    """The stage needs offset, key, value and timestamp of a record, nothing else."""
    state = Worker(Kafka()).state

    assert state.feed([Record(0, b"demo", b"?", 0)], refreshed=False) == 1
    assert state.refused[Refusal.MALFORMED] == 1
