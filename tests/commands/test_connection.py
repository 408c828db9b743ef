"""What commands that talk to Kafka share: settings, and one line where no Kafka answers."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stream_app.settings import KafkaSettings
from tests.commands.conftest import Run

pytestmark = pytest.mark.kafka


def test_settings_come_from_file_environment_and_option(
    settings: KafkaSettings, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line's --bootstrap is over the file named by SHUFFLEBANDIT_CONFIG."""
    config = tmp_path / "settings.toml"
    config.write_text('[kafka]\nbootstrap = "127.0.0.1:1"\nconnect_timeout_s = 1\n')
    monkeypatch.setenv("SHUFFLEBANDIT_CONFIG", str(config))
    alone = run("experiment", "list")
    with_option = run("experiment", "list", kafka=settings)

    assert (3, True) == (alone.code, "'127.0.0.1:1'" in alone.err)
    assert 0 == with_option.code


@pytest.fixture
def nowhere() -> Iterator[dict[str, str]]:
    """Addresses where no Kafka is: one refuses, one takes the connection and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield {"refused": "127.0.0.1:1", "mute": f"127.0.0.1:{server.getsockname()[1]}"}


@pytest.mark.parametrize("kind", ["refused", "mute"])
def test_no_kafka_is_one_line(nowhere: dict[str, str], file: Path, kind: str) -> None:
    """Exit code 3, within 12 s plus the interpreter's start, and nothing else on either stream."""
    commands = [
        ["topics", "create"],
        ["experiment", "create", str(file)],
        ["audit", "x"],
    ]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SHUFFLEBANDIT")}
    environment["SHUFFLEBANDIT_LIMITS_MAX_HONEST_FRACTION"] = "1"  # as the file says
    started = time.monotonic()
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "stream_app", *command, "--bootstrap", nowhere[kind]],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for command in commands
    ]
    for process in running:
        out, err = process.communicate(timeout=60)

        assert (3, "") == (process.returncode, out), err
        assert err == (
            f"shufflebandit: kafka.bootstrap = '{nowhere[kind]}': no Kafka answers there; check "
            "the address and security_protocol, or start a local one with: shufflebandit broker\n"
        )
    assert time.monotonic() - started < 25  # three interpreters start at once
