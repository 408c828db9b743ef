"""Memory stays flat: the command's own peak, on a log and on one four times as long."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow

ROWS = 2_000_000
TIMES = 4  # the shorter log fills the 64 MB that arrow reads ahead
MARGIN_MB = 24  # of 222 MB that the longer log has more
DEFINITION = """
name = "long"
arms = ["a", "b", "c", "d"]
horizon = 100_000
attribution_s = 0
[privacy]
epsilon = 1
delta = 1e-6
"""
# A small process in between: a child's peak counts from its parent's size on.
MEASURE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def peak_mb(*command: str) -> float:
    """The largest resident size of a process."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *command], capture_output=True, text=True, check=True
    )
    return int(done.stdout) / 1024


def write(path: Path, times: int, chances: list[float]) -> Path:
    """Rows of 37 bytes; the same ones again and again."""
    rng = np.random.default_rng(5)
    rows = ROWS // 10
    arms = np.array(list("abcd"))[rng.choice(4, rows, p=chances)].tolist()
    clicks = (rng.random(rows) < 0.1).astype(int).tolist()
    lines = zip(range(rows), arms, clicks, strict=True)
    body = "".join(f"2024-01-01T00:00:00,user-{i:07},{arm},{click}\n" for i, arm, click in lines)
    with path.open("w") as file:
        file.write("time,user,arm,reward\n")
        file.writelines(body for _ in range(10 * times))
    return path


@pytest.mark.parametrize(
    ("options", "chances"),
    [
        (["--time-column", "time"], [0.25, 0.25, 0.25, 0.25]),
        # One arm is so rare that the others' lines grow to the log's end.
        (["--mode", "queue"], [0.333, 0.333, 0.3335, 0.0005]),
    ],
    ids=["rejection", "queue"],
)
def test_a_longer_log_needs_no_more_memory(
    tmp_path: Path, options: list[str], chances: list[float]
) -> None:
    """Four times the rows, the same peak."""
    (tmp_path / "long.toml").write_text(DEFINITION)
    command = [sys.executable, "-m", "stream_app", "replay", "-e", str(tmp_path / "long.toml"),
               "--through", "memory", "--json", *options]  # fmt: skip
    short, long = (
        peak_mb(*command, str(write(tmp_path / f"{times}.csv", times, chances)))
        for times in (1, TIMES)
    )
    print(f"peak {short:.0f} MB with {ROWS} rows, {long:.0f} MB with {TIMES * ROWS}")

    assert long - short < MARGIN_MB
