"""`observe`: finds Grafana's files, shows a run, and ends when told."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from producers.commands.observe import grafana_home, observe
from stream_app.errors import ConfigurationError
from tests.deploy.observing import ROOT, program

NEEDED = {"page", "metrics", "prometheus", "grafana", "kafka"}


@pytest.mark.parametrize("home", ["", "share/grafana"])
def test_home_of_grafana(tmp_path: Path, home: str) -> None:
    """As in the archive, and as packages lay it out; the program may be a link."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "grafana").touch()
    (tmp_path / home / "conf").mkdir(parents=True)
    (tmp_path / home / "conf" / "defaults.ini").touch()
    (tmp_path / "link").symlink_to(tmp_path / "bin" / "grafana")

    assert tmp_path / home == grafana_home(tmp_path / "link")


def test_files_that_no_wheel_has(tmp_path: Path) -> None:
    """Without the repository's folder it says in one line what is missing."""
    with pytest.raises(ConfigurationError, match=r"^--deploy .*: has no prometheus[^\n]*$"):
        observe.main(["--deploy", str(tmp_path)], standalone_mode=False)


@pytest.mark.kafka
@pytest.mark.slow
def test_runs_and_ends(tmp_path: Path) -> None:
    """Prometheus sees the worker; SIGTERM ends all, though a shell had SIGINT ignored."""
    program("prometheus")
    command = [sys.executable, "-m", "stream_app", "observe", "--free-ports", "--interval", "1s"]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # noqa: PLW1509
    )
    try:
        assert process.stdout is not None
        said = dict(process.stdout.readline().split()[:2] for _ in NEEDED)
        up(said["prometheus"])
        process.terminate()

        assert set(said) == NEEDED
        assert process.wait(30) == 0
        assert process.stdout.read().endswith("ended\n")
        assert list(tmp_path.iterdir()) == []
    finally:
        process.kill()
        process.wait()


def up(prometheus: str) -> None:
    """Waits until the worker is scraped."""
    url = f"{prometheus}api/v1/query?query=up"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with urllib.request.urlopen(url) as answer:  # noqa: S310
            found = json.load(answer)["data"]["result"]
        if [series["value"][1] for series in found] == ["1"]:
            return
        time.sleep(0.3)
    raise AssertionError("the worker was never scraped")
