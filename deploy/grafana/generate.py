"""Writes dashboards/dashboard.json; with --check it only compares."""

import json
import sys
from pathlib import Path
from typing import Any

from experiment_rows import ARMS, REGRET, RUNNING, decision, privacy, regret
from gateway_rows import edge
from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    VariableRefresh,
    VariableSort,
)
from kit import HERE, SOURCE, of
from service_rows import glance, health, latency, traffic

FILE = Path(__file__).parent / "dashboards" / "dashboard.json"
# The experiment with the newest sum comes first; one without any has 0. Over the time shown: they
# are listed also while no worker answers.
NEWEST = " or ".join(
    f"max by (experiment) (max_over_time(shufflebandit_experiment_{metric}[$__range])){times}"
    for metric, times in (("last_release_timestamp_seconds", ""), ("users", " * 0"))
)
ROWS = (
    ("At a glance", glance),
    ("Decision: $experiment", decision),
    ("Regret: $experiment", regret),
    ("Latency", latency),
    ("Traffic", traffic),
    ("Gateway", edge),
    ("Privacy: $experiment", privacy),
    ("Service", health),
)


def build() -> dict[str, Any]:
    """The dashboard as JSON values."""
    board = dashboard.Dashboard("shufflebandit").uid("shufflebandit").tags(["shufflebandit"])
    board.time("now-1h", "now").refresh("10s").readonly().tooltip(DashboardCursorSync.CROSSHAIR)
    board.with_variable(
        dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")
    )
    board.with_variable(
        dashboard.QueryVariable("experiment")
        .label("Experiment")
        .query({"query": f"query_result(sort_desc({NEWEST}))", "refId": "names"})
        .regex('/experiment="([^"]+)"/')
        .datasource(SOURCE)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.DISABLED)
    )
    for title, panels in ROWS:
        board.with_row(dashboard.Row(title))
        for panel in panels():
            board.with_panel(panel)
    made: dict[str, Any] = json.loads(json.dumps(board.build(), cls=JSONEncoder))
    for number, panel in enumerate(made["panels"], 1):
        panel["id"] = number
    shown = [panel["id"] for panel in made["panels"] if panel["title"] in (ARMS, RUNNING, REGRET)]
    made["annotations"]["list"] = [eliminations(shown)]
    return made


def eliminations(panels: list[int]) -> dict[str, Any]:
    """A vertical line where an arm is out: once, as the query looks back by exactly its step.

    A worker that does not answer eliminates nobody: the arm must be there, and out.
    Grafana shows nothing where the value is 0, so what was comes first.
    """
    now = of("arm_viable", "arm")
    before = now.replace(HERE, f"{HERE} offset $__interval")
    return {
        "name": "Arm eliminated",
        "datasource": {"type": SOURCE.type_val, "uid": SOURCE.uid},
        "enable": True,
        "iconColor": "orange",
        "expr": f"{before} == 1 and {now} == 0",
        "titleFormat": "{{arm}} is out",
        "step": "15s",
        "filter": {"exclude": False, "ids": panels},
    }


def rendered() -> str:
    """The file's content."""
    return json.dumps(build(), indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    if "--check" not in sys.argv:
        FILE.write_text(rendered(), encoding="utf-8")
    elif FILE.read_text(encoding="utf-8") != rendered():
        sys.exit(f"{FILE}: not current; write it with: python deploy/grafana/generate.py")
