"""`experiment`: create, list, show and stop, and what is refused."""

import asyncio
import json
from pathlib import Path

import orjson
import pytest

from stream_app.local.broker import LocalBroker
from stream_app.settings import KafkaSettings
from tests.commands.conftest import Run
from tests.support.transcripts import Writer, fresh_settings, spring, write_run

pytestmark = pytest.mark.kafka


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
    file.write_text(file.read_text().replace("400", "401"))
    refused = run("experiment", "create", file, kafka=settings)

    assert (2, "") == (refused.code, refused.out)
    assert refused.err == (
        "shufflebandit: experiment 'spring' exists with horizon = 400, this file has 401; "
        "a definition cannot be changed, use another name\n"
    )


def test_a_decided_experiment_is_shown(settings: KafkaSettings, run: Run) -> None:
    """In words with its guarantee; as JSON exactly as the record stands on the topic."""
    assignment = write_run(settings)
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
    write_run(settings, batches=1)
    shown = run("experiment", "show", "spring", kafka=settings)

    assert "No decision yet: 2 of 2 arms are left." in shown.out
    assert "[0.0000, 1.0000]" in shown.out
    assert "collecting" in shown.out


def test_missing_topics_are_exit_code_3(broker: LocalBroker, run: Run, file: Path) -> None:
    settings = fresh_settings(broker)
    for arguments in (("experiment", "create", file), ("experiment", "list"), ("audit", "spring")):
        found = run(*arguments, kafka=settings)

        assert (3, "") == (found.code, found.out)
        assert "missing on" in found.err
        assert "create them with: shufflebandit topics create" in found.err
        assert 1 == found.err.count("\n")


def test_the_json_of_show_is_whatever_stands_there(settings: KafkaSettings, run: Run) -> None:
    """Even a record that cannot be used; in words it is an error of one line."""
    write_run(settings)
    strange = orjson.dumps({"version": 1, "strange": True})
    asyncio.run(Writer(settings, spring()).transaction("assignments", strange))
    raw = run("experiment", "show", "spring", "--json", kafka=settings)
    text = run("experiment", "show", "spring", kafka=settings)

    assert (0, strange.decode() + "\n") == (raw.code, raw.out)
    assert 2 == text.code
    assert "a record cannot be read: definition: missing" in text.err
