"""`simulate`, as a user meets it."""

import json
from pathlib import Path

import pytest

from tests.support.command_line import run

EXPERIMENTS = Path(__file__).parents[2] / "deploy" / "experiments"


def write(folder: Path, text: str) -> Path:
    file = folder / "experiment.toml"
    file.write_text(text)
    return file


GOOD = """
name = "x"
arms = ["a", "b"]
horizon = 2000
[privacy]
epsilon = 1
delta = 1e-6
[simulation]
means = [0.9, 0.1]
"""


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
