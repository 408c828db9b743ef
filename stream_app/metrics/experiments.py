"""Gauges of the experiments, read from the monitor's view when somebody scrapes.

Bounded: at most `max_experiments` experiments have series (running ones first, then those with the
newest release), of those whose names match the operator's pattern; and at most `max_arms` arms in
all, experiments whose arms do not fit keep their other series. What is left out is counted.

Regret is the pseudo-regret of the users in released batches, sum over arms of users x gap. With
every arm's mean anywhere in its interval it is at most

    max_j sum_i users_i (upper_j - lower_i), i other than j,

and at least sum_i users_i max(0, max_j lower_j - upper_i): the exact range over the box, so the
bounds hold whenever all the intervals do.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Protocol

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from stream_app.core.state import Status
from stream_app.settings import MetricsSettings

# Metric, key in the snapshot, help.
_PLAIN = (
    ("phase", "phase", "Phase."),
    ("users", "users", "Users in released batches."),
    ("horizon_users", "horizon", "Users that the experiment may take, in its present epoch."),
    ("batches", "sums", "Released batches."),
    ("epsilon", "epsilon", "The promised epsilon."),
    ("delta", "delta", "The promised delta."),
    ("certified_delta", "certified_delta", "The delta that the newest batch's noise certifies."),
    ("estimated_regret", "estimated_regret", "Regret so far, by the released sums."),
    ("true_regret", "true_regret", "Regret so far, where the definition states the true means."),
)
_ARM = (
    ("viable", "viable", "Whether the arm is still in the running."),
    ("users", "users", "Users of the arm in released batches, in the present epoch."),
    ("estimate", "mean", "The arm's estimated mean."),
    ("lower", "lower", "Lower end of the arm's confidence interval."),
    ("upper", "upper", "Upper end of the arm's confidence interval."),
)


class ExperimentView(Protocol):
    """The monitor's view."""

    invalid: int

    def experiments(self) -> list[dict[str, Any]]:
        """All experiments in short."""

    def snapshot(self, name: str) -> dict[str, Any] | None:
        """All that is known of one."""


class ExperimentCollector(Collector):
    """The view as metrics."""

    def __init__(self, view: ExperimentView, settings: MetricsSettings) -> None:
        self._view = view
        self._settings = settings
        self._patterns = [p.strip() for p in settings.experiments.split(",")]

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are not checked against a scrape at registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All families of one scrape."""
        listed = self._view.experiments()
        matching = [one for one in listed if self._wanted(one["name"])]
        chosen = sorted(matching, key=_newest_first)[: self._settings.max_experiments]
        shown = [s for one in chosen if (s := self._view.snapshot(one["name"])) is not None]
        yield from _experiment_families(shown)
        detailed = _fitting(shown, self._settings.max_arms)
        yield from _arm_families(detailed)
        yield _gauge(
            "experiments_not_shown",
            "Experiments without series (metrics.max_experiments, metrics.experiments).",
            len(listed) - len(shown),
        )
        yield _gauge(
            "arms_not_shown",
            "Arms of shown experiments without series (metrics.max_arms).",
            sum(len(one["arms"]) for one in shown) - sum(len(one["arms"]) for one in detailed),
        )
        states = GaugeMetricFamily(
            "shufflebandit_experiments", "All experiments, by state.", labels=["state"]
        )
        for state in Status:
            states.add_metric([str(state)], sum(one["state"] == state for one in listed))
        yield states
        yield CounterMetricFamily(
            "shufflebandit_monitor_invalid_records",
            "Records of the public topics that the monitor could not use.",
            value=self._view.invalid,
        )

    def _wanted(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self._patterns)


def _newest_first(one: Mapping[str, Any]) -> tuple[bool, int, str]:
    return one["state"] != Status.RUNNING, -(one["last_release_ms"] or 0), one["name"]


def _fitting(shown: Sequence[dict[str, Any]], arms: int) -> list[dict[str, Any]]:
    """The experiments whose arms fit, in order."""
    fitting = []
    for one in shown:
        if len(one["arms"]) <= arms:
            arms -= len(one["arms"])
            fitting.append(one)
    return fitting


def _experiment_families(shown: Sequence[dict[str, Any]]) -> Iterator[Metric]:
    for metric, key, text in _PLAIN:
        yield _family(metric, text, ((one, one[key]) for one in shown))
    yield _family(
        "remaining_users",
        "Users still to come until the horizon of the present epoch.",
        ((one, max(0, one["horizon"] - sum(arm["users"] for arm in one["arms"]))) for one in shown),
    )
    bounds = [(one, regret_bounds(one["arms"])) for one in shown]
    yield _family(
        "estimated_regret_lower",
        "Least regret so far, if all intervals hold.",
        ((one, bound[0]) for one, bound in bounds),
    )
    yield _family(
        "estimated_regret_upper",
        "Largest regret so far, if all intervals hold.",
        ((one, bound[1]) for one, bound in bounds),
    )
    yield _family(
        "last_release_timestamp_seconds",
        "When its newest sum was released.",
        ((one, ms / 1000) for one in shown if (ms := one["last_release_ms"]) is not None),
    )
    state = GaugeMetricFamily(
        "shufflebandit_experiment_state", "1 for the state it is in.",
        labels=["experiment", "state"],
    )  # fmt: skip
    for one in shown:
        for status in Status:
            state.add_metric([one["name"], str(status)], one["state"] == status)
    yield state


def _arm_families(shown: Sequence[dict[str, Any]]) -> Iterator[Metric]:
    for metric, key, text in _ARM:
        family = GaugeMetricFamily(
            f"shufflebandit_arm_{metric}", text, labels=["experiment", "arm"]
        )
        for one in shown:
            for arm in one["arms"]:
                if arm[key] is not None:
                    family.add_metric([one["name"], arm["name"]], float(arm[key]))
        yield family


def regret_bounds(arms: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Least and largest regret of the released users; see the module's docstring.

    Users of all epochs count: the true means do not change from epoch to epoch.
    """
    users = [max(arm["users"], arm["history"][-1][0] if arm["history"] else 0) for arm in arms]
    lowers = [arm["lower"] for arm in arms]
    uppers = [arm["upper"] for arm in arms]
    best = max(lowers)
    least = sum(n * max(0.0, best - high) for n, high in zip(users, uppers, strict=True))
    total = sum(users)
    weighted = sum(n * low for n, low in zip(users, lowers, strict=True))
    most = max(
        (total - n) * high - (weighted - n * low)
        for n, low, high in zip(users, lowers, uppers, strict=True)
    )
    return least, max(0.0, most)


def _family(
    metric: str, text: str, values: Iterable[tuple[Mapping[str, Any], float | None]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"shufflebandit_experiment_{metric}", text, labels=["experiment"])
    for one, value in values:
        if value is not None:
            family.add_metric([one["name"]], float(value))
    return family


def _gauge(metric: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"shufflebandit_{metric}", text, value=value)
