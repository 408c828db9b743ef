"""Terms that the shuffle stage must refuse, without Kafka: no report is counted under them."""

import logging
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from stream_app.core.mechanisms import MechanismName, calibrate
from stream_app.core.promise import Calibration
from stream_app.core.terms import MOST_CERTIFICATES, Limits, batch_id
from tests.support.partition_log import (
    Kafka,
    Worker,
    assignment,
    audit,
    filled,
    offer,
    report,
    sums_in,
    terms,
)

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
    kafka = Kafka()
    batch = terms(size=3)
    raw = batch.as_json()
    tamper(raw)
    offer(kafka, (batch.batch_id, raw))
    filled(kafka, batch, 0)
    worker = Worker(kafka)

    assert worker.run() == []
    assert worker.state.counts()["refused"] == 1
    assert worker.state.counts()["accepted"] == 0


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
    kafka = Kafka()
    good = terms(2, size=1)
    raw = terms(1).as_json()
    tamper(raw)
    offer(kafka, (batch_id(raw), raw), good)
    report(kafka, good, 1)
    worker = Worker(kafka)

    assert len(worker.run()) == 1
    assert worker.state.counts()["refused"] == 1


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
    kafka = Kafka()
    good = terms(2, size=1)
    parameters = {"trials": trials, "success_numerator": str(numerator), "success_bits": 64}
    size = min(trials, 3)
    raw = {
        **terms(1).as_json(), "mechanism": "binomial", "parameters": parameters, "batch_size": size
    }  # fmt: skip
    offer(kafka, (batch_id(raw), raw), good)
    report(kafka, good, 1)
    worker = Worker(kafka)

    assert len(worker.run()) == 1
    assert worker.state.counts()["refused"] == 1


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
    kafka = Kafka()
    batch = terms(size=3, attribution_ms=1000)
    offer(kafka, batch)
    filled(kafka, batch, 0)
    worker = Worker(kafka, limits)

    assert (worker.run() == []) is refused
    assert worker.state.counts()["refused"] == refused


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
    kafka = Kafka()
    first = terms(size=2)
    second = terms(size=2, arm="red")
    offer(kafka, first, second)
    filled(kafka, second, 0)
    filled(kafka, first, 10)
    worker = Worker(kafka)

    worker.run()

    assert set(audit(kafka)) == {first.batch_id}
    assert worker.state.counts()["refused"] == 1


def test_second_terms_later() -> None:
    """Other terms under a known sequence number are refused, open or released."""
    kafka = Kafka()
    first = terms(size=2)
    second = terms(size=2, arm="red")
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
    assert worker.state.counts()["refused"] == 2


def test_second_terms_after_a_restart() -> None:
    """Nor can a restart make a second batch of a sequence number that has its sum."""
    kafka = Kafka()
    first = terms(size=2)
    second = terms(size=2, arm="red")
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
    kafka = Kafka()
    batch = terms(size=2)
    offer(kafka, batch)
    report(kafka, batch, 1)
    worker = Worker(kafka)
    worker.run()
    kafka.append("assignments", b"demo", value)
    kafka.append("assignments", None, assignment(batch))
    report(kafka, batch, 2)

    worker.run()

    assert worker.state.counts()["refused"] == 2
    assert set(audit(kafka)) == {batch.batch_id}


def test_refusals_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """A bad record repeated is counted each time and logged once."""
    kafka = Kafka()
    worker = Worker(kafka)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            kafka.append("assignments", b"demo", b"?")
            worker.tail()

    assert worker.state.counts()["refused"] == 5
    assert len(caplog.records) == 1


def test_the_log_is_not_flooded(caplog: pytest.LogCaptureFixture) -> None:
    """However many bad records come, the log and the memory of them stay bounded."""
    kafka = Kafka()
    worker = Worker(kafka)
    for number in range(1_500):
        kafka.append("assignments", b"k%d" % number, b"?")
    worker.tail()

    assert worker.state.counts()["refused"] == 1_500
    assert len(caplog.records) == 1_000


def test_nothing_of_open_windows_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """At the finest level, a life with every kind of report logs nothing of their ones."""
    kafka = Kafka()
    batch = terms(size=4)
    with caplog.at_level(logging.DEBUG):
        offer(kafka, batch)
        report(kafka, batch, 1, ones=51)
        report(kafka, batch, 1, ones=51)
        report(kafka, batch, 2, ones=9_151)
        worker = Worker(kafka, max_reread=0)
        worker.run()
        kafka.restart_offset = 0
        Worker(kafka).recovered().run()

    assert caplog.records == []


def test_an_assignment_of_a_thousand_kinds_is_cheap() -> None:
    """An agent that lists a thousand different promises gets four windows, and no more work."""
    kafka = Kafka()
    offer(kafka, *(terms(number, size=number + 1) for number in range(1, 1001)))
    worker = Worker(kafka)

    assert worker.state.levels()["windows"] == MOST_CERTIFICATES
    assert worker.state.counts()["refused"] == 1000 - MOST_CERTIFICATES
