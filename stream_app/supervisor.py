"""Child processes that never outlive this one, however it ends. Knows processes, not Kafka.

Each command runs under a small supervisor process, which kills it when the pipe from the parent
closes; and the kernel kills it with the supervisor. Everything here blocks.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

# Arguments: the parent's process id, a folder to delete if the parent vanishes (or ""), a command.
# One byte on standard input: kill the command. End of file, or another parent: the parent is gone.
# A process forked from the parent may hold the pipe open, hence the look at getppid.
SUPERVISOR: Final = """\
import ctypes, os, select, shutil, signal, subprocess, sys, threading
parent, scratch, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
this, orphaned = os.getpid(), False
prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else lambda *_: None

def die_with_supervisor():
    prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG; tied to the forking thread, here the main one
    if os.getppid() != this:
        os._exit(1)

def watch():
    global orphaned
    while os.getppid() == parent and not select.select([0], [], [], 1)[0]:
        pass
    orphaned = os.getppid() != parent or not os.read(0, 1)
    os.kill(child.pid, signal.SIGKILL)

# SIGTERM comes to the whole group and is the command's to obey. Not SIG_IGN: it would inherit that.
signal.signal(signal.SIGTERM, lambda *_: None)
child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=die_with_supervisor)
threading.Thread(target=watch, daemon=True).start()
code = child.wait()
if orphaned and scratch:
    shutil.rmtree(scratch, ignore_errors=True)
os._exit(code if code >= 0 else 128 - code)
"""
COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
NOISE: Final = re.compile(r"\s|$|Picked up|Error: (A fatal|Could not create)")
COMPLAINT: Final = re.compile("ERROR|Error|Exception|Caused by")


def supervised(
    command: list[str], log: Path, scratch: Path | None = None
) -> subprocess.Popen[bytes]:
    """Starts a command that dies with this process, in its own group: no Ctrl-C reaches it."""
    supervisor = [sys.executable, "-I", "-S", "-c", SUPERVISOR, str(os.getpid())]
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
