from pathlib import Path

import numpy as np
import pytest

from producers.replay import arrow
from producers.replay.columns import Columns
from producers.replay.log import SeenUsers
from stream_app.errors import ConfigurationError, InvalidInput
from tests.producers.replay.build import log, read


@pytest.mark.parametrize("plain", [False, True])
def test_rows_that_say_nothing_are_counted_by_reason(
    tmp_path: Path, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the numbers of the first ones, as an editor shows lines."""
    monkeypatch.setattr(arrow, "INSTALLED", not plain)
    path = tmp_path / "log.csv"
    path.write_text(
        'arm,reward,user\na,1,u1\nb,0\n\na,,u2\nb,null,u3\nb,later,u4\na,1,u1\n,1,u9\n"c",1,u5\n'
    )
    found = log(path, columns=Columns(user="user"))
    arms, rewards, _, _ = read(found)

    assert ([0, 2], [1, 1]) == (arms, rewards)
    assert {
        "wrong number of columns": (1, ["log.csv:3"]),
        "no arm": (2, ["log.csv:4", "log.csv:9"]),
        "no reward": (2, ["log.csv:5", "log.csv:6"]),
        "not a reward": (1, ["log.csv:7"]),
        "user seen before": (1, ["log.csv:8"]),
    } == {reason: (one.rows, one.first) for reason, one in found.skipped.items()}
    assert 9 == found.rows


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("arm,reward\na,7\n", {}, "log.csv:2: reward = 7: must be from 0 to 1"),
        ("arm,reward\na,1\nb,-1\n", {}, "log.csv:3: reward = -1"),
        ("arm,reward\na,1\nz,1\n", {}, "log.csv:3: the experiment has no arm 'z', only a, b, c"),
        ("arm,click\na,1\n", {}, "--reward-column reward: log.csv has no such column; it has arm"),
        ("arm,reward\na,1\n", {"time": "when"}, "--time-column when: log.csv has no such column"),
        ("arm,reward,p\na,1,0\n", {"propensity": "p"}, "log.csv:2: propensity = 0: must be above"),
        ("arm,reward\n", {}, "no usable row among 0"),
        ("arm,reward\na,\n", {}, "no usable row among 1 (no reward: 1)"),
    ],
)
def test_a_wrong_log_is_refused_in_one_line(
    tmp_path: Path, content: str, options: dict[str, str], message: str
) -> None:
    path = tmp_path / "log.csv"
    path.write_text(content)
    with pytest.raises((ConfigurationError, InvalidInput)) as raised:
        read(log(path, columns=Columns(**options)))

    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_seen_users_against_a_set() -> None:
    """The sorted runs give what a plain set gives."""
    rng = np.random.default_rng(3)
    seen = SeenUsers()
    known = set()
    for _ in range(200):
        hashes = rng.integers(0, 5_000, rng.integers(1, 100)).astype(np.uint64)
        expected = []
        for value in hashes.tolist():
            expected.append(value not in known)
            known.add(value)

        assert expected == seen.first(hashes).tolist()
