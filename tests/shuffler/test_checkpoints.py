"""Restart offset and checkpoints: what a restart reads again is bounded, and nothing is lost."""

import random
from collections.abc import Sequence

import orjson
import pytest

from stream_app.metrics.instruments import Metrics
from stream_app.runtime.stage import Output
from tests.support.partition_log import (
    Kafka,
    Worker,
    audit,
    filled,
    offer,
    report,
    sums_in,
    terms,
)


def test_restart_offset_waits_for_the_oldest_report() -> None:
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


def test_restart_offset_never_falls() -> None:
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


def seen_outside(ones: Sequence[int]) -> tuple[list[tuple[str, bytes, int]], str, bytes]:
    """What those see of an open window who may not see its reports.

    Records' keys and sizes, the restart offset, the metrics; not those of the process itself.
    """
    kafka = Kafka()
    batch = terms(size=len(ones) + 1)
    offer(kafka, batch)
    for number, each in enumerate(ones):
        report(kafka, batch, number, ones=each)
    metrics = Metrics()
    stage = metrics.stage("shuffle")
    worker = Worker(kafka, max_reread=1)
    stage.opened(0, worker.state)
    outputs: list[Output] = worker.run()
    for output in outputs:
        stage.wrote(output.times, output.topic, len(output.value or b""), 0)
    sizes = [(output.topic, output.key, len(output.value or b"")) for output in outputs]
    exposed = [line for line in metrics.expose().splitlines() if not line.startswith(b"process_")]
    return sizes, str(kafka.restart_offset), b"\n".join(exposed)


def test_no_size_and_no_metric_tells_a_click() -> None:
    """400 pairs of windows that differ in one user's click look the same from outside.

    The pairs are those where a click matters most to a decimal number: the total is one below a
    power of ten, or anything.
    """
    choose = random.Random(20)
    for pair in range(400):
        size = choose.randint(4, 40)
        most = terms(size=size + 1).mechanism.max_ones
        ones = [choose.randrange(most) for _ in range(size)]
        if pair % 2:
            ones = [*choose.choice([(9, 0, 0), (33, 33, 33)]), *[0] * size]
        clicked = [*ones[:-1], ones[-1] + 1]

        assert seen_outside(ones) == seen_outside(clicked)


@pytest.mark.parametrize("damage", [b"[", b"1", b'"', b" "])
def test_a_damaged_checkpoint_is_named_without_its_content(
    damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says the same whatever was counted, and wherever the record is broken."""
    lines = []
    for ones in (9, 10):
        caplog.clear()
        kafka = Kafka()
        batch = terms(size=3)
        offer(kafka, batch)
        report(kafka, batch, 0, ones=ones)
        report(kafka, batch, 1, ones=0)
        Worker(kafka, max_reread=1).run()
        [saved] = kafka.records("windows")
        assert saved.value is not None
        assert ones == orjson.loads(saved.value)["total"]
        kafka.append("windows", saved.key, saved.value.rstrip() + damage + b"}")
        Worker(kafka, max_reread=1).run()
        lines.append([record.getMessage() for record in caplog.records])

    assert lines[0] == lines[1]
