"""The rows about the service: at a glance, latency, traffic, health."""

from typing import Any

from grafana_foundation_sdk.models.dashboard import DynamicConfigValue
from kit import RATE, counts, heat, lines, number, quantile, rate


def glance() -> list[Any]:
    """Is it alive, is it deciding."""
    alerts = 'count(ALERTS{alertname=~"Shufflebandit.*",alertstate="firing"}) or vector(0)'
    return [
        number(
            "Workers ready", "sum(shufflebandit_ready) or vector(0)", "Workers that do their work."
        ),
        number("Alerts", alerts, "Firing now; Prometheus has their runbooks.", limit=1),
        number(
            "Running",
            'max(shufflebandit_experiments{state="running"})',
            "Experiments, all of them.",
        ),
        number(
            "Reports/s",
            'sum(rate(shufflebandit_reports_total{outcome="accepted"}[1m]))',
            "Accepted reports per second, last minute.",
        ),
        number(
            "Refused",
            "shufflebandit:reports_refused:ratio5m",
            "Share of the reports that were refused, last 5 minutes.",
            unit="percentunit",
            limit=0.2,
        ),
        number(
            "Records behind",
            "sum(shufflebandit:consumer_lag_records:sum)",
            "Consumer lag.",
            limit=10000,
        ),
    ]


def latency() -> list[Any]:
    """How long a batch takes, and which part of it is the service's."""
    pairs = [
        (quantile(q, metric), f"{name}, {q:.0%}")
        for metric, name in (
            ("release_delay_seconds", "last report to sum"),
            ("assignment_delay_seconds", "sum to next assignment"),
        )
        for q in (0.5, 0.95)
    ]
    users = [
        (quantile(0.5, "batch_open_seconds"), "opened to released, 50%"),
        (quantile(0.95, "batch_open_seconds"), "opened to released, 95%"),
        (quantile(0.5, "batch_collection_seconds"), "first to last report, 50%"),
    ]
    recorded = [
        ("shufflebandit:release_delay_seconds:p95_15m", "last report to sum"),
        ("shufflebandit:assignment_delay_seconds:p95_15m", "sum to next assignment"),
    ]
    return [
        heat(
            "Opened to released",
            "batch_open_seconds",
            "Mostly the users' time: how fast they report.",
        ),
        heat("Last report to sum", "release_delay_seconds", "The service's own time."),
        lines("A batch's time", users, "By all experiments.", unit="s", span=8),
        lines("The service's own time", pairs, "Should stay far below a second.", unit="s", span=8),
        lines("95% over 15 minutes", recorded, "What the alert looks at (5 s).", unit="s", span=8),
    ]


def traffic() -> list[Any]:
    """Reports in, sums out."""
    accepted = [
        (rate('reports_total{outcome="accepted"}'), "accepted"),
        ("shufflebandit:reports_accepted:rate5m", "mean of 5 minutes"),
    ]
    refused = [(rate('reports_total{outcome="refused"}', "reason"), "{{reason}}")]
    fill = [
        ("sum(shufflebandit_windows_filled_reports)", "reports in open windows"),
        ("sum(shufflebandit_windows_wanted_reports)", "their sizes together"),
        ("sum(shufflebandit_windows_open)", "open windows (right)"),
    ]
    out = [
        (rate("batches_released_total"), "sums"),
        (rate("assignments_total"), "assignments"),
    ]
    late = "Late: the batch was full before the report came."
    windows = counts("Windows", fill, "Counts only; nothing of what the reports say.")
    windows.override_by_name(
        "open windows (right)", [DynamicConfigValue("custom.axisPlacement", "right")]
    )
    return [
        lines("Accepted per second", accepted, "Reports.", span=6).axis_soft_min(0),
        lines("Refused per second", refused, late, span=6).axis_soft_min(0).axis_soft_max(1),
        windows,
        lines("Released per second", out, "What the stages write.", span=6).axis_soft_min(0),
    ]


def health() -> list[Any]:
    """The machinery."""
    return [*stages(), *processes(), *contents()]


def stages() -> list[Any]:
    """Do the stages keep up, and how smoothly."""
    events = [
        (f"sum by (stage) (increase(shufflebandit_{name}_total[{RATE}]))", f"{word}, {{{{stage}}}}")
        for name, word in (
            ("session_restarts", "restarts"),
            ("fencings", "fencings"),
            ("rebalances", "rebalances"),
        )
    ]
    transactions = [
        (quantile(q, "transaction_seconds", "le, stage"), f"{{{{stage}}}}, {q:.0%}")
        for q in (0.5, 0.95)
    ]
    lag = [("shufflebandit:consumer_lag_records:sum", "{{stage}}")]
    partitions = [("sum by (stage) (shufflebandit_partitions_open)", "{{stage}}")]
    checkpoints = [
        (rate("checkpoint_bytes_sum"), "written"),
        (quantile(0.95, "checkpoint_bytes"), "size, 95%"),
    ]
    return [
        counts("Lag", lag, "Input records not yet processed."),
        lines("Transactions", transactions, "From begin to commit.", unit="s", span=6),
        counts("Restarts, fencings, rebalances", events, "How often."),
        counts("Partitions", partitions, "Open ones; should be all of the topic's."),
        lines(
            "Checkpoints", checkpoints, "Of windows that stay open for long.", unit="bytes", span=6
        ),
    ]


def processes() -> list[Any]:
    """The workers."""
    ready = [("shufflebandit_ready", "{{instance}}")]
    use = [(f"rate(process_cpu_seconds_total[{RATE}])", "{{instance}}")]
    memory = [("process_resident_memory_bytes", "{{instance}}")]
    version = "count by (version) (shufflebandit_build_info)"
    return [
        counts("Ready", ready, "1: does its work; /readyz says what it waits for."),
        lines("CPU", use, "Cores.", span=6).axis_soft_min(0),
        lines("Memory", memory, "Resident.", unit="bytes", span=6),
        number("Version", version, "Of the workers.", legend="{{version}}").span(6).height(8),
    ]


def contents() -> list[Any]:
    """What the monitor sees, and what has no series."""
    states = [("max by (state) (shufflebandit_experiments)", "{{state}}")]
    left_out = [
        ("max(shufflebandit_experiments_not_shown)", "experiments"),
        ("max(shufflebandit_arms_not_shown)", "arms"),
    ]
    unusable = [("max(shufflebandit_monitor_invalid_records_total)", "seen by the monitor")]
    about = "No series: see metrics.max_experiments, .max_arms, .experiments."
    return [
        counts("Experiments by state", states, "All, shown or not."),
        counts("Left out", left_out, about),
        counts("Unusable records", unusable, "In the public topics."),
    ]
