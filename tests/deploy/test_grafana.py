"""Grafana's files and compose.yaml: current, complete, wired by the same files."""

import subprocess
import sys
from typing import Any

import yaml

from tests.deploy.observing import ROOT, dashboard, panel_queries

GRAFANA = ROOT / "deploy" / "grafana"


def load(path: str) -> Any:
    return yaml.safe_load((ROOT / "deploy" / path).read_text())


def test_dashboard_is_current() -> None:
    """The file is what the code writes."""
    command = [sys.executable, str(GRAFANA / "generate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (0, "") == (done.returncode, done.stderr)


def test_panels() -> None:
    """Every panel says what it shows, uses the templated data source, overlaps no other."""
    board = dashboard()
    panels = [panel for panel in board["panels"] if panel["type"] not in ("row", "text")]
    cells = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert (x, y) not in cells, panel["title"]
                cells.add((x, y))

    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in panels:
        assert panel["description"], panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["targets"], panel["title"]
    assert {"datasource", "experiment"} == {v["name"] for v in board["templating"]["list"]}
    assert len(panel_queries()) > 60


def test_rows() -> None:
    """The rows, in the order of an operator's questions."""
    rows = [panel["title"] for panel in dashboard()["panels"] if panel["type"] == "row"]

    assert [
        "At a glance",
        "Decision: $experiment",
        "Regret: $experiment",
        "Latency",
        "Traffic",
        "Gateway",
        "Privacy: $experiment",
        "Service",
    ] == rows


def test_eliminations() -> None:
    """On the panels about the arms only, once each (looking back is as long as the step), and
    not where the series only end."""
    board = dashboard()
    (given,) = board["annotations"]["list"]
    titles = {panel["id"]: panel["title"] for panel in board["panels"]}

    assert ["Arms", "In the running", "Regret"] == [titles[n] for n in given["filter"]["ids"]]
    assert "offset $__interval) == 1 and max" in given["expr"]
    assert given["expr"].endswith(") == 0")


def test_intervals_take_no_arms_colour() -> None:
    """The palette is the estimates'; an interval's line in another arm's colour would mislead."""
    chart = next(panel for panel in dashboard()["panels"] if panel["title"] == "Arms")
    fixed = {
        rule["matcher"]["options"]
        for rule in chart["fieldConfig"]["overrides"]
        for given in rule["properties"]
        if given["id"] == "color" and given["value"]["mode"] == "fixed"
    }

    assert {"B", "C"} == fixed


def test_provisioning() -> None:
    """Data source and folder come from the variables that compose.yaml sets."""
    source = load("grafana/provisioning/datasources/prometheus.yml")["datasources"][0]
    provider = load("grafana/provisioning/dashboards/shufflebandit.yml")["providers"][0]
    given = load("compose.yaml")["services"]["grafana"]["environment"]

    assert source["url"].removeprefix("$") in given
    assert provider["options"]["path"].removeprefix("$") in given


def test_compose() -> None:
    """The services use the files of this folder; nothing listens on other machines' side."""
    services = load("compose.yaml")["services"]
    for service in services.values():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            if source.startswith("."):
                assert (ROOT / "deploy" / source).exists(), source
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:")

    assert {"kafka", "topics", "service", "prometheus", "grafana"} == set(services)
    assert services["service"]["read_only"] is True
    assert (ROOT / services["service"]["build"]["dockerfile"]).exists()
