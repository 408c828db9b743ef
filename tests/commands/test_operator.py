"""topics, experiment, verify, audit: what they print, and their exit codes."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from aiokafka import TopicPartition
from aiokafka.admin import NewTopic, RecordsToDelete

from stream_app import kafka
from stream_app.definitions import load_experiment
from stream_app.local.broker import LocalBroker
from stream_app.settings import KafkaSettings
from stream_app.wire.assignment import Assignment
from tests.commands.conftest import Run
from tests.support.transcripts import Writer, edited, fresh_settings, play, spring

pytestmark = pytest.mark.kafka

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


def write(settings: KafkaSettings, batches: int = 1000) -> Assignment:
    """A correct run on the topics; its last assignment."""
    done = play(spring(), batches)
    writer = Writer(settings, done.experiment)
    folded = asyncio.run(writer.transcript(done))
    return writer.assignment(done, folded)


def test_topics_are_created_once(broker: LocalBroker, run: Run) -> None:
    """What was created is named; the second time, that all exist."""
    settings = fresh_settings(broker)
    first = run("topics", "create", "--partitions", 2, kafka=settings)
    deadline = time.monotonic() + 20
    while run("experiment", "list", kafka=settings).code and time.monotonic() < deadline:
        time.sleep(0.1)
    second = run("topics", "create", "--partitions", 2, kafka=settings)
    other = run("topics", "create", "--partitions", 3, kafka=settings)

    assert [
        f"created {settings.topic_prefix}.{name}" for name in kafka.TOPICS
    ] == first.out.splitlines()
    assert f"all topics of {settings.topic_prefix} exist already\n" == second.out
    assert 2 == other.code
    assert "--partitions 3: the topics exist with 2" in other.err


def test_create_list_show_stop(settings: KafkaSettings, run: Run, file: Path) -> None:
    """The life of an experiment without an agent."""
    assert "no experiments yet" in run("experiment", "list", kafka=settings).out
    assert "experiment spring created\n" == run("experiment", "create", file, kafka=settings).out
    again = run("experiment", "create", file, kafka=settings)
    assert (0, True) == (again.code, "exists already with the same definition" in again.out)
    shown = run("experiment", "show", "spring", kafka=settings)
    assert "spring: waiting; the agent has not answered yet" in shown.out
    assert "(0.5, 0.000001)-differentially private" in shown.out
    assert 3 == run("experiment", "show", "spring", "--json", kafka=settings).code
    assert "told to stop" in run("experiment", "stop", "spring", kafka=settings).out
    assert "stopped before" in run("experiment", "stop", "spring", kafka=settings).out
    listed = json.loads(run("experiment", "list", "--json", kafka=settings).out)
    assert listed == {
        "experiments": [
            {
                "name": "spring",
                "state": "stopping",
                "phase": None,
                "users": None,
                "serve": None,
                "guarantee": "expected",
            }
        ]
    }


def test_changed_content_is_refused(settings: KafkaSettings, run: Run, file: Path) -> None:
    """One line that names the setting and the remedy."""
    run("experiment", "create", file, kafka=settings)
    file.write_text(FILE.replace("400", "401"))
    refused = run("experiment", "create", file, kafka=settings)

    assert (2, "") == (refused.code, refused.out)
    assert refused.err == (
        "shufflebandit: experiment 'spring' exists with horizon = 400, this file has 401; "
        "a definition cannot be changed, use another name\n"
    )


def test_a_decided_experiment_is_shown(settings: KafkaSettings, run: Run) -> None:
    """In words with its guarantee; as JSON exactly as the record stands on the topic."""
    assignment = write(settings)
    shown = run("experiment", "show", "spring", kafka=settings)
    raw = run("experiment", "show", "spring", "--json", kafka=settings)
    listed = run("experiment", "list", kafka=settings)

    assert assignment.encode() + b"\n" == raw.out.encode()
    assert "spring: decided, phase 2, 100 users of a horizon of 400" in shown.out
    assert "eliminated" in shown.out
    assert "nothing is promised of the winner's name" in shown.out
    assert ["spring", "decided", "2", "100", "arm-0", "expected"] == listed.out.split()[-6:]


def test_a_running_experiment_is_shown(settings: KafkaSettings, run: Run) -> None:
    """Before any batch of the second arm: a mean and an interval for the first only."""
    write(settings, batches=1)
    shown = run("experiment", "show", "spring", kafka=settings)

    assert "No decision yet: 2 of 2 arms are left." in shown.out
    assert "[0.0000, 1.0000]" in shown.out
    assert "collecting" in shown.out


@pytest.mark.parametrize("command", ["verify", "audit"])
def test_checks_pass(settings: KafkaSettings, run: Run, command: str) -> None:
    """One sentence and a table, or JSON."""
    write(settings)
    text = run(command, "spring", kafka=settings)
    found = run(command, "spring", "--json", kafka=settings)

    assert (0, 0) == (text.code, found.code)
    assert "(4 batches, 100 reports)" in text.out.splitlines()[-1]
    assert {
        "experiment": "spring",
        "batches": 4,
        "reports": 100,
        "differences": [],
        "unchecked": [],
    } == json.loads(found.out)


def test_an_audit_after_the_reports_were_deleted(settings: KafkaSettings, run: Run) -> None:
    """It says so, checks what is left to check, and finds nothing wrong."""
    write(settings)

    async def delete() -> None:
        partitions = await kafka.partition_count(settings)
        place = TopicPartition(
            kafka.topic(settings, "reports"), kafka.partition_of("spring", partitions)
        )
        async with kafka.admin(settings) as admin:
            await admin.delete_records({place: RecordsToDelete(-1)})

    asyncio.run(delete())
    text = run("audit", "spring", kafka=settings)
    found = run("audit", "spring", "--json", kafka=settings)

    assert (0, 0) == (text.code, found.code)
    assert "public sums, and no batch ever showed two values\n" in text.out
    assert "counted again from their reports: 0 batches, 0 reports\n" in text.out
    assert "not counted again: 4 batches, whose reports were deleted" in text.out
    assert 4 == len(json.loads(found.out)["unchecked"])


@pytest.mark.parametrize("command", ["verify", "audit"])
def test_a_difference_is_exit_code_1(settings: KafkaSettings, run: Run, command: str) -> None:
    """It is listed, and said in one line on standard error."""
    assignment = write(settings)
    wrong = edited(assignment.encode(), phase=7)
    asyncio.run(Writer(settings, spring()).transaction("assignments", wrong))
    text = run(command, "spring", kafka=settings)
    found = run(command, "spring", "--json", kafka=settings)

    line = "assignment.phase is 7, recomputed 2"
    assert (1, 1) == (text.code, found.code)
    assert f"difference: {line}\n" in text.out
    assert f"shufflebandit: experiment spring: 1 difference, first: {line}\n" == text.err
    assert [line] == json.loads(found.out)["differences"]


@pytest.mark.parametrize(
    "arguments",
    [("experiment", "show"), ("experiment", "stop"), ("verify",), ("audit",)],
    ids=" ".join,
)
def test_an_unknown_experiment_is_exit_code_2(
    settings: KafkaSettings, run: Run, arguments: tuple[str, ...]
) -> None:
    found = run(*arguments, "nobody", kafka=settings)

    assert (2, "") == (found.code, found.out)
    assert found.err.startswith("shufflebandit: experiment 'nobody': not known on ")
    assert 1 == found.err.count("\n")


def test_missing_topics_are_exit_code_3(broker: LocalBroker, run: Run, file: Path) -> None:
    settings = fresh_settings(broker)
    for arguments in (("experiment", "create", file), ("experiment", "list"), ("audit", "spring")):
        found = run(*arguments, kafka=settings)

        assert (3, "") == (found.code, found.out)
        assert "missing on" in found.err
        assert "create them with: shufflebandit topics create" in found.err
        assert 1 == found.err.count("\n")


def test_mismatched_partitions_are_exit_code_2(broker: LocalBroker, run: Run) -> None:
    settings = fresh_settings(broker)
    asyncio.run(_mixed(settings))
    for arguments in (("experiment", "list"), ("verify", "x"), ("topics", "create")):
        found = run(*arguments, kafka=settings)

        assert 2 == found.code
        assert "topics have different partition counts" in found.err
        assert 1 == found.err.count("\n")


async def _mixed(settings: KafkaSettings) -> None:
    wanted = [NewTopic(kafka.topic(settings, n), 1 + (n == "sums"), 1) for n in kafka.TOPICS]
    async with kafka.admin(settings) as admin, asyncio.timeout(20):
        await admin.create_topics(wanted)
        while not {topic.name for topic in wanted} <= set(await admin.list_topics()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


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


def test_the_json_of_show_is_whatever_stands_there(settings: KafkaSettings, run: Run) -> None:
    """Even a record that cannot be used; in words it is an error of one line."""
    write(settings)
    strange = orjson.dumps({"version": 1, "strange": True})
    asyncio.run(Writer(settings, spring()).transaction("assignments", strange))
    raw = run("experiment", "show", "spring", "--json", kafka=settings)
    text = run("experiment", "show", "spring", kafka=settings)

    assert (0, strange.decode() + "\n") == (raw.code, raw.out)
    assert 2 == text.code
    assert "a record cannot be read: definition: missing" in text.err
