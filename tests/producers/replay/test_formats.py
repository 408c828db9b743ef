"""Every format through the registry: the same rows, and what the command line derives from it."""

from pathlib import Path

import pytest

from producers.replay import arrow, formats
from producers.replay.columns import Columns, parse_filter
from producers.replay.csv_format import OBD
from producers.replay.formats import FORMATS
from producers.replay.report import report
from producers.replay.session import ReplayPlan, in_memory
from tests.producers.replay.build import ALL, EXPECTED, KEY, experiment, log, read, write, written


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("kind", ["csv", "csv.gz", "csv.zst", "jsonl", "jsonl.gz", "parquet"])
def test_every_format_gives_the_same_rows(
    tmp_path: Path, kind: str, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CSV with and without pyarrow, JSON lines, Parquet; plain, gzip, zstd."""
    if plain:
        if kind == "parquet":
            pytest.skip("Parquet needs pyarrow")
        monkeypatch.setattr(arrow, "INSTALLED", False)

    assert EXPECTED == read(log(written(tmp_path, kind), columns=ALL))


def test_a_format_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    """Without an ending that says it."""
    for kind in ("csv.gz", "jsonl", "parquet"):
        path = written(tmp_path, kind)
        assert EXPECTED == read(log(path.rename(tmp_path / "bare"), columns=ALL))


def test_names_endings_and_first_bytes_are_unambiguous() -> None:
    """A format that is added cannot take over another one's files."""
    names = [form.name for form in FORMATS] + [formats.AUTO]
    endings = [ending for form in FORMATS for ending in form.endings]
    heads = [form.first_bytes for form in FORMATS if form.first_bytes is not None]

    for listed in (names, endings, heads):
        assert len(listed) == len(set(listed))
    assert b"" in heads


def test_what_the_command_line_says_of_formats() -> None:
    """To the letter: choices, help and endings come from the registry."""
    assert ("auto", "csv", "jsonl", "parquet", "obd", "dsjson") == formats.CHOICES
    assert "CSV, JSON lines or Parquet" == formats.listed()
    assert (
        "auto: by the file's ending or first bytes. obd: Open Bandit Dataset. dsjson: Vowpal "
        "Wabbit; action n is the experiment's n-th arm, the reward is minus the cost."
    ) == formats.choices_help()
    assert ".csv, .tsv, .jsonl, .ndjson, .json, .dsjson, .parquet" == ", ".join(formats.ENDINGS)


def test_a_choice_is_its_format() -> None:
    """And `auto` is none: it is looked for file by file."""
    assert formats.named(formats.AUTO) is None
    assert list(FORMATS) == [formats.named(form.name) for form in FORMATS]


def test_a_format_s_warning_is_in_the_report_unless_rows_were_filtered(tmp_path: Path) -> None:
    """Three rows of one page view are one user three times."""
    names = ("timestamp", "item_id", "position", "click", "propensity_score")
    rows = [("2024-01-01", "abc"[i % 3], i % 3 + 1, i % 2, 1 / 3) for i in range(300)]
    path = write(tmp_path / "log.csv", names, rows)
    for filters, expected in (((), 1), ((parse_filter("position=1,2"),), 0)):
        found = log(path, form=OBD, columns=Columns(filters=filters))
        warnings = report(in_memory(found, ReplayPlan(experiment()), _key=KEY))["warnings"]

        assert expected == sum("one page view has three rows" in said for said in warnings)
