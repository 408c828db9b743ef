"""The instruments of a process, and what a stage tells them.

The stages count in plain attributes; these are read when somebody scrapes and when a partition
closes, never per report. Times come from the records' Kafka timestamps, so that they can be
recomputed from the topics. Counters begin anew with the process; reports that are read again after
a restart are counted again.
"""

import contextlib
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Protocol, runtime_checkable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from stream_app.core.window import Refusal

# `_created` would be one more series for each counter, and tells nothing here.
disable_created_metrics()  # type: ignore[no-untyped-call]

# Labels: what became of a report, or of terms and assignments.
ACCEPTED = "accepted"
REFUSED = "refused"
# What the service itself takes; then how long users need to fill a batch: up to a week.
_FAST_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SLOW_S = (0.1, 0.3, 1, 3, 10, 30, 60, 180, 600, 1800, 3600, 10_800, 43_200, 86_400, 259_200, 604_800)  # fmt: skip  # noqa: E501
_BYTES = (1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20)


@dataclass(frozen=True, slots=True)
class Released:
    """When a released batch was opened (None: before this worker had it) and reported."""

    opened_ms: int | None
    first_ms: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class Assigned:
    """When the sums were released that led to an assignment."""

    released_ms: tuple[int, ...]


Times = Released | Assigned


class Counted(Protocol):
    """A partition of a stage, as far as its numbers go."""

    def counts(self) -> Mapping[str, int]:
        """Totals since it was made: `accepted`, a Refusal, or `refused` for what is no report."""


@runtime_checkable
class Levelled(Protocol):
    """A partition that also has something that rises and falls."""

    def levels(self) -> Mapping[str, int]:
        """How things stand now: `windows`, `filled` and `wanted` reports."""


class ProcessNumbers(Collector):
    """CPU, memory and start of the process; not its open files, which tell who leaves a page."""

    def __init__(self) -> None:
        self._process = ProcessCollector(registry=None)

    def collect(self) -> Iterable[Metric]:
        """All families of one scrape."""
        return [one for one in self._process.collect() if one.name != "process_open_fds"]


class Metrics:
    """All instruments of one process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        registry.register(ProcessNumbers())
        build = Gauge(
            "shufflebandit_build_info", "1; the labels tell the version.",
            ["version", "python"], registry=registry,
        )  # fmt: skip
        build.labels(version("shufflebandit"), platform.python_version()).set(1)
        self.ready = Gauge(
            "shufflebandit_ready", "Whether this worker does its work (as /readyz).",
            registry=registry,
        )  # fmt: skip
        self._stages: list[StageMetrics] = []

    def stage(self, name: str) -> "StageMetrics":
        """The instruments of the stage that this process runs under a name."""
        for known in self._stages:
            if known.name == name:
                return known
        self._stages.append(StageMetrics(self._shared(), name, self.registry))
        return self._stages[-1]

    def _shared(self) -> "_Shared":
        return self._stages[0].shared if self._stages else _Shared(self.registry)

    def expose(self) -> bytes:
        """Everything, in Prometheus' text format."""
        for stage in self._stages:
            stage.refresh()
        return generate_latest(self.registry)


class _Shared:
    """Instruments that both stages have, told apart by `stage`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str) -> Counter:
            return Counter(f"shufflebandit_{name}", text, ["stage"], registry=registry)

        self.restarts = counter(
            "session_restarts_total", "Times that a stage started again from the log."
        )
        self.fencings = counter(
            "fencings_total", "Times that another worker had taken over a partition."
        )
        self.rebalances = counter("rebalances_total", "Times that partitions were given out anew.")
        self.refusals = counter(
            "refusals_total",
            "Terms and assignments (stage shuffle), sums and definitions (agent) not accepted.",
        )
        self.partitions = Gauge(
            "shufflebandit_partitions_open", "Partitions that this worker has taken over.",
            ["stage"], registry=registry,
        )  # fmt: skip
        self.lag = Gauge(
            "shufflebandit_consumer_lag_records", "Records of the input not yet processed.",
            ["stage", "partition"], registry=registry,
        )  # fmt: skip
        self.transaction = Histogram(
            "shufflebandit_transaction_seconds", "From a transaction's begin to its commit.",
            ["stage"], buckets=_FAST_S, registry=registry,
        )  # fmt: skip


class StageMetrics:
    """What one stage tells; called per chunk, transaction or rebalance, never per report."""

    def __init__(self, shared: _Shared, name: str, registry: CollectorRegistry) -> None:
        self.shared = shared
        self.name = name
        self._restarts = shared.restarts.labels(name)
        self._fencings = shared.fencings.labels(name)
        self._rebalances = shared.rebalances.labels(name)
        self._partitions = shared.partitions.labels(name)
        self._transaction = shared.transaction.labels(name)
        self._counters = {REFUSED: shared.refusals.labels(name)}
        self._own = _Shuffle(registry) if name == "shuffle" else _Agent(registry)
        self._counters |= self._own.counters
        self._open: dict[int, Counted] = {}
        self._seen: dict[int, Mapping[str, int]] = {}

    def opened(self, number: int, partition: Counted) -> None:
        """A partition was taken over."""
        self._open[number] = partition
        self._seen[number] = {}

    def closed(self, number: int) -> None:
        """A partition was given up; what it counted stays."""
        if number in self._open:
            self._count(number, self._open.pop(number))
            del self._seen[number]
            with contextlib.suppress(KeyError):  # it was never measured
                self.shared.lag.remove(self.name, str(number))

    def refresh(self) -> None:
        """Read what the open partitions have counted."""
        for number, partition in self._open.items():
            self._count(number, partition)
        self._partitions.set(len(self._open))
        self._own.level(
            [part.levels() for part in self._open.values() if isinstance(part, Levelled)]
        )

    def _count(self, number: int, partition: Counted) -> None:
        counts = partition.counts()
        before = self._seen[number]
        for name, count in counts.items():
            self._counters[name].inc(count - before.get(name, 0))
        self._seen[number] = counts

    def lag(self, number: int, records: int) -> None:
        """How far the input is ahead of a partition."""
        self.shared.lag.labels(self.name, str(number)).set(records)

    def wrote(self, times: Times | None, topic: str, size: int, at_ms: int) -> None:
        """A record was committed, with its Kafka timestamp."""
        self._own.wrote(times, topic, size, at_ms)

    def committed(self, seconds: float) -> None:
        """A transaction went through."""
        self._transaction.observe(seconds)

    def deleted(self, *, failed: bool) -> None:
        """Input records that no restart needs were deleted, or could not be."""
        self._own.deleted(failed=failed)

    def rebalanced(self) -> None:
        """The group gave out partitions."""
        self._rebalances.inc()

    def restarted(self, *, fenced: bool) -> None:
        """The stage begins again from the log."""
        self._restarts.inc()
        if fenced:
            self._fencings.inc()


class _Shuffle:
    """The shuffle stage's own."""

    def __init__(self, registry: CollectorRegistry) -> None:
        reports = Counter(
            "shufflebandit_reports_total", "Reports read, by what became of them.",
            ["outcome", "reason"], registry=registry,
        )  # fmt: skip
        self.counters = {ACCEPTED: reports.labels(ACCEPTED, "")}
        self.counters |= {str(reason): reports.labels(REFUSED, reason) for reason in Refusal}
        self._released = Counter(
            "shufflebandit_batches_released_total", "Sums released.", registry=registry
        )
        self._levels = {
            name: Gauge(f"shufflebandit_{metric}", text, registry=registry)
            for name, metric, text in (
                ("windows", "windows_open", "Batches that are being collected."),
                ("filled", "windows_filled_reports", "Reports in the open windows."),
                ("wanted", "windows_wanted_reports", "The open windows' sizes together."),
            )
        }
        self._collecting, self._collection, self._delay = (
            Histogram(f"shufflebandit_{name}", text, buckets=buckets, registry=registry)
            for name, text, buckets in (
                ("batch_open_seconds", "From a batch's first assignment to its sum.", _SLOW_S),
                ("batch_collection_seconds", "From a batch's first report to its last.", _SLOW_S),
                ("release_delay_seconds", "From a batch's last report to its sum.", _FAST_S),
            )
        )
        self._checkpoint = Histogram(
            "shufflebandit_checkpoint_bytes",
            "Sizes of the checkpoints written to `windows`; they depend on how many reports they "
            "hold, not on what these say.",
            buckets=_BYTES, registry=registry,
        )  # fmt: skip
        deletions = Counter(
            "shufflebandit_report_deletions_total",
            "Requests to delete the reports that no open batch needs.",
            ["outcome"], registry=registry,
        )  # fmt: skip
        self._deletions = {failed: deletions.labels("failed" if failed else "done")
                           for failed in (False, True)}  # fmt: skip

    def level(self, levels: list[Mapping[str, int]]) -> None:
        for name, gauge in self._levels.items():
            gauge.set(sum(level[name] for level in levels))

    def deleted(self, *, failed: bool) -> None:
        self._deletions[failed].inc()

    def wrote(self, times: Times | None, topic: str, size: int, at_ms: int) -> None:
        if topic == "windows" and size:
            self._checkpoint.observe(size)
        if topic == "sums":
            self._released.inc()
        if isinstance(times, Released):
            self._collection.observe(_seconds(times.first_ms, times.last_ms))
            self._delay.observe(_seconds(times.last_ms, at_ms))
            if times.opened_ms is not None:
                self._collecting.observe(_seconds(times.opened_ms, at_ms))


class _Agent:
    """The elimination stage's own."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.counters: dict[str, Counter] = {}
        self._assignments = Counter(
            "shufflebandit_assignments_total", "Assignments published.", registry=registry
        )
        self._reaction = Histogram(
            "shufflebandit_assignment_delay_seconds",
            "From a sum's release to the assignment that it led to.",
            buckets=_FAST_S, registry=registry,
        )  # fmt: skip

    def level(self, levels: list[Mapping[str, int]]) -> None:
        """It has none."""

    def deleted(self, *, failed: bool) -> None:
        """It deletes nothing."""

    def wrote(self, times: Times | None, _topic: str, _size: int, at_ms: int) -> None:
        self._assignments.inc()
        if isinstance(times, Assigned):
            for released_ms in times.released_ms:
                self._reaction.observe(_seconds(released_ms, at_ms))


def _seconds(start_ms: int, end_ms: int) -> float:
    """Clocks differ between machines, and a client's may be wrong: never below 0."""
    return max(0, end_ms - start_ms) / 1000
