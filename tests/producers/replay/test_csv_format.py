from pathlib import Path

import pytest

from producers.replay import csv_format
from tests.producers.replay.build import log, read


def test_row_numbers_over_many_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that arrow skips in one block shift the numbers in the next ones."""
    monkeypatch.setattr(csv_format, "BLOCK_BYTES", 4096)
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
