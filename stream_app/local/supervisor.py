"""The program that stands between a process and its child: the child never outlives the parent.

Arguments: the parent's process id, a folder to delete if the parent vanishes (or ""), a command.
One byte on standard input: kill the command. End of file, or another parent: the parent is gone.
A process forked from the parent may hold the pipe open, hence the look at `getppid`.

It is run by its path, with nothing but the standard library: never imported by the service.
"""

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG, linux/prctl.h
_LOOK_EVERY_S = 1.0  # whether the parent is still there: how long a child may outlive it


def supervise(parent: int, scratch: str, command: list[str]) -> int:
    """Run the command until it ends or the parent does; returns the exit code, shell style."""
    this = os.getpid()
    # The C library is looked up before the fork: between fork and exec nothing may be loaded.
    prctl: Callable[..., Any] = (
        ctypes.CDLL(None).prctl if sys.platform == "linux" else lambda *_: None
    )

    def die_with_supervisor() -> None:
        # The signal is tied to the thread that forks, here the main one.
        prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != this:
            os._exit(1)

    # SIGTERM comes to the whole group and is the command's to obey. Not SIG_IGN: it would inherit
    # that.
    signal.signal(signal.SIGTERM, lambda *_: None)
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        preexec_fn=die_with_supervisor,  # noqa: PLW1509  # this process has one thread so far
    )
    orphaned = threading.Event()

    def watch() -> None:
        while os.getppid() == parent and not select.select([0], [], [], _LOOK_EVERY_S)[0]:
            pass
        if os.getppid() != parent or not os.read(0, 1):
            orphaned.set()
        os.kill(child.pid, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    code = child.wait()
    if orphaned.is_set() and scratch:
        shutil.rmtree(scratch, ignore_errors=True)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    # Not sys.exit: the watching thread may still be reading.
    os._exit(supervise(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
