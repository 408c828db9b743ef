"""`make evidence`: the long forms of the attacks, and what they showed, written to RESULTS.md.

CI runs a short form of each with a fixed seed. Here each runs as its own command, with progress on
the terminal; its last lines, its time and the commit stand in RESULTS.md afterwards, between two
markers. A run that fails is written down as failed, and this ends with exit code 1.

    python -m tests.evidence                 # all: about an hour and a half
    python -m tests.evidence chaos fuzz      # some
"""

import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

RESULTS = Path(__file__).with_name("RESULTS.md")
BEGIN = "<!-- evidence: begin -->"
END = "<!-- evidence: end -->"
# Of what a command printed at its end: enough for the figures of each of them.
_LAST_LINES = 4


@dataclass(frozen=True)
class Attack:
    """One long run, as a module and its arguments."""

    arguments: tuple[str, ...]

    @property
    def command(self) -> str:
        """As one would type it."""
        return f"python -m {' '.join(self.arguments)}"


ATTACKS: Mapping[str, Attack] = {
    "chaos": Attack(("tests.integration.chaos.chaos", "--minutes", "11.5", "--seed", "11")),
    "fuzz": Attack(("tests.integration.fuzz.fuzz", "--inputs", "1000000", "--seed", "1")),
    "soak": Attack(("tests.integration.load", "soak", "--rate", "1000")),
    "overload": Attack(("tests.integration.load", "overload", "--minutes", "1")),
    "noninterference": Attack(("pytest", "-q", "tests/noninterference")),
}


@dataclass(frozen=True)
class Outcome:
    """What one run showed."""

    name: str
    command: str
    passed: bool
    seconds: float
    lines: tuple[str, ...]

    def row(self) -> str:
        """Its row of the table."""
        verdict = "passed" if self.passed else "**failed**"
        said = "<br>".join(line.replace("|", "\\|") for line in self.lines)
        return f"| `{self.command}` | {verdict} | {self.seconds:,.0f} s | {said} |"


def run(name: str, attack: Attack) -> Outcome:
    """Run it, showing what it prints as it comes."""
    started = time.monotonic()
    command = [sys.executable, "-m", *attack.arguments]
    lines: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if line.strip():
                lines.append(line.strip())
    taken = time.monotonic() - started
    return Outcome(
        name, attack.command, process.returncode == 0, taken, tuple(lines[-_LAST_LINES:])
    )


def write(outcomes: list[Outcome], text: str, commit: str) -> str:
    """RESULTS.md with these outcomes in place of those of an earlier run."""
    before, rest = text.split(BEGIN, 1)
    kept, after = rest.split(END, 1)
    commands = {outcome.command for outcome in outcomes}
    older = [
        line
        for line in kept.splitlines()
        if line.startswith("| `") and line.split("`")[1] not in commands
    ]
    rows = [
        "",
        f"By `make evidence`, the newest rows at commit {commit}:",
        "",
        "| command | verdict | time | its last lines |",
        "|---|---|---|---|",
        *older,
        *(outcome.row() for outcome in outcomes),
        "",
    ]
    return before + BEGIN + "\n".join(rows) + END + after


def main() -> None:
    """The command."""
    names = sys.argv[1:] or list(ATTACKS)
    unknown = [name for name in names if name not in ATTACKS]
    if unknown:
        sys.exit(f"evidence: {', '.join(unknown)}: must be of {', '.join(ATTACKS)}")
    outcomes = []
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    for number, name in enumerate(names, 1):
        print(f"evidence {number} of {len(names)}: {ATTACKS[name].command}", flush=True)
        outcomes.append(run(name, ATTACKS[name]))
        RESULTS.write_text(write(outcomes, RESULTS.read_text(), commit))
    sys.exit(0 if all(outcome.passed for outcome in outcomes) else 1)


if __name__ == "__main__":
    main()
