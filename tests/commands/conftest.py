"""Commands as a user runs them: arguments in, exit code and what is printed out."""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from stream_app import cli
from stream_app.definitions import load_experiment
from stream_app.local.broker import LocalBroker
from stream_app.settings import KafkaSettings
from tests.support.transcripts import fresh_settings, make_topics, spring


@dataclass(frozen=True)
class Result:
    """What a command left."""

    code: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command line in this process, with its handling of errors."""

    def command(*arguments: object, kafka: KafkaSettings | None = None) -> Result:
        if kafka is not None:
            arguments = (*arguments, "--bootstrap", kafka.bootstrap)
            monkeypatch.setenv("SHUFFLEBANDIT_KAFKA_TOPIC_PREFIX", kafka.topic_prefix)
        monkeypatch.setattr(sys, "argv", ["shufflebandit", *map(str, arguments)])
        try:
            cli.main()
            code = 0
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        printed = capsys.readouterr()
        return Result(code, printed.out, printed.err)

    return command


@pytest.fixture
def settings(broker: LocalBroker) -> KafkaSettings:
    """Topics of the test's own."""
    made = fresh_settings(broker)
    asyncio.run(make_topics(made))
    return made


@pytest.fixture(autouse=True)
def _honest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transcripts' experiment counts on everybody; the default limits leave a margin."""
    monkeypatch.setenv("SHUFFLEBANDIT_LIMITS_MAX_HONEST_FRACTION", "1")


FILE = """
name = "spring"
arms = ["arm-0", "arm-1"]
horizon = 400
attribution_s = 0
[privacy]
epsilon = "0.5"
delta = "0.000001"
honest_fraction = 1
[agent]
batch_size = 20
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "spring.toml"
    path.write_text(FILE)
    assert spring() == load_experiment(path)
    return path
