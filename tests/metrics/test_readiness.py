"""Ready only while the stages do their work, and no worker without its endpoint."""

import socket
import subprocess
import sys

from stream_app import shuffler
from stream_app.runtime.runner import Runner
from stream_app.settings import Settings


def test_not_ready_before_it_is_connected() -> None:
    """A runner without a session names what it waits for."""
    runner: Runner = shuffler.make_runner(Settings())

    assert runner.unready() == "shuffle: a connection to Kafka"


def test_port_in_use_ends_the_worker_at_once() -> None:
    """Before Kafka is asked for anything: one line, exit code 3."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        command = [sys.executable, "-m", "stream_app", "run", "--roles", "agent"]
        command += ["--metrics-port", port, "--bootstrap", "127.0.0.1:1"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)

    assert done.returncode == 3
    (line,) = done.stderr.splitlines()
    assert f"metrics.port = {port}" in line
    assert "--metrics-port" in line
