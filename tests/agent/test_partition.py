"""The elimination stage without Kafka: definitions and sums in, assignments out, from the log."""

import logging
from dataclasses import replace
from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_app.agent.partition import EliminationPartition
from stream_app.core.experiment import Experiment
from stream_app.core.state import Status
from stream_app.core.terms import Limits, Terms
from stream_app.core.window import LogPosition, Release
from stream_app.definitions import dump_experiment
from stream_app.runtime.stage import Output, Restartable
from stream_app.shuffler.partition import ShufflePartition
from stream_app.wire.assignment import Assignment, decode_assignment
from stream_app.wire.definition import Definition
from stream_app.wire.sum import encode_sum
from tests.core.build import experiment
from tests.support.partition_log import Kafka, MemoryLog, Record, drive


def named(name: str = "test", **changes: Any) -> Experiment:
    return replace(experiment(horizon=2_000, arms=3, **changes), name=name)


class Worker:
    """A life of the stage over a fake log."""

    def __init__(self, kafka: Kafka) -> None:
        self.kafka = kafka
        self.state = EliminationPartition()
        log = MemoryLog(kafka)
        self.position = drive(self.state.recover(log, None))  # type: ignore[arg-type]
        self.control_position = log.ends["experiments"]

    def tail(self) -> None:
        records = self.kafka.records("experiments", start=self.control_position)
        if records:
            self.state.control(records)
            self.control_position = records[-1].offset + 1

    def feed(self, most: int | None = None) -> None:
        records = self.kafka.records("sums", start=self.position)[:most]
        if records:
            assert self.state.feed(records, refreshed=False) is None
            self.position = records[-1].offset + 1

    def flush(self, *, committed: bool = True) -> list[Output]:
        outputs = self.state.take()
        self.kafka.write(outputs, committed=committed)
        return outputs

    def run(self) -> list[Output]:
        outputs = self.flush()
        self.tail()
        self.feed()
        return outputs + self.flush()


def define(kafka: Kafka, definition: Experiment, *, stopped: bool = False) -> None:
    kafka.append("experiments", definition.name.encode(), Definition(definition, stopped).encode())


def newest(kafka: Kafka) -> dict[bytes, Assignment]:
    found = {r.key or b"": r.value for r in kafka.records("assignments")}
    return {key: decode_assignment(value) for key, value in found.items()}


def add_sum(kafka: Kafka, batch: Terms, mean: float = 0.5, key: bytes | None = None) -> int:
    size = batch.mechanism.promise.batch_size
    total = round(size * mean) + batch.mechanism.max_ones // 2 * size
    release = Release(batch.batch_id, batch, total, "0" * 64, LogPosition(0, 0), LogPosition(1, 1))
    return kafka.append("sums", key or batch.experiment.encode(), encode_sum(release))


def answer(kafka: Kafka, name: str = "test", means: tuple[float, ...] = (0.9, 0.1, 0.1)) -> int:
    """A sum for every open batch of an experiment, as the shuffle stage would release it."""
    assignment = newest(kafka)[name.encode()]
    for batch in assignment.state.open:
        add_sum(kafka, assignment.terms(batch), means[batch.arm])
    return len(assignment.state.open)


def defined(**changes: Any) -> tuple[Kafka, Worker]:
    kafka = Kafka()
    define(kafka, named(**changes))
    worker = Worker(kafka)
    worker.run()
    return kafka, worker


def test_define() -> None:
    """A definition becomes an assignment whose batches the shuffle stage accepts."""
    kafka, _ = defined(order="interleaved")

    (record,) = kafka.records("assignments")
    state = newest(kafka)[b"test"].state
    shuffle = ShufflePartition(Limits(max_honest_fraction=Decimal(1)), 10)
    shuffle.control([record])

    assert state.status is Status.RUNNING
    assert [batch.sequence for batch in state.open] == [1, 2, 3]
    assert shuffle.counts()["refused"] == 0
    assert len(shuffle.windows) == 3


def test_redefine_with_the_same_content() -> None:
    """A repeated definition changes nothing and is no error."""
    kafka, worker = defined()
    define(kafka, named())

    assert worker.run() == []
    assert worker.state.refused == 0


def test_redefine_with_other_content() -> None:
    """A running definition cannot be changed: refused, and the experiment goes on."""
    kafka, worker = defined()
    define(kafka, replace(named(), horizon=5_000))
    assert worker.run() == []
    assert worker.state.refused == 1
    answer(kafka)
    worker.run()

    assert newest(kafka)[b"test"].experiment.horizon == 2_000
    assert newest(kafka)[b"test"].state.users > 0


def test_redefine_while_away_and_compacted() -> None:
    """The assignment keeps the definition, even if compaction has taken the first one."""
    kafka, _ = defined()
    define(kafka, replace(named(), horizon=5_000))
    kafka.compact("experiments")

    again = Worker(kafka)

    assert again.run() == []
    assert again.state.refused == 1
    assert newest(kafka)[b"test"].experiment.horizon == 2_000


def test_stop() -> None:
    """A stopped experiment opens nothing, keeps what it learned, and stays stopped."""
    kafka, worker = defined(order="interleaved")
    answer(kafka, means=(0.5, 0.5, 0.5))
    worker.run()
    define(kafka, named(order="interleaved"), stopped=True)
    worker.run()
    stopped = newest(kafka)[b"test"].state
    define(kafka, named(order="interleaved"))

    assert worker.run() == []
    assert stopped.status is Status.STOPPED
    assert stopped.open == ()
    assert stopped.serve == 0
    assert stopped.users > 0


def test_stopped_from_the_beginning() -> None:
    """A definition that is stopped already never opens a batch."""
    kafka = Kafka()
    define(kafka, named(), stopped=True)
    Worker(kafka).run()

    assert newest(kafka)[b"test"].state.status is Status.STOPPED
    assert newest(kafka)[b"test"].state.open == ()


def test_sum_after_stop() -> None:
    """A sum that was released as the operator stopped is not folded."""
    kafka, worker = defined()
    answer(kafka)
    define(kafka, named(), stopped=True)
    worker.tail()
    worker.feed()
    worker.flush()

    assert newest(kafka)[b"test"].state.users == 0


def test_to_the_end() -> None:
    """Sum by sum to a decision; the best arm is served and nothing is open any more."""
    kafka, worker = defined()
    for _ in range(200):
        if not answer(kafka):
            break
        worker.run()
    state = newest(kafka)[b"test"].state

    assert state.status in (Status.DECIDED, Status.EXHAUSTED)
    assert state.serve == 0
    assert state.open == ()


def test_one_record_a_chunk() -> None:
    """All sums of a chunk make one assignment an experiment: the newest."""
    kafka, worker = defined(order="interleaved")
    count = answer(kafka)

    outputs = worker.run()

    assert count == 3
    assert [(o.topic, o.key) for o in outputs] == [("assignments", b"test")]
    assert newest(kafka)[b"test"].folded == 2


def test_sum_is_folded_once() -> None:
    """The same sum again, under a new offset or after a restart, changes nothing."""
    kafka, worker = defined(order="interleaved")
    batch = newest(kafka)[b"test"].terms(newest(kafka)[b"test"].state.open[0])
    add_sum(kafka, batch)
    worker.run()
    before = newest(kafka)[b"test"]
    add_sum(kafka, batch)

    assert worker.run() == []
    again = Worker(kafka)
    assert again.position == 1
    again.position = 0
    assert again.run() == []
    assert newest(kafka)[b"test"] == before


def test_sum_that_is_not_open() -> None:
    """Sums of unknown experiments, other numbers, other terms or other keys are skipped."""
    kafka, worker = defined()
    assignment = newest(kafka)[b"test"]
    batch = assignment.terms(assignment.state.open[0])
    add_sum(kafka, replace(batch, experiment="nobody"))
    add_sum(kafka, replace(batch, sequence=7))
    add_sum(kafka, replace(batch, arm="arm-2"))
    add_sum(kafka, replace(batch, attribution_ms=5))
    add_sum(kafka, batch, key=b"other")

    assert worker.run() == []
    assert worker.state.refused == 0
    assert newest(kafka)[b"test"] == assignment


def raw(value: Any) -> bytes:
    return orjson.dumps({"version": 1, "stopped": False, "definition": value})


def changed(section: str, key: str, value: Any) -> bytes:
    definition = orjson.loads(dump_experiment(named()))
    (definition[section] if section else definition)[key] = value
    return raw(definition)


INVALID: dict[str, bytes | None] = {
    "tombstone": None,
    "empty": b"",
    "text": b"not json",
    "list": b"[]",
    "version": b'{"version":2,"definition":{},"stopped":false}',
    "stopped": b'{"version":1,"definition":{},"stopped":0}',
    "no definition": b'{"version":1,"stopped":false}',
    "null": raw(None),
    "another name": raw(orjson.loads(dump_experiment(named("other")))),
    "unknown field": changed("", "color", "red"),
    "one arm": changed("", "arms", ["a"]),
    "epsilon": changed("privacy", "epsilon", "-1"),
    "nan": changed("privacy", "delta", "NaN"),
    "not utf-8": b"\xff",
    "very deep": b"[" * 50_000,
}
# Refused by the core with an error that is not InvalidInput.
UNBUILDABLE: dict[str, bytes] = {
    "deep": raw(0).replace(b":0", b":" + b"[" * 300 + b"]" * 300, 1),
    "tiny delta": changed("privacy", "delta", "1e-400"),
    "tinier delta": changed("privacy", "delta", "1e-320"),
}


@pytest.mark.parametrize("value", INVALID.values(), ids=INVALID)
def test_invalid_definition(value: bytes | None, caplog: pytest.LogCaptureFixture) -> None:
    """Refused, counted, named in the log once; the other experiments go on."""
    kafka, worker = defined()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            kafka.append("experiments", b"bad", value)
            worker.tail()
    answer(kafka)

    assert len(worker.run()) == 1
    assert worker.state.refused == 3
    assert len(caplog.records) == 1


@pytest.mark.parametrize("value", UNBUILDABLE.values(), ids=UNBUILDABLE)
def test_unbuildable_definition(value: bytes) -> None:
    """A definition that reads well but cannot be run is refused too: it must not end the stage."""
    kafka, worker = defined()
    kafka.append("experiments", b"test", value)
    kafka.append("experiments", b"bad", value.replace(b'"name":"test"', b'"name":"bad"'))
    worker.tail()
    answer(kafka)

    assert len(worker.run()) == 1
    assert worker.state.refused == 2


def test_giant_number_is_not_spelled_out() -> None:
    """An epsilon of 100 000 digits is refused: every record of it would carry them all."""
    kafka = Kafka()
    kafka.append("experiments", b"test", changed("privacy", "epsilon", "1e99999"))
    worker = Worker(kafka)
    worker.run()

    assert worker.state.refused == 1


def test_assignment_fits_into_a_record() -> None:
    """The largest experiment that is accepted makes assignments that Kafka takes (1 MB)."""
    arms = tuple(f"{'𝔸' * 96}{i:04}" for i in range(1000))
    fat = replace(named(order="interleaved"), arms=arms, horizon=1_000_000)
    kafka = Kafka()
    define(kafka, fat)
    worker = Worker(kafka)
    worker.run()

    assert worker.state.refused or len(kafka.records("assignments")[0].value or b"") < 1 << 20


INVALID_SUMS = [None, b"", b"?", b"[]", b'{"version":1}', b"[" * 5_000]


def test_invalid_sums(caplog: pytest.LogCaptureFixture) -> None:
    """Counted and named, each once; the next good sum is folded."""
    kafka, worker = defined()
    with caplog.at_level(logging.WARNING):
        for value in INVALID_SUMS:
            kafka.append("sums", b"test", value)
        answer(kafka)
        outputs = worker.run()

    assert len(outputs) == 1
    assert worker.state.refused == len(INVALID_SUMS)
    assert len(caplog.records) == len(INVALID_SUMS)


def test_sum_with_a_forged_total() -> None:
    """A total that its reports cannot hold is refused; a stated estimate is not believed."""
    kafka, worker = defined()
    assignment = newest(kafka)[b"test"]
    batch = assignment.terms(assignment.state.open[0])
    add_sum(kafka, batch)
    good = orjson.loads(kafka.topics["sums"].pop()[0].value or b"")
    for change in ({"total": -1}, {"total": 10**12}, {"total": 1.5}, {"batch": "1.x"}):
        kafka.append("sums", b"test", orjson.dumps({**good, **change}))
    kafka.append("sums", b"test", orjson.dumps({**good, "estimate": 1e9}))
    worker.run()

    assert worker.state.refused == 4
    arm = newest(kafka)[b"test"].state.arms[0]
    assert 0 <= arm.total <= arm.users


def test_unreadable_own_assignment() -> None:
    """An experiment whose newest assignment cannot be read is not begun anew from batch 1.

    The shuffle stage would refuse all of its old batch numbers, and what was learned is gone.
    """
    kafka, worker = defined()
    define(kafka, named("other"))
    worker.run()
    for name in ("test", "other"):
        answer(kafka, name)
        worker.run()
    sequence = newest(kafka)[b"test"].state.sequence
    kafka.append("assignments", b"test", b"not json")

    Worker(kafka).run()

    last = kafka.records("assignments")[-1].value
    assert last == b"not json" or decode_assignment(last).state.sequence >= sequence


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["sum", "sum", "sum", "again", "define", "redefine", "stop", "crash"]),
            st.integers(0, 2),
            st.floats(0, 1),
        ),
        max_size=40,
    )
)
def test_restart_changes_nothing(steps: list[tuple[str, int, float]]) -> None:
    """Crashes at any point, with transactions lost or aborted: the same assignments in the end."""
    finals = []
    for crashes in (False, True):
        kafka = Kafka()
        orders = ("sequential", "interleaved", "sequential")
        definitions = [named(f"e{i}", order=order) for i, order in enumerate(orders)]
        worker = Worker(kafka)
        for kind, which, value in steps:
            key = f"e{which}".encode()
            state = newest(kafka).get(key)
            if kind == "define":
                define(kafka, definitions[which])
            elif kind == "redefine":
                define(kafka, replace(definitions[which], attribution_s=Decimal(9)))
            elif kind == "stop":
                define(kafka, definitions[which], stopped=True)
            elif kind == "sum" and state is not None and state.state.open:
                add_sum(kafka, state.terms(state.state.open[0]), value)
            elif kind == "again" and kafka.records("sums"):
                old = kafka.records("sums")[0]
                kafka.append("sums", old.key, old.value)
            elif kind == "crash" and crashes:
                worker.tail()
                worker.feed()
                worker.flush(committed=False)
                kafka.compact("assignments")
                kafka.compact("experiments")
                worker = Worker(kafka)
            worker.run()
        live = dict(worker.state._assignments)
        assert Worker(kafka).state._assignments == live
        assert newest(kafka) == live
        finals.append(live)

    assert finals[0] == finals[1]


def test_hundred_experiments() -> None:
    """A partition holds many experiments; each sum touches its own, in any order."""
    kafka = Kafka()
    for i in range(100):
        define(kafka, named(f"e{i}"))
    worker = Worker(kafka)
    assert len(worker.run()) == 100
    for _ in range(2):
        for i in reversed(range(100)):
            answer(kafka, f"e{i}", (0.5 + i / 250, 0.5, 0.5))
        assert len(worker.run()) == 100
    again = Worker(kafka)

    assert again.run() == []
    assert again.position == 200
    assert {a.state.users for a in newest(kafka).values()} == {
        sum(arm.users for arm in newest(kafka)[b"e0"].state.arms)
    }


def test_no_restart_offset() -> None:
    """The position stands in the assignments: nothing is committed to the group."""
    assert not isinstance(EliminationPartition(), Restartable)


def test_null_keys() -> None:
    """Records without a key are refused or skipped."""
    kafka, worker = defined()
    assignment = newest(kafka)[b"test"]
    add_sum(kafka, assignment.terms(assignment.state.open[0]))
    value = kafka.topics["sums"].pop()[0].value
    worker.state.feed([Record(5, None, value)], refreshed=False)
    worker.state.control([Record(5, None, Definition(named("x")).encode())])

    assert worker.state.refused == 1
    assert worker.flush() == []
