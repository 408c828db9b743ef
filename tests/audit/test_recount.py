"""verify and audit: silent on correct logs, and each single change to one is found."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest
from aiokafka import TopicPartition
from aiokafka.admin import RecordsToDelete

from stream_app import kafka
from stream_app.audit.recount import audit
from stream_app.audit.verify import CheckResult, verify
from stream_app.core.state import Status
from stream_app.errors import ConfigurationError
from stream_app.local.broker import LocalBroker
from stream_app.wire.report import encode_report
from tests.support.transcripts import (
    Transcript,
    Writer,
    edited,
    fresh_settings,
    make_topics,
    play,
    reissued,
    spring,
)


def clutter(done: Transcript, batch_id: str, bits: int) -> None:
    """Records that a stage must drop: malformed, foreign, out of range, unknown, oversized."""
    new = (b"%016d" % len(done.reports))[:16]
    good = encode_report(batch_id, new, 1)
    done.reports += [
        (done.key, b"not JSON"),
        (done.key, b"[1]"),
        (done.key, b'{"batch":["x"],"id":"%b","ones":1}' % new.hex().encode()),
        (b"other", good),
        (done.key, encode_report(batch_id, new, bits + 1)),
        (done.key, encode_report(batch_id, new, -1)),
        (done.key, encode_report("1." + "B" * 43, new, 1)),
        (done.key, good.ljust(600)),
    ]


def repeat(done: Transcript, batch_id: str, bits: int) -> None:
    """The newest report again, and the clutter."""
    done.reports.append(done.reports[-1])
    clutter(done, batch_id, bits)


def late(done: Transcript, batch_id: str, bits: int) -> None:
    """A valid report after the batch is full."""
    done.reports.append((done.key, encode_report(batch_id, b"late" * 4, min(1, bits))))


def early(done: Transcript, batch_id: str, bits: int) -> None:
    """A valid report that the stage did not count: its batch was not known then."""
    done.reports.append((done.key, encode_report(batch_id, b"soon" * 4, min(1, bits))))


async def written(broker: LocalBroker, done: Transcript) -> tuple[Writer, int]:
    writer = Writer(fresh_settings(broker), done.experiment)
    return writer, await writer.transcript(done)


@pytest.mark.kafka
@pytest.mark.parametrize("order", ["sequential", "interleaved"])
async def test_a_correct_log_passes(broker: LocalBroker, order: str) -> None:
    """With refused reports of every kind around, and an aborted sum that was released again."""
    done = play(spring(order=order), before=early, within=repeat, after=late)
    writer = Writer(fresh_settings(broker), done.experiment)
    await make_topics(writer.settings)
    await writer.transaction("sums", done.sums[0], commit=False)
    await writer.transcript(done)
    verified = await verify(writer.settings, "spring")
    audited = await audit(writer.settings, "spring")

    expected = CheckResult("spring", len(done.sums), done.states[-1].users, (), (), audited.sums)
    assert expected == verified
    assert expected == audited
    assert Status.DECIDED is done.states[-1].status


@pytest.mark.kafka
async def test_an_aborted_sum_alone_is_counted_again(broker: LocalBroker) -> None:
    """A sum that only an uncommitted read shows is audited, and is no difference by itself."""
    done = play(spring())
    last = done.sums.pop()
    done.states.pop()
    writer, _ = await written(broker, done)
    await writer.transaction("sums", last, commit=False)
    found = await audit(writer.settings, "spring")

    assert ((), len(done.sums) + 1) == (found.differences, found.batches)


def wrong_total(done: Transcript) -> None:
    """A sum that is consistent in itself: only the reports show it."""
    raw = orjson.loads(done.sums[-1])
    done.edit_sum(-1, total=raw["total"] + 1, estimate=raw["estimate"] + 1)


AUDIT_CHANGES: dict[str, tuple[Callable[[Transcript], Any], str]] = {
    "total": (wrong_total, "its total is"),
    "digest": (lambda d: d.edit_sum(-1, digest="0" * 64), "its digest of ids is"),
    "first offset too low": (
        lambda d: d.edit_sum(1, first={"offset": 0, "time_ms": 0}),
        "its first report's offset is 0",
    ),
    "first offset too high": (
        lambda d: d.edit_sum(0, first={"offset": 1, "time_ms": 0}),
        "of its 20 reports are on the topic",
    ),
    "last offset": (
        lambda d: d.edit_sum(1, last={"offset": 0, "time_ms": 0}),
        "its last report's offset is 0",
    ),
    "report removed": (lambda d: d.reports.__setitem__(3, (d.key, b"x")), "only 19 of its 20"),
    "report changed": (
        lambda d: d.reports.__setitem__(
            0, (d.key, d.reports[0][1].replace(b'"id":"', b'"id":"00', 1)[:-2])
        ),
        "only 19 of its 20",
    ),
    "other report id": (
        lambda d: d.reports.__setitem__(
            0, (d.key, encode_report(parse_batch(d.reports[0][1]), b"x" * 16, 0))
        ),
        "its digest of ids is",
    ),
}


def parse_batch(report: bytes) -> str:
    return str(orjson.loads(report)["batch"])


@pytest.mark.kafka
@pytest.mark.parametrize("name", AUDIT_CHANGES)
async def test_audit_finds_a_wrong_sum(broker: LocalBroker, name: str) -> None:
    """One change that the public topics alone may not show."""
    done = play(spring())
    change, expected = AUDIT_CHANGES[name]
    change(done)
    writer, _ = await written(broker, done)
    found = await audit(writer.settings, "spring")

    assert any(expected in line for line in found.differences), found.differences


@pytest.mark.kafka
@pytest.mark.parametrize("commit", [False, True], ids=["aborted", "committed"])
async def test_two_values_of_a_batch_are_found(broker: LocalBroker, commit: bool) -> None:
    """Whoever reads uncommitted records could subtract them."""
    done = play(spring())
    writer = Writer(fresh_settings(broker), done.experiment)
    await writer.transcript(done)
    other = replace(done, sums=list(done.sums))
    wrong_total(other)
    await writer.transaction("sums", other.sums[-1], commit=commit)
    verified = await verify(writer.settings, "spring")
    audited = await audit(writer.settings, "spring")

    assert commit == bool(verified.differences)
    assert any("another value of it" in line for line in audited.differences)


@pytest.mark.kafka
async def test_a_second_batch_under_one_number_is_found(broker: LocalBroker) -> None:
    """Two sets of terms with one sequence number, although the second was aborted."""
    done = play(spring())
    writer, _ = await written(broker, done)
    await writer.transaction("sums", reissued(done.sums[0], attribution_ms=7), commit=False)
    found = await audit(writer.settings, "spring")

    assert any("another value of it" in line for line in found.differences)


@pytest.mark.kafka
async def test_a_tampered_assignment_on_the_topic_is_found(broker: LocalBroker) -> None:
    done = play(spring())
    writer = Writer(fresh_settings(broker), done.experiment)
    await writer.transcript(done, lambda a: edited(a.encode(), phase=9))
    found = await verify(writer.settings, "spring")

    assert ("assignment.phase is 9, recomputed 2",) == found.differences


@pytest.mark.kafka
async def test_deleted_reports_are_unchecked(broker: LocalBroker) -> None:
    """What was deleted cannot be counted again: said apart, not as a difference."""
    done = play(spring())
    writer, _ = await written(broker, done)
    place = TopicPartition(kafka.topic(writer.settings, "reports"), writer.partition)
    async with kafka.admin(writer.settings) as admin:
        await admin.delete_records({place: RecordsToDelete(before_offset=25)})
    found = await audit(writer.settings, "spring")

    assert () == found.differences
    assert len(done.sums) == found.batches + len(found.unchecked)
    assert 2 == len(found.unchecked)
    assert "the log at 25" in found.unchecked[0]


@pytest.mark.kafka
async def test_other_experiments_of_the_partition_do_not_matter(broker: LocalBroker) -> None:
    """Sums, reports and assignments are told apart by their key."""
    done = play(spring())
    writer, _ = await written(broker, done)
    for topic in ("sums", "reports", "assignments", "experiments"):
        await writer.plain(topic, [(b"other", b"x"), (b"other", done.sums[0])])
    found = await audit(writer.settings, "spring")

    assert () == found.differences


@pytest.mark.kafka
async def test_an_unknown_experiment_is_refused(broker: LocalBroker) -> None:
    settings = fresh_settings(broker)
    await make_topics(settings)
    with pytest.raises(ConfigurationError, match="'nobody': not known"):
        await verify(settings, "nobody")
