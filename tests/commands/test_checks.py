"""`verify` and `audit`: what they print, and their exit codes."""

import asyncio
import json

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import RecordsToDelete

from stream_app import kafka
from stream_app.settings import KafkaSettings
from tests.commands.conftest import Run
from tests.support.transcripts import Writer, edited, spring, write_run

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize("command", ["verify", "audit"])
def test_checks_pass(settings: KafkaSettings, run: Run, command: str) -> None:
    """One sentence and a table, or JSON."""
    write_run(settings)
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
    write_run(settings)

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
    assignment = write_run(settings)
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
