"""The reference tables: current, complete, and made of what the types say."""

import sys
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from deploy import reference
from stream_app import settings
from tests.deploy.observing import defined, named


@dataclass(frozen=True)
class Sample:
    """What a sample is."""

    # Said in
    # two lines.
    told: int = 1

    # Not above a field.

    silent: str = ""  # beside it


@pytest.mark.parametrize("name", reference.TABLES)
def test_documents_are_current(name: str) -> None:
    """`make reference` would change nothing."""
    file, render = reference.TABLES[name]
    text = file.read_text(encoding="utf-8")

    assert text == reference.with_table(text, name, render()), "write it with: make reference"


def test_every_option_is_there_once() -> None:
    """By the variable that sets it."""
    table = reference.settings_table()
    variables = [
        f"| `SHUFFLEBANDIT_{section}_{option.name}` |".upper()
        for section, owner in reference.section_types().items()
        for option in fields(owner)
    ]

    assert [1] * len(variables) == [table.upper().count(variable) for variable in variables]


def test_every_option_has_words_of_its_own() -> None:
    """A field without a comment would only repeat what its class is for.

    `limits` is a class of the core, whose docstring speaks for all its fields.
    """
    owners = [t for t in reference.section_types().values() if t.__module__ == settings.__name__]
    silent = [
        f"{owner.__name__}.{option.name}"
        for owner in owners
        for option in fields(owner)
        if option.name not in reference.field_comments(owner)
    ]

    assert [] == silent


def test_words_are_the_comment_directly_above() -> None:
    assert {"told": "Said in two lines."} == reference.field_comments(Sample)


def test_every_metric_is_there() -> None:
    assert defined() == named(reference.metrics_table())


def test_labels_are_told() -> None:
    """Of instruments, of histograms (without their buckets' bound) and of collected families."""
    table = reference.metrics_table()

    assert "| `shufflebandit_consumer_lag_records` | gauge | stage, partition |" in table
    assert "| `shufflebandit_transaction_seconds` | histogram | stage |" in table
    assert "| `shufflebandit_arm_upper` | gauge | experiment, arm |" in table
    assert "| `shufflebandit_gateway_reports_total` | counter | outcome, reason |" in table


def test_only_what_is_between_the_markers_changes() -> None:
    document = "a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb\n"

    assert "a\n<!-- x: begin -->\nnew\n<!-- x: end -->\nb\n" == reference.with_table(
        document, "x", "new"
    )


@pytest.mark.parametrize("document", ["", "<!-- x: begin -->", "<!-- x: end --><!-- x: begin -->"])
def test_missing_markers_are_named(document: str) -> None:
    with pytest.raises(ValueError, match="<!-- x: begin -->"):
        reference.with_table(document, "x", "")


def test_check_fails_on_an_old_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the file and leaves it alone; without --check the file is written."""
    file = tmp_path / "OLD.md"
    file.write_text("<!-- x: begin -->\nold\n<!-- x: end -->\n")
    monkeypatch.setattr(reference, "TABLES", {"x": (file, lambda: "new")})
    monkeypatch.setattr(sys, "argv", ["reference.py", "--check"])
    with pytest.raises(SystemExit) as stopped:
        reference.main()

    assert str(file) in str(stopped.value.code)
    assert "old" in file.read_text()

    monkeypatch.setattr(sys, "argv", ["reference.py"])
    reference.main()

    assert file.read_text() == "<!-- x: begin -->\nnew\n<!-- x: end -->\n"
