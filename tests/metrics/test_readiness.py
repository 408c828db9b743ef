"""Ready only while the stages do their work, and no worker without its endpoint."""

import socket
import subprocess
import sys
import time

from stream_app import agent, shuffler
from stream_app.metrics.instruments import Metrics
from stream_app.runtime.runner import Runner
from stream_app.runtime.session import Session
from stream_app.runtime.stage import Stage
from stream_app.settings import Settings


def session() -> Session:
    settings = Settings()
    stage = Stage(
        "shuffle", "reports", "assignments", False, "group", "", agent.EliminationPartition
    )
    return Session(settings.kafka, stage, Metrics().stage("shuffle"))


def test_not_ready_before_it_is_connected() -> None:
    """A runner without a session names what it waits for."""
    runner: Runner = shuffler.make_runner(Settings())

    assert runner.unready() == "shuffle: a connection to Kafka"


def test_ready_with_all_partitions_open_and_transactions_through() -> None:
    """In the order of a life: joined, opened, a slow transaction, Kafka away."""
    life = session()
    assert life.unready() == "its share of the partitions"

    life._joined = True
    life._assigned = {1, 2}
    assert life.unready() == "2 partitions to be opened"

    life._assigned = set()
    assert life.unready() == ""

    life._outage.begun = [time.monotonic()]
    assert life.unready() == ""

    life._outage.begun = [time.monotonic(), time.monotonic() - 6]
    assert life.unready() == "a transaction to go through"

    life._outage.trouble.begins("Kafka is away")
    assert life.unready() == "Kafka is away"


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
