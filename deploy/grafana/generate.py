"""Writes dashboards/dashboard.json; with --check it only compares."""

import json
import sys
from pathlib import Path
from typing import Any

from experiment_rows import decision, privacy, regret
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
ROWS = (
    ("At a glance", glance),
    ("Decision: $experiment", decision),
    ("Regret: $experiment", regret),
    ("Latency", latency),
    ("Traffic", traffic),
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
    names = {"query": "label_values(shufflebandit_experiment_users, experiment)", "refId": "names"}
    board.with_variable(
        dashboard.QueryVariable("experiment")
        .label("Experiment")
        .query(names)
        .datasource(SOURCE)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )
    gone = of("arm_viable", "arm")
    before = gone.replace(HERE, f"{HERE} offset 1m")
    board.annotation(
        dashboard.AnnotationQuery()
        .name("Arm eliminated")
        .datasource(SOURCE)
        .enable(True)
        .icon_color("orange")
        .expr(f"{before} == 1 unless {gone} == 1")
    )
    for title, panels in ROWS:
        board.with_row(dashboard.Row(title))
        for panel in panels():
            board.with_panel(panel)
    made: dict[str, Any] = json.loads(json.dumps(board.build(), cls=JSONEncoder))
    # The kit does not know these two fields of a Prometheus annotation.
    made["annotations"]["list"][-1] |= {"titleFormat": "{{arm}} is out", "step": "15s"}
    for number, panel in enumerate(made["panels"], 1):
        panel["id"] = number
    return made


def rendered() -> str:
    """The file's content."""
    return json.dumps(build(), indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    if "--check" not in sys.argv:
        FILE.write_text(rendered(), encoding="utf-8")
    elif FILE.read_text(encoding="utf-8") != rendered():
        sys.exit(f"{FILE}: not current; write it with: python deploy/grafana/generate.py")
