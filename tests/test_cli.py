"""The commands without Kafka, as a user meets them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from stream_app import cli
from stream_app.definitions import load_experiment

EXPERIMENTS = Path(__file__).parent.parent / "deploy" / "experiments"


def run(*arguments: object, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stream_app", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "100"},
    )


def write(folder: Path, text: str) -> Path:
    file = folder / "experiment.toml"
    file.write_text(text)
    return file


GOOD = """
name = "x"
arms = ["a", "b"]
horizon = 2000
attribution_s = 0
[privacy]
epsilon = 1
delta = 1e-6
[simulation]
means = [0.9, 0.1]
"""


@pytest.mark.parametrize("file", sorted(EXPERIMENTS.glob("*.toml")), ids=lambda f: f.name)
def test_sample_files_parse(file: Path) -> None:
    """Every sample file is a valid experiment with means to simulate."""
    experiment = load_experiment(file)

    assert experiment.simulation is not None


def test_calibrate_then_certify_holds() -> None:
    """What calibrate prints as JSON is a certificate that certify confirms."""
    for mechanism in ("binomial", "discrete-laplace"):
        options = ("--epsilon", 0.5, "--delta", "1e-6", "--batch-size", 1000)
        made = run("calibrate", *options, "--mechanism", mechanism, "--json")
        checked = run("certify", "-", "--json", stdin=made.stdout)

        assert (0, 0) == (made.returncode, checked.returncode)
        assert json.loads(checked.stdout)["holds"] is True


def test_tampered_certificate_fails() -> None:
    """A certificate with less noise than it claims does not hold: exit code 1, one line."""
    made = json.loads(
        run("calibrate", "--epsilon", 1, "--delta", "1e-6", "--batch-size", 100, "--json").stdout
    )
    made["parameters"]["clip"] -= 1
    checked = run("certify", "-", stdin=json.dumps(made))

    assert 1 == checked.returncode
    assert 1 == checked.stderr.count("\n")
    assert "does not hold" in checked.stderr


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"mechanism": 3}', "{"])
def test_broken_certificate_is_refused(text: str) -> None:
    """What is not a certificate is refused with exit code 2 and one line."""
    checked = run("certify", "-", stdin=text)

    assert 2 == checked.returncode
    assert "certificate" in checked.stderr
    assert "Traceback" not in checked.stderr


def test_calibrate_text_compares_with_the_paper() -> None:
    """The text output names the parameters and the paper's variance."""
    done = run("calibrate", "--epsilon", 0.5, "--delta", "1e-6", "--batch-size", 1000)

    assert 0 == done.returncode
    assert "paper's calibration" in done.stdout
    assert "times this one" in done.stdout


def test_simulate_json_has_the_documented_shape() -> None:
    """One result per preset and baseline, with a curve that ends at the mean regret."""
    done = run(
        "simulate", EXPERIMENTS / "five-arms.toml", "--set", "horizon=20000", "--runs", 4,
        "--preset", "optimal", "--preset", "vb-sdp-ae", "--baseline", "local", "--json",
    )  # fmt: skip
    results = json.loads(done.stdout)["results"]

    assert ["optimal", "vb-sdp-ae", "local"] == [r["name"] for r in results]
    keys = {
        "name", "runs", "regret_mean", "regret_sem", "decided_fraction", "best_arm_kept",
        "users_to_decision_mean", "curve",
    }  # fmt: skip
    for result in results:
        assert keys == set(result)
        assert 20_000 == result["curve"]["users"][-1]
        assert result["regret_mean"] == pytest.approx(result["curve"]["regret"][-1])


def test_simulate_is_reproducible_and_draws(tmp_path: Path) -> None:
    """The same seed gives the same figures, and --plot writes a picture."""
    file = write(tmp_path, GOOD)
    picture = tmp_path / "regret.svg"
    first = run("simulate", file, "--runs", 60, "--seed", 3, "--json", "--plot", picture)
    second = run("simulate", file, "--runs", 60, "--seed", 3, "--json")

    assert first.stdout == second.stdout
    assert "<svg" in picture.read_text()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (("epsilon = 1", "epsilon = 0"), "epsilon = 0"),
        (("epsilon = 1", "epsilon = -0.5"), "epsilon = -0.5"),
        (("delta = 1e-6", "delta = 1"), "delta = 1"),
        (("delta = 1e-6", "delta = 0"), "delta = 0"),
        (("delta = 1e-6", ""), "privacy.delta"),
        (('arms = ["a", "b"]', 'arms = ["a"]'), "arms"),
        (('arms = ["a", "b"]', 'arms = ["a", "a"]'), "'a'"),
        (("attribution_s = 0\n", ""), "attribution_s: missing"),
        (("horizon = 2000", "horizon = 1"), "horizon = 1"),
        (("horizon = 2000", 'horizon = "many"'), "horizon = 'many'"),
        (("[0.9, 0.1]", "[0.9, 1.1]"), "1.1"),
        (("[0.9, 0.1]", "[0.9]"), "means"),
        (("horizon = 2000", "horizon = 2000\nhorizn = 3"), "horizn"),
        (("epsilon = 1", "epsilon = 1\nmechanism = 'gauss'"), "gauss"),
        (('name = "x"', 'name = "X Y"'), "X Y"),
        (("[privacy]", "[agent]\npreset = 'best'\n[privacy]"), "best"),
        (("[privacy]", "[agent]\ntest = 'paper'\n[privacy]"), "guarantee"),
        (("[privacy]", "privacy"), "not a TOML file"),
        (("[simulation]\nmeans = [0.9, 0.1]", ""), "simulation.means"),
    ],
)
def test_bad_experiment_is_one_line(tmp_path: Path, change: tuple[str, str], named: str) -> None:
    """Bad input: one line that names the setting and the value, exit code 2, no traceback."""
    assert change[0] in GOOD
    done = run("simulate", write(tmp_path, GOOD.replace(*change)), "--runs", 2)

    assert 2 == done.returncode
    assert named in done.stderr
    assert 1 == done.stderr.count("\n"), done.stderr


def test_paper_calibration_refused_above_one() -> None:
    """The paper's constants are proved for epsilon < 1 only: refused, with a pointer to exact."""
    done = run(
        "calibrate", "--epsilon", 1, "--delta", "1e-6", "--batch-size", 10,
        "--mechanism", "binomial", "--calibration", "paper",
    )  # fmt: skip

    assert 2 == done.returncode
    assert "exact" in done.stderr


def test_help_imports_no_command() -> None:
    """The list of commands costs no import of numpy, Kafka's or faust's libraries."""
    script = (
        "import sys; from stream_app.cli import cli; cli.main(['--help'], standalone_mode=False); "
        "print('imported', sorted({'numpy', 'aiokafka', 'faust', 'scipy'} & set(sys.modules)))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout

    assert "imported []" == shown.splitlines()[-1]


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_list_says_what_the_command_says(name: str) -> None:
    """The table's sentence is the beginning of the command's own help."""
    command = cli.cli.get_command(click.Context(cli.cli), name)

    assert command is not None
    assert " ".join((command.help or "").split()).startswith(cli.COMMANDS[name][1])


def test_top_is_light() -> None:
    """Watching needs no statistics library, no application framework and no local broker."""
    heavy = "{'scipy', 'faust', 'stream_app.local.broker', 'stream_app.app'}"
    script = f"import sys, stream_app.commands.top; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert "[]" == done.stdout.strip()
