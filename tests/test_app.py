"""The worker as a process: it starts, shows, survives an outage, and stops within 5 s."""

import asyncio
import dataclasses
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stream_app import kafka
from stream_app.core.agents import agent_for
from stream_app.core.state import Status
from stream_app.local.broker import LocalBroker, free_port
from stream_app.logs import LineFormatter, RateLimit, describe
from stream_app.settings import KafkaSettings
from stream_app.wire.assignment import Assignment
from tests.core.build import experiment

ROOT = Path(__file__).parents[1]
COMMAND = (
    "from stream_app import cli; from stream_app.commands.run import run; "
    "cli.cli.add_command(run); cli.main()"
)
DEFINED = experiment(horizon=10_000, means=(0.7, 0.2))
BEGUN = agent_for(DEFINED).begin()

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts `shufflebandit run` in an empty folder; nothing outlives the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, code: str = COMMAND, **variables: str) -> subprocess.Popen[str]:
        home = tmp_path / f"worker-{len(started)}"
        home.mkdir()
        worker = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            cwd=home,
            env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
            stderr=(tmp_path / f"{home.name}.log").open("w"),
            text=True,
        )
        started.append(worker)
        return worker

    yield start
    for worker in started:
        worker.kill()
        worker.wait()


def lines(tmp_path: Path, number: int = 0) -> list[str]:
    return (tmp_path / f"worker-{number}.log").read_text().splitlines()


def get(port: int, path: str) -> tuple[int, Any]:
    """Status and JSON; 0 while nobody listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
    except OSError:
        return 0, None


def until(holds: Callable[[], bool], within_s: float = 20) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)


def ended(worker: subprocess.Popen[str], number: int = signal.SIGTERM) -> tuple[int, float]:
    """The exit code after a signal, and how long it took."""
    began = time.monotonic()
    worker.send_signal(number)
    return worker.wait(30), time.monotonic() - began


def service(bootstrap: str, name: str) -> KafkaSettings:
    return KafkaSettings(bootstrap=bootstrap, topic_prefix=f"app-{name}")


def variables(settings: KafkaSettings) -> dict[str, str]:
    prefix = settings.topic_prefix
    return {
        "SHUFFLEBANDIT_KAFKA_TOPIC_PREFIX": prefix,
        "SHUFFLEBANDIT_SHUFFLE_GROUP": f"{prefix}-shuffle",
        "SHUFFLEBANDIT_AGENT_GROUP": f"{prefix}-agent",
        "WEB_PORT": "1",  # faust's own variable must not count
    }


async def publish(settings: KafkaSettings, assignment: Assignment) -> None:
    name = assignment.experiment.name
    async with kafka.producer(settings) as producer:
        await producer.send_and_wait(
            kafka.topic(settings, "assignments"),
            assignment.encode(),
            key=name.encode(),
            partition=kafka.partition_of(name, 2),
        )


async def on_broker(settings: KafkaSettings) -> tuple[set[str], set[str]]:
    """Its topics and its groups."""
    async with kafka.admin(settings) as client:
        groups = {str(group[0]) for group in await client.list_consumer_groups()}
        return set(await client.list_topics()), groups


@pytest.mark.kafka
async def test_monitor(broker: LocalBroker, start: Start, tmp_path: Path) -> None:
    """The API follows the assignments; the monitor leaves no topic, group or folder behind."""
    settings = service(broker.bootstrap, "monitor")
    await kafka.create_topics(settings, 2, 1)
    await publish(settings, Assignment(DEFINED, BEGUN))
    before = await on_broker(settings)
    port = free_port()
    worker = start(
        "run", "--roles", "monitor", "--bootstrap", broker.bootstrap, "--web-port", str(port),
        **variables(settings),
    )  # fmt: skip
    until(lambda: get(port, "/api/experiments/test")[0] == 200)

    assert get(port, "/api/experiments/test")[1]["state"] == "running"
    assert [entry["name"] for entry in get(port, "/api/experiments")[1]] == ["test"]
    assert get(port, "/api/experiments/nobody") == (404, {"error": "no experiment 'nobody'"})
    assert get(port, "/healthz") == (200, {"kafka": True, "invalid": 0})

    decided = dataclasses.replace(BEGUN, status=Status.DECIDED, open=(), serve=0)
    await publish(settings, Assignment(DEFINED, decided))
    until(lambda: get(port, "/api/experiments/test")[1]["state"] == "decided")

    assert get(port, "/api/experiments/test")[1]["serve"] == "arm-0"
    with socket.create_connection(("127.0.0.1", port)) as slow:
        slow.sendall(b"GET /api")
        code, took = ended(worker)
    assert code == 0
    assert took < 5
    assert await on_broker(settings) == before
    assert not list((tmp_path / "worker-0").iterdir())
    assert [line.split(" INFO ")[1] for line in lines(tmp_path)] == ["running: monitor", "stopping"]


@pytest.mark.kafka
async def test_all_roles(broker: LocalBroker, start: Start, tmp_path: Path) -> None:
    """Two workers on one machine; SIGINT ends one, SIGTERM the other; no topic is added."""
    settings = service(broker.bootstrap, "all")
    await kafka.create_topics(settings, 2, 1)
    port = free_port()
    common = ("run", "--bootstrap", broker.bootstrap)
    first = start(*common, "--web-port", str(port), **variables(settings))
    second = start(*common, "--roles", "shuffle,agent", **variables(settings))
    until(lambda: get(port, "/healthz") == (200, {"kafka": True, "invalid": 0}))
    until(lambda: any("running: shuffle, agent" in line for line in lines(tmp_path, 1)))
    await asyncio.sleep(1)
    stops = [ended(first, signal.SIGINT), ended(second)]

    assert [0, 0] == [code for code, _ in stops]
    assert max(took for _, took in stops) < 5
    topics, _ = await on_broker(settings)
    prefix = settings.topic_prefix
    assert {f"{prefix}.{name}" for name in kafka.TOPICS} == {t for t in topics if prefix in t}
    assert not [t for t in topics if "leader" in t or "assignor" in t or "changelog" in t]


@pytest.mark.slow
@pytest.mark.kafka
async def test_outage(broker: LocalBroker, start: Start, tmp_path: Path) -> None:
    """Kafka goes away: the worker says so once, shows what it knows, goes on, and can stop."""
    with LocalBroker() as local:
        settings = service(local.bootstrap, "outage")
        await kafka.create_topics(settings, 2, 1)
        await publish(settings, Assignment(DEFINED, BEGUN))
        port = free_port()
        worker = start(
            "run", "--bootstrap", local.bootstrap, "--web-port", str(port), **variables(settings)
        )
        until(lambda: get(port, "/api/experiments/test")[0] == 200)
        local.kill()
        until(lambda: get(port, "/healthz")[1]["kafka"] is False)
        await asyncio.sleep(3)

        assert get(port, "/api/experiments/test")[0] == 200
        said = lines(tmp_path)
        assert len([line for line in said if "monitor: Kafka is away" in line]) == 1
        assert len({line.split(" ", 3)[3] for line in said}) == len(said) <= 30

        local.start()
        until(lambda: get(port, "/healthz")[1]["kafka"] is True, within_s=30)
        other = dataclasses.replace(DEFINED, name="after")
        await publish(settings, Assignment(other, agent_for(other).begin()))
        until(lambda: get(port, "/api/experiments/after")[0] == 200)
        local.kill()
        await asyncio.sleep(1)
        code, took = ended(worker)

        assert code == 0
        assert took < 5


@pytest.mark.kafka
def test_port_in_use(broker: LocalBroker, start: Start, tmp_path: Path) -> None:
    """One line that names the port, the setting and the remedy; exit code 3."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        worker = start("run", "--bootstrap", broker.bootstrap, "--web-port", str(port))

        assert worker.wait(20) == 3
    (line,) = lines(tmp_path)
    assert line.startswith(f"shufflebandit: monitor.port = {port}: cannot listen on 127.0.0.1")
    assert "--web-port" in line


def test_no_kafka(start: Start, tmp_path: Path) -> None:
    """One line, exit code 3."""
    worker = start("run", "--roles", "agent", "--bootstrap", f"127.0.0.1:{free_port()}")

    assert worker.wait(30) == 3
    (line,) = lines(tmp_path)
    assert "no Kafka answers there" in line


@pytest.mark.kafka
def test_missing_topics(broker: LocalBroker, start: Start, tmp_path: Path) -> None:
    """One line with the command that creates them, exit code 3."""
    worker = start(
        "run", "--roles", "shuffle", "--bootstrap", broker.bootstrap,
        SHUFFLEBANDIT_KAFKA_TOPIC_PREFIX="app-missing",
    )  # fmt: skip

    assert worker.wait(30) == 3
    (line,) = lines(tmp_path)
    assert "topics create" in line


def test_unknown_role(start: Start, tmp_path: Path) -> None:
    """One line, exit code 2."""
    worker = start("run", "--roles", "shuffle,boss")

    assert worker.wait(20) == 2
    assert [
        "shufflebandit: --roles 'boss': must be one or more of shuffle,agent,monitor,gateway"
    ] == lines(tmp_path)


PARTS = """
import asyncio, sys
from stream_app import app, logs
from stream_app.settings import Settings

class Waits:
    async def run(self, stop):
        await stop.wait()
        print("stopped in order", file=sys.stderr)

class Fails:
    async def run(self, stop):
        await asyncio.sleep(0.2)
        return 1 / 0

class Ends:
    async def run(self, stop):
        await asyncio.sleep(0.2)

class Hangs:
    async def run(self, stop):
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                pass

async def main(part, stop_s):
    application = app.build(Settings(), frozenset())
    application.runs({app.Role.AGENT: Waits(), app.Role.SHUFFLE: part()})
    return await app.run_worker(application, asyncio.ensure_future(asyncio.sleep(stop_s)))

logs.setup()
sys.exit(asyncio.run(main(globals()[sys.argv[1]], float(sys.argv[2]))))
"""


@pytest.mark.parametrize(
    ("part", "error"),
    [
        ("Fails", "ZeroDivisionError: division by zero (<string>:14 run)"),
        ("Ends", "RuntimeError: ended by itself"),
    ],
)
def test_a_part_that_fails_ends_the_worker(
    start: Start, tmp_path: Path, part: str, error: str
) -> None:
    """Exit code 1 and one line; the other part stops in order."""
    worker = start(part, "60", code=PARTS)

    assert worker.wait(20) == 1
    running, failed, stopped = lines(tmp_path)
    assert running.endswith("running: agent, shuffle")
    assert failed.endswith(f" CRITICAL shuffle: failed, the worker stops: {error}")
    assert stopped == "stopped in order"


def test_a_part_that_hangs_is_ended_by_force(start: Start, tmp_path: Path) -> None:
    """Within 5 s of the request, with exit code 0."""
    worker = start("Hangs", "0.5", code=PARTS)
    until(lambda: any("stopping" in line for line in lines(tmp_path)))
    began = time.monotonic()

    assert worker.wait(20) == 0
    assert time.monotonic() - began < 5


def record(message: str, *arguments: object, name: str = "aiokafka.conn") -> logging.LogRecord:
    return logging.LogRecord(name, logging.ERROR, "", 1, message, arguments, None)


def test_a_message_that_goes_on_is_logged_once() -> None:
    """And again after a minute of silence; other libraries are not limited."""
    now = [0.0]
    limit = RateLimit("aiokafka", 60, lambda: now[0])
    passed = []
    for now[0] in (0.0, 1.0, 59.0, 118.0, 178.0):
        passed.append(limit.filter(record("node %s is away", now[0])))

    assert passed == [True, False, False, False, True]
    assert limit.filter(record("something else"))
    assert limit.filter(record("node %s is away", 1, name="stream_app"))


def test_lines_are_single() -> None:
    """A traceback and a table become one line."""
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        entry = record("a\ntable")
        entry.exc_info = (type(error), error, error.__traceback__)
        shown = LineFormatter("%(levelname)s %(message)s").format(entry)
        where = describe(error).partition("(")[2]

    assert shown == f"ERROR a table ValueError: two lines ({where}"
    assert "test_app.py" in where
