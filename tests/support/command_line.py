"""The command line as a process of its own, as a user runs it."""

import os
import subprocess
import sys


def run(*arguments: object, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stream_app", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "100"},
    )
