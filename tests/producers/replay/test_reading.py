import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from producers.replay import columns, tables
from producers.replay.columns import Columns, Format, parse_filter
from producers.replay.files import sources
from producers.replay.log import Log, SeenUsers
from stream_app.errors import ConfigurationError, InvalidInput
from tests.producers.replay.build import log, write

ROWS = [
    ("a", "1", "2024-01-01 10:00:00", "u1", "0.5"),
    ("b", "no", "2024-01-01T10:00:01Z", "u2", "0.25"),
    ("c", "0.25", "2024-01-02", "u1", "0.25"),
    ("a", "TRUE", "1704189600", "u3", "1"),
]
NAMES = ("arm", "reward", "time", "user", "p")
ALL = Columns("arm", "reward", "time", None, "p")


def read(found: Log) -> tuple[list[int], list[float], list[float], list[float]]:
    arms: list[int] = []
    rewards: list[float] = []
    times: list[float] = []
    chances: list[float] = []
    for chunk in found.chunks():
        arms += chunk.arms.tolist()
        rewards += chunk.rewards.tolist()
        times += chunk.times.tolist() if chunk.times is not None else []
        chances += chunk.propensities.tolist() if chunk.propensities is not None else []
    return arms, rewards, times, chances


EXPECTED = (
    [0, 1, 2, 0],
    [1, 0, 0.25, 1],
    [1704103200.0, 1704103201.0, 1704153600.0, 1704189600.0],
    [0.5, 0.25, 0.25, 1],
)


def written(folder: Path, kind: str) -> Path:
    """The same rows in a format, perhaps compressed."""
    form, _, packed = kind.partition(".")
    path = folder / f"log.{form}"
    if form == "csv":
        write(path, NAMES, ROWS)
    elif form == "jsonl":
        path.write_text("\n".join(json.dumps(dict(zip(NAMES, r, strict=True))) for r in ROWS))
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table(dict(zip(NAMES, zip(*ROWS, strict=True), strict=True))), path)
    if packed == "gz":
        path = _packed(path, gzip.compress(path.read_bytes()), ".gz")
    elif packed == "zst":
        import zstandard

        path = _packed(path, zstandard.ZstdCompressor().compress(path.read_bytes()), ".zst")
    return path


def _packed(path: Path, content: bytes, ending: str) -> Path:
    packed = path.with_name(path.name + ending)
    packed.write_bytes(content)
    return packed


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("kind", ["csv", "csv.gz", "csv.zst", "jsonl", "jsonl.gz", "parquet"])
def test_every_format_gives_the_same_rows(
    tmp_path: Path, kind: str, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CSV with and without pyarrow, JSON lines, Parquet; plain, gzip, zstd."""
    if plain:
        if kind == "parquet":
            pytest.skip("Parquet needs pyarrow")
        monkeypatch.setattr(tables, "HAS_ARROW", False)

    assert EXPECTED == read(log(written(tmp_path, kind), columns=ALL))


def test_a_format_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    """Without an ending that says it."""
    for kind in ("csv.gz", "jsonl", "parquet"):
        path = written(tmp_path, kind)
        assert EXPECTED == read(log(path.rename(tmp_path / "bare"), columns=ALL))


def test_folders_and_several_files(tmp_path: Path) -> None:
    """A folder's files by name, one after the other."""
    (tmp_path / "day2").mkdir()
    write(tmp_path / "day1.csv", ("arm", "reward"), [("a", 1)])
    write(tmp_path / "day2" / "x.csv", ("arm", "reward"), [("b", 0)])
    (tmp_path / "notes.txt").write_text("nothing")
    with sources([str(tmp_path)]) as found:
        arms, rewards, _, _ = read(Log(found, Columns(), arms=("a", "b")))

    assert ([0, 1], [1, 0]) == (arms, rewards)


@pytest.mark.parametrize("plain", [False, True])
def test_rows_that_say_nothing_are_counted_by_reason(
    tmp_path: Path, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the numbers of the first ones, as an editor shows lines."""
    monkeypatch.setattr(tables, "HAS_ARROW", not plain)
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


def test_row_numbers_over_many_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that arrow skips in one block shift the numbers in the next ones."""
    monkeypatch.setattr(tables, "_BLOCK_BYTES", 4096)
    lines = ["arm,reward"] + ["a,1"] * 20_000
    for number in (7, 500, 9_000, 15_000):
        lines[number - 1] = "broken"
    lines[11_999] = lines[19_999] = "a,oops"
    path = tmp_path / "log.csv"
    path.write_text("\n".join(lines) + "\n")
    found = log(path)
    read(found)

    assert ["log.csv:12000", "log.csv:20000"] == found.skipped["not a reward"].first
    assert ["log.csv:7", "log.csv:500", "log.csv:9000"] == found.skipped[
        "wrong number of columns"
    ].first


def test_dsjson(tmp_path: Path) -> None:
    """Action n is the n-th arm, the reward minus the cost; the rest is counted."""
    event = {"_label_cost": -1.0, "_label_probability": 0.8, "_label_Action": 2, "a": [2, 1]}
    lines = [
        {**event, "p": [0.8, 0.2], "Timestamp": "2024-01-01T00:00:00.0000000Z"},
        {**event, "_label_cost": 0, "_label_Action": 1, "Timestamp": "2024-01-01T00:00:01Z"},
        {**event, "_skipLearn": True, "Timestamp": "2024-01-01T00:00:02Z"},
        {"RewardValue": 1, "EventId": "x"},
    ]
    path = tmp_path / "log.dsjson"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    found = log(path, form=Format.DSJSON)
    arms, rewards, times, chances = read(found)

    assert ([1, 0], [1, 0], [0.8, 0.8]) == (arms, rewards, chances)
    assert 1704067200 == times[0]
    assert 2 == found.skipped["not a decision"].rows


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


@pytest.mark.parametrize("kind", ["csv.gz", "csv.zst", "jsonl.gz", "parquet"])
def test_a_truncated_file_is_refused(tmp_path: Path, kind: str) -> None:
    """However it is cut, and never taken for a shorter log."""
    path = tmp_path / f"big.{kind}"
    rows = [("abc"[i % 3], i % 2, "x" * (i % 50)) for i in range(20_000)]
    form = kind.partition(".")[0]
    whole = written(tmp_path, kind).with_name(f"log.{form}")
    if form == "csv":
        write(whole, ("arm", "reward", "x"), rows)
    elif form == "jsonl":
        whole.write_text("\n".join(json.dumps({"arm": a, "reward": r}) for a, r, _ in rows))
    content = whole.read_bytes()
    if kind.endswith("gz"):
        content = gzip.compress(content)
    elif kind.endswith("zst"):
        import zstandard

        content = zstandard.ZstdCompressor().compress(content)
    for share in (0.3, 0.9):
        path.write_bytes(content[: int(len(content) * share)])
        with pytest.raises(InvalidInput, match=r"big\..*: truncated or damaged"):
            read(log(path))


def test_filters() -> None:
    """Equal to one of some, unequal, and compared as numbers."""
    assert parse_filter("position=1,2").keeps(2)
    assert not parse_filter("position = 1,2").keeps("3")
    assert parse_filter("country!=NL").keeps(None)
    assert parse_filter("age>=18").keeps("20")
    assert not parse_filter("age>=18").keeps("young")
    for wrong in ("position", "age<old"):
        with pytest.raises(ConfigurationError, match="--where"):
            parse_filter(wrong)


def test_times_in_every_spelling() -> None:
    """Seconds, milliseconds, microseconds; ISO 8601 with and without zone; nothing."""
    for value in (1704067200, "1704067200000", 1704067200000000, "2024-01-01T00:00:00Z",
                  "2024-01-01 01:00:00+01:00", "2024-01-01"):  # fmt: skip
        assert 1704067200 == columns.seconds(value)
    assert columns.seconds("soon") is None


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
