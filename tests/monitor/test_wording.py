"""What the monitor says of an experiment beside promise and guarantee."""

import dataclasses

import pytest

from stream_app.core.state import Status
from stream_app.monitor.view import View
from tests.monitor.site import MonitorSite, ScriptedRun, demo, feed


@pytest.mark.parametrize("retained", [False, True])
def test_what_becomes_of_reports_is_said(retained: bool) -> None:
    """In words, in the certificate, and as a value."""
    view = View(reports_retained=retained)
    feed(view, ScriptedRun(demo()))
    shown = view.snapshot("demo")

    assert shown is not None
    assert retained is shown["reports_retained"] is shown["certificate"]["reports_retained"]
    assert ("kept for an auditor" if retained else "are deleted") in shown["words"]["reports"]


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (Status.RUNNING, "running: phase 1, 5 of 5 arms viable"),
        (Status.STOPPED, "stopped by the operator: serve the leader, spring"),
        (Status.EXHAUSTED, "horizon reached, undecided: serve the leader, spring"),
    ],
)
def test_states_in_words(site: MonitorSite, status: Status, sentence: str) -> None:
    """Each state is one sentence."""
    run = ScriptedRun(demo())
    if status is not Status.RUNNING:
        run.state = dataclasses.replace(run.state, status=status, open=(), serve=0)
    site.do(site.view.assignment, run.assignment())

    shown = site.do(site.view.snapshot, "demo")

    assert sentence == shown["words"]["state"]
