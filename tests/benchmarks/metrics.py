"""What the metrics cost: the shuffle stage's loop with and without them."""

import time
from collections.abc import Iterator

from stream_app.core.terms import Limits
from stream_app.metrics.instruments import Metrics, StageMetrics
from stream_app.shuffler.partition import ShufflePartition
from stream_app.wire.report import encode_report
from tests.benchmarks.harness import Outcome, compare
from tests.support.partition_log import Record, assignment, report_id, terms

_REPORTS = 100_000
_SIZE = 1_000
_CHUNK = 500  # what one fetch of a partition brings, at least


def outcomes() -> Iterator[Outcome]:
    """All comparisons of this module."""
    openings, chunks = _input()
    metrics = Metrics()
    yield compare(
        "window loop with metrics: 100 000 reports, 100 releases, one scrape",
        "the same without metrics",
        lambda: _cost(openings, chunks, None),
        lambda: _cost(openings, chunks, metrics),
        target=1 / 0.95,
        rounds=21,
    )


def _input() -> tuple[list[Record], list[list[Record]]]:
    """Assignments that open one batch after the other, and the reports that fill them."""
    openings = []
    records = []
    for number in range(_REPORTS // _SIZE):
        batch = terms(number + 1, _SIZE)
        openings.append(Record(number, b"demo", assignment(batch), 1_000))
        for i in range(_SIZE):
            offset = number * _SIZE + i
            value = encode_report(batch.batch_id, report_id(offset), i % 2)
            records.append(Record(offset, b"demo", value, 2_000))
    chunks = [records[i : i + _CHUNK] for i in range(0, len(records), _CHUNK)]
    return openings, chunks


def _cost(openings: list[Record], chunks: list[list[Record]], metrics: Metrics | None) -> float:
    """Processor time: nothing waits here, and other processes do not count."""
    start = time.process_time()
    _drain(openings, chunks, metrics)
    return time.process_time() - start


def _drain(openings: list[Record], chunks: list[list[Record]], metrics: Metrics | None) -> None:
    """The runner's work on one partition, without Kafka."""
    state = ShufflePartition(Limits(), 10 * _REPORTS)
    stage: StageMetrics | None = None
    if metrics is not None:
        stage = metrics.stage("shuffle")
        stage.opened(0, state)
    opened = iter(openings)
    per_batch = _SIZE // _CHUNK
    for number, chunk in enumerate(chunks):
        if number % per_batch == 0:
            state.side([next(opened)])
        assert not state.feed(chunk, refreshed=True)
        for output in state.take():
            if stage is not None:
                stage.wrote(output.times, output.topic, len(output.value or b""), 3_000)
                stage.committed(0.01)
                stage.lag(0, 10)
    if metrics is not None and stage is not None:
        metrics.expose()
        stage.closed(0)
    assert state.counts()["accepted"] == _REPORTS
