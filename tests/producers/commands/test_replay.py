"""The command line: reports, the Open Bandit Dataset, and one line for each mistake."""

import gzip
import io
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from stream_app.cli import cli
from stream_app.errors import ShufflebanditError
from tests.producers.replay.build import write, write_drawn

EXPERIMENT = """
name = "log"
arms = [{arms}]
horizon = {horizon}
attribution_s = 0
[privacy]
epsilon = 1
delta = 1e-6
[agent]
guarantee = "high-probability"
"""


TRUNCATED = gzip.compress(b"arm,reward\n" + b"a,1\n" * 5000, mtime=0)[:60]


def defined(folder: Path, arms: list[str], horizon: int = 20_000) -> str:
    path = folder / "log.toml"
    listed = ", ".join(f'"{arm}"' for arm in arms)
    path.write_text(EXPERIMENT.format(arms=listed, horizon=horizon))
    return str(path)


def run(*arguments: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(cli, ["replay", *arguments], input=stdin)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("logs")
    write_drawn(made / "clear.csv", 1, 60_000, (0.30, 0.20, 0.15))
    defined(made, ["a", "b", "c"])
    return made


def test_text_json_and_page(folder: Path, tmp_path: Path) -> None:
    """The same verdict in all three; the page needs no other file."""
    log = str(folder / "clear.csv")
    definition = str(folder / "log.toml")
    html = tmp_path / "r.html"
    shown = run(log, "-e", definition, "--through", "memory", "--html", str(html))
    found = run(log, "-e", definition, "--through", "memory", "--json")
    page = html.read_text()

    assert shown.output.startswith("Decided: a, after ")
    assert "This report is not private" in shown.output
    assert "decided" == json.loads(found.output)["verdict"]["outcome"]
    assert {"replay", "without privacy"} < {a["name"] for a in json.loads(found.output)["agents"]}
    assert "Decided: a" in page
    assert 2 == page.count("<svg")
    assert "prefers-color-scheme: dark" in page
    assert not re.search(r"src=|href=|url\(|@import|<script", page)


def test_a_dry_run_shows_what_is_there(folder: Path, tmp_path: Path) -> None:
    """Columns when none is named; arms that the experiment lacks, without failing."""
    log = write(tmp_path / "x.csv", ("banner", "hit"), [("a", 1), ("z", 0)] * 50)
    columns = run(str(log), "--dry-run")
    named = run(
        str(log), "--dry-run", "--arm-column", "banner", "--reward-column", "hit",
        "-e", str(folder / "log.toml"),
    )  # fmt: skip

    assert "columns banner, hit" in columns.output
    assert re.search(r"z +50 +0\.0000 .* NO", named.output)
    assert re.search(r"a +50 +1\.0000 .* yes", named.output)


def test_standard_input_is_the_same_as_a_file(folder: Path) -> None:
    """Compressed as well."""
    content = gzip.compress((folder / "clear.csv").read_bytes())
    found = run("-", "-e", str(folder / "log.toml"), "--through", "memory", stdin=content)

    assert found.output.startswith("Decided: a, after ")


@pytest.mark.parametrize("through", ["memory", "kafka"])
@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"arm,reward\na,7\n", [], "reward = 7: must be from 0 to 1"),
        (b"arm,reward\nz,1\n", [], "the experiment has no arm 'z'"),
        (b"arm,click\na,1\n", [], "has no such column; it has arm, click"),
        (b"", [], "the file is empty"),
        (TRUNCATED, [], "truncated or damaged"),
        (b"arm,reward\na,1\n", ["--mode", "weighted"], "needs --propensity-column"),
        (b"arm,reward\na,1\n", ["--where", "arm"], "--where 'arm': must be COLUMN=VALUE"),
    ],
)
def test_a_mistake_is_one_line_and_sends_nothing(
    folder: Path, tmp_path: Path, content: bytes, options: list[str], message: str, through: str
) -> None:
    """Exit code 2, before Kafka is even asked: there is none at this address."""
    path = tmp_path / "log.csv"
    path.write_bytes(content)
    found = run(
        str(path), "-e", str(folder / "log.toml"), "--through", through,
        "--bootstrap", "127.0.0.1:1", "--position", str(tmp_path / "at"), *options,
    )  # fmt: skip

    assert isinstance(found.exception, ShufflebanditError)
    assert 2 == found.exception.exit_code
    assert message in str(found.exception)
    assert "\n" not in str(found.exception)
    assert not (tmp_path / "at").exists()


def test_a_folder_without_logs_and_a_missing_file(folder: Path, tmp_path: Path) -> None:
    """One line each."""
    for path, message in ((tmp_path, "a folder without log files"), ("nowhere.csv", "No such")):
        found = run(str(path), "-e", str(folder / "log.toml"), "--through", "memory")
        assert 2 == found.exception.exit_code  # type: ignore[union-attr]
        assert message in str(found.exception)


def obd_sample(folder: Path) -> Path:
    """The samples that the package obp carries, from its wheel; its dependencies are not needed."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(folder)]
    cache = Path(__file__).parents[3] / ".cache" / "obp"
    wheels = list(cache.glob("obp-0.4.1-*.whl"))
    if not wheels:
        cache.mkdir(parents=True, exist_ok=True)
        command[-1] = str(cache)
        done = subprocess.run([*command, "obp==0.4.1"], check=False, capture_output=True)
        wheels = list(cache.glob("obp-0.4.1-*.whl"))
        if done.returncode or not wheels:
            if os.environ.get("CI") == "true":
                pytest.fail(f"obp cannot be had: {done.stderr.decode()[-300:]}", pytrace=False)
            pytest.skip("the sample of the Open Bandit Dataset cannot be had from PyPI")
    with zipfile.ZipFile(io.BytesIO(wheels[0].read_bytes())) as wheel:
        for name in wheel.namelist():
            if name.endswith(("random/men/men.csv", "bts/men/men.csv")):
                wheel.extract(name, folder)
    return folder / "obp" / "dataset" / "obd"


@pytest.mark.slow
def test_the_open_bandit_dataset(tmp_path: Path) -> None:
    """10 000 rows of 34 items, with a click in 200: too little to decide, and it says so.

    The uniform policy's choice passes as random, Thompson sampling's is seen to be uneven.
    """
    folder = obd_sample(tmp_path)
    definition = defined(tmp_path, [str(i) for i in range(34)], 10_000)
    reports = {}
    for policy, mode in (("random", "rejection"), ("bts", "weighted"), ("random", "queue")):
        found = run(
            str(folder / policy / "men" / "men.csv"), "-e", definition, "--format", "obd",
            "--mode", mode, "--through", "memory", "--json",
        )  # fmt: skip
        assert found.exception is None
        reports[policy, mode] = json.loads(found.output)

    for found in reports.values():
        assert "undecided" == found["verdict"]["outcome"]
        assert 10_000 == found["rows"]["usable"] == found["rows"]["read"]
        assert 7 == len(found["days"])
        assert any("three rows" in warning for warning in found["warnings"])
    uniform = reports["random", "rejection"]
    weighted = reports["bts", "weighted"]
    assert uniform["choice_p"] > 1e-3
    assert sum(a["rows"] for a in uniform["arms"]) == 10_000
    assert 0 < weighted["rows"]["kept_by_weight"] < 0.5
    assert reports["random", "queue"]["rows"]["used"] > uniform["rows"]["used"]
