from pathlib import Path

from producers.replay.columns import Columns
from producers.replay.log import TrafficLog
from producers.replay.sources import sources
from tests.producers.replay.build import read, write


def test_folders_and_several_files(tmp_path: Path) -> None:
    """A folder's files by name, one after the other."""
    (tmp_path / "day2").mkdir()
    write(tmp_path / "day1.csv", ("arm", "reward"), [("a", 1)])
    write(tmp_path / "day2" / "x.csv", ("arm", "reward"), [("b", 0)])
    (tmp_path / "notes.txt").write_text("nothing")
    with sources([str(tmp_path)]) as found:
        arms, rewards, _, _ = read(TrafficLog(found, Columns(), arms=("a", "b")))

    assert ([0, 1], [1, 0]) == (arms, rewards)
