"""`make evidence` writes what it saw, and keeps the rows of what it did not run."""

from pathlib import Path

from tests.evidence import ATTACKS, BEGIN, END, Attack, Outcome, run, write

ROOT = Path(__file__).parent.parent


def outcome(name: str, *lines: str, passed: bool = True) -> Outcome:
    return Outcome(name, ATTACKS[name].command, passed, 12.3, lines)


def test_rows_are_replaced_by_newer_ones_of_the_same_command() -> None:
    """The others stay."""
    first = write([outcome("chaos", "old"), outcome("fuzz", "a | b")], f"x{BEGIN}{END}y", "abc")
    second = write([outcome("chaos", "new", passed=False)], first, "def")

    assert "old" not in second
    assert "a \\| b" in second
    assert "| **failed** | 12 s | new |" in second
    assert second.startswith(f"x{BEGIN}")
    assert second.endswith(f"{END}y")


def test_the_document_has_its_place() -> None:
    """Both markers stand in RESULTS.md, in their order."""
    text = (ROOT / "tests" / "RESULTS.md").read_text()

    assert text.count(BEGIN) == text.count(END) == 1
    assert text.index(BEGIN) < text.index(END)


def test_a_command_that_fails_is_written_down_as_failed() -> None:
    found = run("broken", Attack(("tests.no_such_module",)))

    assert not found.passed
    assert "No module named tests.no_such_module" in found.lines[-1]
