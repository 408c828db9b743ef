"""The experiments' gauges: what the view says, within bounds."""

import dataclasses
import itertools
import random
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from stream_app.core.agents import agent_for
from stream_app.core.state import Status
from stream_app.metrics.experiments import ExperimentCollector, regret_bounds
from stream_app.monitor.view import View, regret
from stream_app.settings import MetricsSettings
from stream_app.wire.assignment import Assignment
from tests.core.build import experiment

BASE = experiment(horizon=10_000, arms=5)
BEGUN = agent_for(BASE).begin()


def samples(view: View, **settings: Any) -> dict[tuple[str, ...], float]:
    registry = CollectorRegistry()
    registry.register(ExperimentCollector(view, MetricsSettings(**settings)))
    return {
        (sample.name.removeprefix("shufflebandit_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def put(view: View, name: str, status: Status = Status.RUNNING) -> None:
    state = BEGUN
    if status is not Status.RUNNING:
        state = dataclasses.replace(BEGUN, status=status, open=(), serve=0)
    view.assignment(Assignment(dataclasses.replace(BASE, name=name), state).encode())


def test_shows_an_experiment() -> None:
    """All of the view's snapshot that is a number."""
    view = View()
    put(view, "one")
    shown = view.snapshot("one")
    assert shown is not None

    found = samples(view)

    assert found["experiment_state", "one", "running"] == 1
    assert found["experiment_state", "one", "decided"] == 0
    for metric, key in (("phase", "phase"), ("epsilon", "epsilon"), ("delta", "delta")):
        assert found[f"experiment_{metric}", "one"] == shown[key]
    assert found["experiment_certified_delta", "one"] == shown["certified_delta"]
    assert found["experiment_remaining_users", "one"] == found["experiment_horizon_users", "one"]
    assert found["arm_viable", "arm-0", "one"] == 1
    assert found["arm_upper", "arm-4", "one"] == 1
    # Unknown is absent, not 0.
    for absent in ("experiment_estimated_regret", "experiment_last_release_timestamp_seconds"):
        assert (absent, "one") not in found
    assert ("arm_estimate", "arm-0", "one") not in found


def test_an_empty_view() -> None:
    """No experiments: counts of 0, and nothing else."""
    found = samples(View())

    assert {0.0} == set(found.values())
    assert ("experiments", "running") in found


@pytest.mark.slow
def test_ten_thousand_experiments() -> None:
    """At most max_experiments have series, running ones first; the rest is counted."""
    view = View()
    for number in range(9_990):
        put(view, f"over-{number}", Status.DECIDED)
    for number in range(10):
        put(view, f"running-{number}")

    found = samples(view)

    names = {labels[0] for name, *labels in found if name == "experiment_users"}
    assert len(names) == 100
    assert {f"running-{number}" for number in range(10)} < names
    assert found["experiments_not_shown",] == 9_900
    assert found["experiments", "decided"] == 9_990
    assert len(found) < 5_000


def test_the_operator_chooses() -> None:
    """By pattern, by number, by number of arms; what is left out is counted."""
    view = View()
    for number in range(6):
        put(view, f"shop.{number}")
    put(view, "other")

    found = samples(view, experiments="shop.*, nothing", max_experiments=3, max_arms=11)

    assert 3 == sum(name == "experiment_phase" for name, *_ in found)
    assert 10 == sum(name == "arm_viable" for name, *_ in found)
    assert found["experiments_not_shown",] == 4
    assert found["arms_not_shown",] == 5


def test_regret_bounds_are_the_range_over_the_intervals() -> None:
    """No means within the intervals give a regret outside, and both ends are reached."""
    chance = random.Random(5)
    for _ in range(200):
        ends = [sorted((chance.random(), chance.random())) for _ in range(3)]
        users = [chance.randrange(100) for _ in ends]
        arms = [
            {"users": n, "lower": low, "upper": high, "history": []}
            for n, (low, high) in zip(users, ends, strict=True)
        ]
        least, most = regret_bounds(arms)
        # The regret is convex in the means, so its largest value is at a corner of the box; its
        # least is where every mean is as near as it can be to the largest lower end.
        corners = [regret(users, means) or 0.0 for means in itertools.product(*ends)]
        best = max(low for low, _ in ends)
        nearest = tuple(min(max(low, best), high) for low, high in ends)
        inside = [
            regret(users, tuple(chance.uniform(*end) for end in ends)) or 0.0 for _ in range(50)
        ]

        assert most == pytest.approx(max(corners))
        assert least == pytest.approx(regret(users, nearest))
        assert least - 1e-9 <= min(inside)
        assert max(inside) <= most + 1e-9


def test_regret_bounds_count_users_of_all_epochs() -> None:
    """After a restart with a doubled horizon the released users of before still count."""
    arms = [
        {"users": 0, "lower": 0.0, "upper": 1.0, "history": [(10, 0.5), (40, 0.5)]},
        {"users": 5, "lower": 0.0, "upper": 1.0, "history": [(5, 0.5)]},
    ]

    assert (0, 40) == regret_bounds(arms)
