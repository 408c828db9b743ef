"""The stages' instruments: counted once, never per report, whatever partitions come and go."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from stream_app.core.window import Refusal
from stream_app.metrics.instruments import Assigned, Metrics, Released


@dataclass
class Partition:
    """A partition's numbers."""

    accepted: int = 0
    late: int = 0
    refused: int = 0
    level: Mapping[str, int] = field(
        default_factory=lambda: {"windows": 2, "filled": 30, "wanted": 80}
    )

    def counts(self) -> Mapping[str, int]:
        return {"accepted": self.accepted, "late": self.late, "refused": self.refused}

    def levels(self) -> Mapping[str, int]:
        return self.level


def scraped(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """Samples by name and label values."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(metrics.expose().decode())
        for sample in family.samples
        if sample.name.startswith("shufflebandit_")
    }


def test_counts_survive_a_partition() -> None:
    """What a partition counted stays when it closes; a new one begins at 0 and adds to it."""
    metrics = Metrics()
    stage = metrics.stage("shuffle")
    first = Partition(accepted=10, late=2)
    second = Partition()
    stage.opened(0, first)
    scraped(metrics)
    first.accepted = 15
    stage.closed(0)
    stage.opened(0, second)
    second.accepted = 4
    second.refused = 1

    now = scraped(metrics)

    assert now["shufflebandit_reports_total", "accepted", ""] == 19
    assert now["shufflebandit_reports_total", "refused", "late"] == 2
    assert now["shufflebandit_refusals_total", "shuffle"] == 1
    assert now == scraped(metrics)


def test_levels_are_of_the_open_partitions() -> None:
    """Windows and their fill are summed over the open partitions, and gone with them."""
    metrics = Metrics()
    stage = metrics.stage("shuffle")
    stage.opened(0, Partition())
    stage.opened(3, Partition())
    stage.lag(3, 7)

    now = scraped(metrics)

    assert (4, 60, 160) == tuple(
        now[f"shufflebandit_windows_{name}",]
        for name in ("open", "filled_reports", "wanted_reports")
    )
    assert now["shufflebandit_partitions_open", "shuffle"] == 2
    assert now["shufflebandit_consumer_lag_records", "3", "shuffle"] == 7

    stage.closed(0)
    stage.closed(3)

    now = scraped(metrics)
    assert now["shufflebandit_windows_open",] == 0
    assert ("shufflebandit_consumer_lag_records", "3", "shuffle") not in now


def test_times() -> None:
    """Seconds between Kafka timestamps, never negative; an unknown opening is left out."""
    metrics = Metrics()
    shuffle = metrics.stage("shuffle")
    agent = metrics.stage("agent")
    shuffle.wrote(Released(1_000, 2_000, 5_000), "sums", 100, 5_500)
    shuffle.wrote(Released(None, 2_000, 9_000), "sums", 100, 8_000)
    shuffle.wrote(None, "windows", 4_000, 9_000)
    shuffle.wrote(None, "windows", 0, 9_000)
    agent.wrote(Assigned((5_500, 8_000)), "assignments", 300, 8_250)

    now = scraped(metrics)

    expected = {
        "batch_open_seconds": (1, 4.5),
        "batch_collection_seconds": (2, 10),
        "release_delay_seconds": (2, 0.5),
        "assignment_delay_seconds": (2, 3),
        "checkpoint_bytes": (1, 4_000),
    }
    for name, (count, total) in expected.items():
        assert count == now[f"shufflebandit_{name}_count",]
        assert total == now[f"shufflebandit_{name}_sum",]
    assert now["shufflebandit_batches_released_total",] == 2
    assert now["shufflebandit_assignments_total",] == 1


def test_everything_is_there_from_the_start() -> None:
    """Counters are 0 before the first event, so that the first one is an increase."""
    metrics = Metrics()
    stage = metrics.stage("shuffle")
    before = scraped(metrics)
    stage.restarted(fenced=True)
    stage.rebalanced()

    now = scraped(metrics)

    for name in ("session_restarts", "fencings", "rebalances"):
        assert before[f"shufflebandit_{name}_total", "shuffle"] == 0
        assert now[f"shufflebandit_{name}_total", "shuffle"] == 1
    for reason in Refusal:
        assert before["shufflebandit_reports_total", "refused", str(reason)] == 0
    assert metrics.stage("shuffle") is stage
