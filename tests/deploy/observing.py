"""What the tests of Prometheus and Grafana share: programs, queries, metric names."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from stream_app.metrics.edge import EdgeMetrics
from stream_app.metrics.experiments import ExperimentCollector
from stream_app.metrics.instruments import Metrics
from stream_app.monitor.view import View
from stream_app.settings import MetricsSettings

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
DASHBOARD = ROOT / "deploy" / "grafana" / "dashboards" / "dashboard.json"


def program(name: str) -> str:
    """Its path; without it the test is skipped, or fails in CI."""
    found = shutil.which(name)
    if found is None:
        missing = f"{name}: not found; install it with: deploy/ensure prometheus"
        if os.environ.get("CI") == "true":
            pytest.fail(missing, pytrace=False)
        pytest.skip(missing)
    return found


def dashboard() -> dict[str, Any]:
    made: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return made


def panel_queries() -> list[tuple[str, str]]:
    """Title and query of every target of every panel."""
    return [
        (panel["title"], target["expr"])
        for panel in dashboard()["panels"]
        for target in panel.get("targets", [])
    ]


def families(scrape: str) -> set[str]:
    """The project's metrics in a scrape, as the text format names them."""
    return set(re.findall(r"(?m)^# TYPE (shufflebandit_\w+) ", scrape))


def defined() -> set[str]:
    """All metrics of the project."""
    metrics = Metrics()
    metrics.stage("shuffle")
    metrics.stage("agent")
    metrics.registry.register(ExperimentCollector(View(), MetricsSettings()))
    metrics.registry.register(EdgeMetrics())
    return families(metrics.expose().decode())


def named(text: str) -> set[str]:
    """The metrics that a text names; a histogram's series stand for the histogram."""
    found = set(re.findall(r"\bshufflebandit_[a-z_]+[a-z]\b(?!:)", text))
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in found}
