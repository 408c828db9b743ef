"""Random lives of the shuffle stage against a naive model: crashes, lost commits, late news.

The model is the log itself, read by `fakes.audit`, which shares no code with the stage: one value
a batch among committed and aborted sums, every value what the reports say, and nothing lost.
"""

from typing import Any

import orjson
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stream_app.core.terms import Terms
from stream_app.shuffler.released import SAVED
from stream_app.wire.report import encode_report
from tests.support.partition_log import (
    Kafka,
    Worker,
    audit,
    offer,
    report,
    report_id,
    terms,
    valid_reports,
)

pytestmark = pytest.mark.usefixtures("early_arrays")

EXPERIMENTS = ("one", "two")
ARMS = {"one": 1, "two": 3}  # sequential; interleaved


def batch(experiment: str, sequence: int) -> Terms:
    """The batch that the honest agent opens under a number: known before it is published."""
    return terms(sequence, 2 + sequence % 5, experiment, arm=f"arm-{sequence % 5}")


class Life(RuleBasedStateMachine):
    """Clients, an honest agent, one worker at a time, and a log."""

    def __init__(self) -> None:
        super().__init__()
        self.kafka = Kafka()
        self.open: dict[str, list[int]] = {name: [] for name in EXPERIMENTS}
        self.highest = dict.fromkeys(EXPERIMENTS, 0)
        self.known_at: dict[str, int] = {}  # batch id -> end of `reports` when it was published
        self.listed: dict[str, Terms] = {}
        self.next_id = 0
        self.worker: Worker
        self.last_restart_offset = 0
        self.largest = 9

    @initialize(max_reread=st.integers(0, 12))
    def begin(self, max_reread: int) -> None:
        self.max_reread = max_reread
        self.worker = Worker(self.kafka, max_reread=max_reread)
        for name in EXPERIMENTS:
            self.decide(name)

    # -- clients ---------------------------------------------------------------------------------

    def target(self, name: str, which: int) -> Terms:
        """Mostly an open batch; else one that is over, or one that is not published yet."""
        if which < 6 and self.open[name]:
            return batch(name, self.open[name][which % len(self.open[name])])
        return batch(name, max(1, self.highest[name] + (-1, 1, 2)[which % 3]))

    @rule(
        name=st.sampled_from(EXPERIMENTS),
        which=st.integers(0, 8),
        ones=st.integers(0, 53),
        count=st.integers(1, 5),
        back=st.sampled_from([0, 0, 0, 1, 2, 5]),
    )
    def send(self, name: str, which: int, ones: int, count: int, back: int) -> None:
        """Reports, some with an id that was used before (with other ones, as a cheat would)."""
        self.next_id = max(0, self.next_id - back)
        for number in range(count):
            self.next_id += 1
            report(self.kafka, self.target(name, which), self.next_id, (ones + number) % 54)

    @rule(name=st.sampled_from(EXPERIMENTS), count=st.integers(2, 4), most=st.integers(1, 9))
    def race(self, name: str, count: int, most: int) -> None:
        """Clients see an assignment before the worker does."""
        self.decide(name)
        self.send(name, 0, 5, count, 0)
        self.worker.feed(most)
        self.worker.flush()

    @rule(
        name=st.sampled_from(EXPERIMENTS),
        kind=st.sampled_from(["range", "negative", "key", "null key", "junk", "empty", "unknown"]),
    )
    def send_junk(self, name: str, kind: str) -> None:
        target = batch(name, max(1, self.highest[name]))
        key: bytes | None = name.encode()
        self.next_id += 1
        ones = {"range": target.mechanism.max_ones + 1, "negative": -1}.get(kind, 1)
        batch_id = "99.unknown" if kind == "unknown" else target.batch_id
        value: bytes | None = encode_report(batch_id, report_id(self.next_id), ones)
        if kind == "key":
            key = b"other"
        elif kind == "null key":
            key = None
        elif kind == "junk":
            value = b'{"batch":'
        elif kind == "empty":
            value = None
        self.kafka.append("reports", key, value)

    @rule(name=st.sampled_from(EXPERIMENTS), count=st.integers(1, 2))
    def too_early(self, name: str, count: int) -> None:
        """Reports that the worker refuses, since nobody has published their batch yet."""
        for _ in range(count):
            self.next_id += 1
            report(self.kafka, batch(name, self.highest[name] + 1), self.next_id, 50)
        self.worker.feed()
        self.worker.flush()
        self.decide(name)

    # -- the agent -------------------------------------------------------------------------------

    @rule(name=st.sampled_from(EXPERIMENTS))
    def decide(self, name: str) -> None:
        """Fold the committed sums; open the next phase when all of its batches are in."""
        committed = {r.value for r in self.kafka.records("sums")}
        done = {
            sequence
            for sequence in self.open[name]
            if any(batch(name, sequence).batch_id.encode() in (v or b"") for v in committed)
        }
        left = [sequence for sequence in self.open[name] if sequence not in done]
        if not left:
            first = self.highest[name] + 1
            left = list(range(first, first + ARMS[name]))
        self.publish(name, left)

    @rule(name=st.sampled_from(EXPERIMENTS), drop=st.integers(0, 2))
    def drop_one(self, name: str, drop: int) -> None:
        """A batch is given up, as when an experiment is stopped."""
        if self.open[name]:
            gone = self.open[name][drop % len(self.open[name])]
            self.publish(name, [s for s in self.open[name] if s != gone])

    @rule(name=st.sampled_from(EXPERIMENTS))
    def repeat(self, name: str) -> None:
        """The same assignment once more, as after a restart of the agent."""
        if self.highest[name]:
            self.publish(name, self.open[name])

    @rule(name=st.sampled_from(EXPERIMENTS))
    def aborted_assignment(self, name: str) -> None:
        """A transaction of the agent that did not end well: nobody may act on it."""
        value = batch(name, self.highest[name] + 1)
        offered = Kafka()
        offer(offered, value, experiment=name)
        self.kafka.append(
            "assignments", name.encode(), offered.records("assignments")[0].value, committed=False
        )

    @rule(name=st.sampled_from(EXPERIMENTS), size=st.booleans())
    def tampered(self, name: str, size: bool) -> None:
        """The agent lists a batch with terms that do not hash to its id, beside the honest ones."""
        target = batch(name, self.highest[name] + 1)
        raw = target.as_json()
        raw |= {"batch_size": 1} if size else {"epsilon": "1.9"}
        listed: list[Any] = [batch(name, s) for s in self.open[name]]
        offer(self.kafka, *listed, (target.batch_id, raw), experiment=name)

    def publish(self, name: str, sequences: list[int]) -> None:
        self.open[name] = sequences
        self.highest[name] = max([self.highest[name], *sequences])
        listed = [batch(name, sequence) for sequence in sequences]
        offer(self.kafka, *listed, experiment=name)
        for entry in listed:
            self.known_at.setdefault(entry.batch_id, self.kafka.end("reports"))

    # -- the worker ------------------------------------------------------------------------------

    @rule(most=st.integers(1, 9))
    def work(self, most: int) -> None:
        self.worker.feed(most)
        self.worker.flush()

    @rule()
    def tail(self) -> None:
        self.worker.tail()
        self.worker.flush()

    @rule()
    def tick(self) -> None:
        """Releases are saved, if there are enough of them."""
        self.worker.state.tick(0)
        self.worker.flush()

    @rule()
    def commit_restart_offset(self) -> None:
        """Else the commit is lost, or not due yet."""
        self.worker.commit_restart_offset()

    @rule(
        most=st.integers(0, 9),
        tail=st.booleans(),
        written=st.sampled_from([None, None, 0, 1, 2]),
        recoveries=st.sampled_from([1, 1, 2, 3]),
        flushed=st.booleans(),
        ticked=st.booleans(),
    )
    def crash(
        self,
        most: int,
        tail: bool,
        written: int | None,
        recoveries: int,
        flushed: bool,
        ticked: bool,
    ) -> None:
        """At any point: before the transaction, in it with some records written, or after it."""
        self.largest = max(self.largest, most)
        if most:
            self.worker.feed(most)
        if tail:
            self.worker.tail()
        if ticked:
            self.worker.state.tick(0)
        if flushed:
            self.worker.flush()
        else:
            self.worker.flush(committed=False, most=written)
        for again in range(recoveries):
            self.worker = Worker(self.kafka, max_reread=self.max_reread)
            if again < recoveries - 1:
                self.worker.flush(committed=False, most=written)
        self.worker.flush()
        self.last_restart_offset = 0

    @rule(
        name=st.sampled_from(EXPERIMENTS),
        written=st.sampled_from([None, 1]),
        more=st.integers(0, 3),
        ticked=st.booleans(),
    )
    def crash_in_a_release(self, name: str, written: int | None, more: int, ticked: bool) -> None:
        """The sum is in the log, its transaction was aborted, and more reports come."""
        for sequence in self.open[name]:
            for _ in range(batch(name, sequence).mechanism.promise.batch_size):
                self.next_id += 1
                report(self.kafka, batch(name, sequence), self.next_id, self.next_id % 50)
        self.crash(1_000, True, written, 1, False, ticked)
        self.send(name, 0, 9, more, 0)

    @rule(topic=st.sampled_from(["assignments", "windows"]))
    def compact(self, topic: str) -> None:
        self.kafka.compact(topic)

    @precondition(lambda self: self.kafka.restart_offset)
    @rule()
    def delete_records(self) -> None:
        """Reports below the committed offset are gone."""
        self.kafka.start["reports"] = self.kafka.restart_offset or 0

    # -- what must hold --------------------------------------------------------------------------

    @invariant()
    def sums_are_right(self) -> None:
        audit(self.kafka)

    @invariant()
    def mark_is_a_lower_bound(self) -> None:
        """It never falls, and nothing that only memory holds is below it."""
        offset = self.worker.state.restart_offset()
        assert offset >= self.last_restart_offset
        self.last_restart_offset = offset
        for window in self.worker.state.windows.values():
            if window.unsaved_first is not None:
                assert offset <= window.unsaved_first.offset

    @invariant()
    def reread_is_bounded(self) -> None:
        """A restart from the offset reads at most the setting and one chunk again."""
        behind = self.worker.position - self.worker.state.restart_offset()
        assert behind <= self.max_reread + self.largest

    def teardown(self) -> None:
        """Once all is read, every batch that is open and has enough reports has been released."""
        if not hasattr(self, "worker"):
            return
        self.worker.run()
        self.worker.run()
        audit(self.kafka)
        listed = {batch(name, s).batch_id.encode() for name in EXPERIMENTS for s in self.open[name]}
        assert set(self.worker.state.windows) <= listed
        saved = {r.key: r.value for r in self.kafka.records("windows") if r.key != SAVED}
        kept = {
            orjson.loads(value)["batch"].encode() for value in saved.values() if value is not None
        }
        assert kept <= set(self.worker.state.windows)
        committed = {orjson.loads(r.value or b"")["batch"] for r in self.kafka.records("sums")}
        for name in EXPERIMENTS:
            for sequence in self.open[name]:
                entry = batch(name, sequence)
                if entry.batch_id not in committed:
                    since = self.known_at[entry.batch_id]
                    found = valid_reports(self.kafka, entry.as_json(), entry.batch_id, since)
                    assert len(found) < entry.mechanism.promise.batch_size


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
