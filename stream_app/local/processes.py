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
from pathlib import Path
from typing import Final

_SUPERVISOR: Final = Path(__file__).with_name("supervisor.py")
COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
NOISE: Final = re.compile(r"\s|$|Picked up|Error: (A fatal|Could not create)")
COMPLAINT: Final = re.compile("ERROR|Error|Exception|Caused by")


def supervised(
    command: list[str], log: Path, scratch: Path | None = None
) -> subprocess.Popen[bytes]:
    """Starts a command that dies with this process, in its own group: no Ctrl-C reaches it."""
    supervisor = [sys.executable, "-I", "-S", str(_SUPERVISOR), str(os.getpid())]
    with log.open("ab") as output:
        return subprocess.Popen(
            [*supervisor, str(scratch or ""), *command],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=log.parent,
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
    """Ends a supervised command: SIGTERM if there is patience, then SIGKILL."""
    assert process.stdin is not None
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
    return [line if len(line) < 300 else f"{line[:100]} ... {line[-190:]}" for line in lines]
