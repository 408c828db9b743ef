"""One partition of every topic in memory, and a worker that drives a stage as the runner does.

Nothing here is under test. A transaction's records are visible uncommitted as soon as they are
written, and committed only if it was committed: as in Kafka.
"""

import hashlib
import json
from collections import Counter
from collections.abc import AsyncGenerator, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import groupby
from typing import Any

import numpy as np
import orjson

from stream_app.core.mechanisms import calibrate
from stream_app.core.promise import Promise
from stream_app.core.terms import Limits, Terms
from stream_app.core.window import Refusal
from stream_app.kafka.record_batches import RecordBlock
from stream_app.runtime.stage import Output
from stream_app.shuffler.partition import ShufflePartition
from stream_app.wire.report import REPORT_BYTES, encode_report


@dataclass(frozen=True, slots=True)
class Record:
    """What the stages see of aiokafka's ConsumerRecord."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int = 0


@dataclass
class Kafka:
    """The log: per topic, records and whether their transaction was committed."""

    topics: dict[str, list[tuple[Record, bool]]] = field(default_factory=dict)
    start: dict[str, int] = field(default_factory=dict)  # deleted below
    marked: dict[str, int] = field(default_factory=dict)  # the end, where a marker is the last
    restart_offset: int | None = None

    def append(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        *,
        committed: bool = True,
        timestamp: int | None = None,
    ) -> int:
        records = self.topics.setdefault(topic, [])
        offset = self.end(topic)
        time_ms = 1_000 + offset if timestamp is None else timestamp
        records.append((Record(offset, key, value, time_ms), committed))
        return offset

    def write(self, outputs: Iterable[Output], *, committed: bool = True) -> dict[str, int]:
        """Returns the offset after the last record of each topic."""
        written = {
            output.topic: self.append(output.topic, output.key, output.value, committed=committed)
            for output in outputs
        }
        self.marked.update((topic, last + 2) for topic, last in written.items())
        return {topic: last + 1 for topic, last in written.items()}

    def records(self, topic: str, *, committed: bool = True, start: int = 0) -> list[Record]:
        start = max(start, self.start.get(topic, 0))
        return [
            record
            for record, kept in self.topics.get(topic, ())
            if record.offset >= start and (kept or not committed)
        ]

    def end(self, topic: str) -> int:
        records = self.topics.get(topic)
        return max(self.marked.get(topic, 0), records[-1][0].offset + 1 if records else 0)

    def compact(self, topic: str) -> None:
        """Keep the newest committed record of each key, and all that is aborted or the last."""
        records = self.topics.get(topic, [])
        newest = {record.key: record.offset for record, kept in records if kept}
        self.topics[topic] = [
            (record, kept)
            for record, kept in records
            if not kept or newest[record.key] == record.offset or record is records[-1][0]
        ]


class MemoryLog:
    """The runner's `Log` over a fake Kafka, in chunks of a few records."""

    def __init__(self, kafka: Kafka, chunk: int = 3) -> None:
        self._kafka = kafka
        self._chunk = chunk
        self.partition = 0
        self.ends: dict[str, int] = {}
        self.given: Counter[str] = Counter()  # records by topic

    async def read(
        self, name: str, *, committed: bool = True, start: int = 0
    ) -> AsyncGenerator[Sequence[Record], None]:
        records = self._kafka.records(name, committed=committed, start=start)
        self.ends[name] = start
        for i in range(0, len(records), self._chunk):
            piece = records[i : i + self._chunk]
            self.ends[name] = piece[-1].offset + 1
            self.given[name] += len(piece)
            yield piece


def blocks(records: Sequence[Record]) -> list[Record | RecordBlock]:
    """What a consumer may make of the same records: all that look like reports in blocks."""
    found: list[Record | RecordBlock] = []
    for (usual, _), run in groupby(
        enumerate(records),
        lambda each: (len(each[1].value or b"") == REPORT_BYTES, each[1].offset - each[0]),
    ):
        some = [record for _, record in run]
        if not usual or any(record.key is None for record in some):
            found += some
            continue
        keys = [record.key or b"" for record in some]
        values = b"".join(record.value or b"" for record in some)
        rows = np.frombuffer(values, np.uint8).reshape(-1, REPORT_BYTES)
        times = np.array([record.timestamp for record in some])
        found.append(RecordBlock(some[0].offset, keys, times, rows))
    return found


def drive(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never really waits; it may give others a turn."""
    try:
        while True:
            assert coroutine.send(None) is None, "it waits for something"
    except StopIteration as stop:
        return stop.value


class Worker:
    """A life of the shuffle stage on one partition: what the runner does, step by step."""

    def __init__(
        self,
        kafka: Kafka,
        limits: Limits | None = None,
        max_reread: int = 1_000_000,
    ) -> None:
        self.kafka = kafka
        self.state = ShufflePartition(limits or Limits(min_batch_size=1), max_reread)
        log = MemoryLog(kafka)
        begin = drive(self.state.recover(log, kafka.restart_offset))  # type: ignore[arg-type]
        self.control_position = log.ends.get("assignments", 0)
        self.position = max(begin, kafka.start.get("reports", 0))
        self.begin = self.position
        self.read = log.given
        self.refreshes = 0

    def recovered(self) -> "Worker":
        self.flush()
        return self

    def tail(self) -> None:
        records = self.kafka.records("assignments", start=self.control_position)
        if records:
            self.state.control(records)
            self.control_position = records[-1].offset + 1

    def feed(self, most: int | None = None) -> None:
        records = self.kafka.records("reports", committed=False, start=self.position)[:most]
        if not records:
            return
        # Whatever they say, they may come by column or one by one.
        given = blocks(records) if self.position % 2 else records
        rest = self.state.feed(given, refreshed=False)
        if rest:
            self.refreshes += 1
            self.tail()
            assert not self.state.feed(rest, refreshed=True)
        self.position = records[-1].offset + 1

    def flush(self, *, committed: bool = True, most: int | None = None) -> list[Output]:
        outputs = self.state.take()
        ends = self.kafka.write(outputs[:most], committed=committed)
        if committed and outputs:
            self.state.wrote(ends)
        return outputs

    def commit_restart_offset(self) -> int:
        self.kafka.restart_offset = self.state.restart_offset()
        return self.kafka.restart_offset

    def run(self, most: int | None = None) -> list[Output]:
        """One round of the runner's loop with all that goes well."""
        self.tail()
        outputs = self.flush()
        self.feed(most)
        outputs += self.flush()
        self.commit_restart_offset()
        return outputs


def terms(
    sequence: int = 1,
    size: int = 3,
    experiment: str = "demo",
    *,
    arm: str = "blue",
    epsilon: str = "0.5",
    delta: str = "0.000001",
    honest: str = "0.9",
    attribution_ms: int = 0,
) -> Terms:
    promise = Promise(Decimal(epsilon), Decimal(delta), size, Decimal(honest))
    return Terms(experiment, sequence, arm, calibrate(promise), attribution_ms)


def assignment(
    *batches: Terms | tuple[str, Any], experiment: str = "demo", state: str = "running"
) -> bytes:
    """The part of an assignment that the shuffle stage reads; raw entries as (id, terms)."""
    listed = [(b.batch_id, b.as_json()) if isinstance(b, Terms) else b for b in batches]
    return orjson.dumps(
        {
            "version": 1,
            "experiment": experiment,
            "state": state,
            "serve": None,
            "open": [{"batch": batch, "terms": raw} for batch, raw in listed],
        }
    )


def offer(kafka: Kafka, *batches: Terms | tuple[str, Any], experiment: str = "demo") -> int:
    return kafka.append(
        "assignments", experiment.encode(), assignment(*batches, experiment=experiment)
    )


def report_id(number: int) -> bytes:
    return hashlib.sha256(b"%d" % number).digest()[:16]


def report(kafka: Kafka, batch: Terms, number: int, ones: int = 20, **options: Any) -> int:
    value = encode_report(batch.batch_id, report_id(number), ones)
    return kafka.append("reports", batch.experiment.encode(), value, **options)


def sums_in(outputs: Iterable[Output]) -> list[dict[str, Any]]:
    return [orjson.loads(o.value or b"") for o in outputs if o.topic == "sums"]


def audit(kafka: Kafka) -> dict[str, dict[str, Any]]:
    """Every sum in the log, aborted ones too: one value a batch, and what the reports say.

    Deliberately naive: json, lists, no class of the code under test.
    """
    values: dict[str, bytes] = {}
    for record in kafka.records("sums", committed=False):
        assert record.value is not None
        batch = json.loads(record.value)["batch"]
        assert values.setdefault(batch, record.value) == record.value, f"two values of {batch}"
        assert record.key == json.loads(record.value)["terms"]["experiment"].encode()
    released = {batch: json.loads(value) for batch, value in values.items()}
    for batch, stated in released.items():
        size = stated["terms"]["batch_size"]
        counted = valid_reports(kafka, stated["terms"], batch, stated["first"]["offset"])[:size]
        assert len(counted) == size
        assert stated["total"] == sum(ones for _, _, ones in counted)
        ids = sorted(bytes.fromhex(identity) for _, identity, _ in counted)
        assert stated["digest"] == hashlib.sha256(b"".join(ids)).hexdigest()
        assert stated["first"]["offset"] == counted[0][0]
        assert stated["last"]["offset"] == counted[-1][0]
    return released


def valid_reports(
    kafka: Kafka, raw_terms: dict[str, Any], batch: str, start: int
) -> list[tuple[int, str, int]]:
    """Offset, id and ones of the valid, distinct reports of a batch at or after an offset."""
    bits = 2 * raw_terms["parameters"]["clip"] + 1
    found: list[tuple[int, str, int]] = []
    for record, _ in kafka.topics.get("reports", ()):
        if record.offset < start or record.key != raw_terms["experiment"].encode():
            continue
        try:
            raw = json.loads(record.value or b"")
            identity = raw["id"]
            ones = raw["ones"]
            if raw["batch"] != batch or type(ones) is not int or len(identity) != 32:
                continue
        except (ValueError, KeyError, TypeError):
            continue
        if 0 <= ones <= bits and identity not in [seen for _, seen, _ in found]:
            found.append((record.offset, identity, ones))
    return found


def by_key(output: Output) -> tuple[str, bytes]:
    return output.topic, output.key


def refusals(worker: Worker) -> dict[str, int]:
    """The reports that were refused, by reason; only what was seen."""
    counts = worker.state.counts()
    return {str(reason): counts[reason] for reason in Refusal if counts[reason]}


def filled(kafka: Kafka, batch: Terms, first: int, count: int | None = None) -> None:
    """As many distinct reports as the batch needs, or `count`."""
    for number in range(first, first + (count or batch.mechanism.promise.batch_size)):
        report(kafka, batch, number, ones=number % 7)
