"""Child processes that never outlive this one, however it ends. Knows processes, not Kafka.

Each command runs under a small process of its own (`supervisor`), which kills it when the pipe
from the parent closes; and the kernel kills it with the supervisor. Everything here blocks.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from stream_app.errors import Unavailable

# Run by its path: a child that must outlast any state of this process imports nothing of it.
_SUPERVISOR: Final = Path(__file__).with_name("supervisor.py")
# A worker is done within 5 s (deploy/OPERATING.md); a crowded machine needs longer.
STOP_S: Final = 20.0
# A worker colours its lines for a terminal; in a message they are in the way.
COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
# Lines that say nothing of the cause: indented ones (a stack trace), and the JVM's own preface.
NOISE: Final = re.compile(r"\s|$|Picked up|Error: (A fatal|Could not create)")
# What Java, Maven, Python and Prometheus have in the lines that name a cause.
COMPLAINT: Final = re.compile("ERROR|Error|Exception|Caused by")
# A line of a log is quoted in one line of ours: a class path of thousands of letters is cut.
MOST_LETTERS: Final = 300


def supervised(
    command: list[str],
    log: Path,
    scratch: Path | None = None,
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Starts a command that dies with this process, in its own group: no Ctrl-C reaches it.

    It runs in `folder`, by default that of its log. `scratch` is deleted if this process vanishes.
    """
    supervisor = [sys.executable, "-I", "-S", str(_SUPERVISOR), str(os.getpid())]
    with log.open("ab") as output:
        return subprocess.Popen(
            [*supervisor, str(scratch or ""), *command],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder or log.parent,
            env=environment,
            start_new_session=True,
        )


def run(command: list[str], log: Path, limit_s: float) -> bool:
    """Whether a command succeeded in time; it is over when this returns."""
    process = supervised(command, log)
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(limit_s)
        return process.returncode == 0
    finally:
        end(process, 0)


def end(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """Ends a supervised command: SIGTERM if there is patience, then SIGKILL. Twice does no harm."""
    assert process.stdin is not None
    if process.stdin.closed:
        return
    with contextlib.suppress(subprocess.TimeoutExpired):
        if patience_s and process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(patience_s)
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(b"k")
    process.stdin.close()
    process.wait()


def complaints(log: Path, offset: int = 0) -> list[str]:
    """The lines of a log that say what went wrong, else all; never none."""
    with log.open("rb") as file:
        file.seek(offset)
        text = COLOUR.sub("", file.read().decode(errors="replace"))
    lines = [line for line in text.splitlines() if not NOISE.match(line)]
    lines = [line for line in lines if COMPLAINT.search(line)] or lines or ["it wrote nothing"]
    return [_shortened(line) for line in lines]


def _shortened(line: str) -> str:
    return line if len(line) < MOST_LETTERS else f"{line[:100]} ... {line[-190:]}"


class Program:
    """A command under its supervisor, with a name for messages and a log; runs once it is made."""

    def __init__(
        self,
        name: str,
        command: list[str],
        log: Path,
        *,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self._command = command
        self._folder = folder
        self._environment = environment
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Again, after it ended."""
        self.process = supervised(
            self._command, self.log, folder=self._folder, environment=self._environment
        )

    @property
    def pid(self) -> int:
        """The command's own process, the supervisor's only child (Linux)."""
        own = self.process.pid
        return int(Path(f"/proc/{own}/task/{own}/children").read_text())

    def check(self) -> None:
        """Raises Unavailable, with what the log says, if it ended by itself."""
        if self.process.poll() is not None:
            raise Unavailable(f"{self.name} ended by itself: {complaints(self.log)[-1]}")

    def kill(self) -> None:
        """SIGKILL, as in a crash."""
        end(self.process, 0)

    def stop(self) -> float:
        """SIGTERM; returns how long it took to end."""
        started = time.monotonic()
        end(self.process, STOP_S)
        return time.monotonic() - started

    def pause(self) -> None:
        """It does nothing until `resume`, while its connections stay: as a machine that stalls."""
        os.killpg(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """It goes on."""
        os.killpg(self.process.pid, signal.SIGCONT)
