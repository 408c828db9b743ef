"""Prometheus' files: valid, tested, and about metrics that exist."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.deploy.observing import DASHBOARD, PROMETHEUS, ROOT, defined, named, program

RULES = PROMETHEUS / "rules.yml"


def promtool(*arguments: str) -> None:
    command = [program("promtool"), *arguments]
    done = subprocess.run(command, cwd=PROMETHEUS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "rules.yml"),
        ("test", "rules", "rules_test.yml"),
    ],
    ids=" ".join,
)
def test_promtool(arguments: tuple[str, ...]) -> None:
    """Configuration and rules are valid; every alert fires when it should and only then."""
    promtool(*arguments)


def alerts() -> dict[str, dict[str, str]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {r["alert"]: r["annotations"] for g in groups for r in g["rules"] if "alert" in r}


def test_every_alert_is_tested_both_ways() -> None:
    """For each alert one case where it fires and one where it does not."""
    cases = [
        (re.findall(r'alertname="(\w+)"', case["expr"])[0], bool(case.get("exp_samples")))
        for test in yaml.safe_load((PROMETHEUS / "rules_test.yml").read_text())["tests"]
        for case in test["promql_expr_test"]
    ]

    assert {(name, fires) for name in alerts() for fires in (True, False)} == set(cases)


def test_every_alert_has_a_runbook() -> None:
    """One line each: what to look at, what to do."""
    for annotations in alerts().values():
        assert len(annotations["runbook"]) > 40
        assert annotations["summary"].endswith((".", "{{ end }}"))


def test_every_metric_is_shown_and_every_shown_metric_exists() -> None:
    """Dashboard and rules name all metrics of the project, and no others."""
    assert defined() == named(DASHBOARD.read_text()) | named(RULES.read_text())


def test_the_document_names_every_metric() -> None:
    """And no others."""
    assert defined() == named((ROOT / "deploy" / "MONITORING.md").read_text())


@pytest.mark.parametrize("file", ["prometheus.yml", "rules.yml"])
def test_no_tabs_and_no_machine_names(file: str) -> None:
    """The same files serve a machine, compose and a cluster: targets are in files of their own."""
    text = Path(PROMETHEUS / file).read_text()

    assert "\t" not in text
    assert "localhost" not in text
