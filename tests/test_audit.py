"""verify and audit: silent on correct logs, and each single change to one is found."""

import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import orjson
import pytest
from aiokafka import TopicPartition
from aiokafka.admin import RecordsToDelete

from stream_app import kafka
from stream_app.audit import Report, audit, verify
from stream_app.broker import LocalBroker
from stream_app.core.agents import Status
from stream_app.core.mechanisms import DiscreteLaplace
from stream_app.core.terms import Terms, parse
from stream_app.errors import ConfigurationError
from stream_app.refold import refold
from stream_app.registry import Entry
from stream_app.wire.assignment import Assignment
from stream_app.wire.definition import Definition
from stream_app.wire.report import encode_report
from tests.support.transcripts import (
    Transcript,
    Writer,
    edited,
    fresh_settings,
    make_topics,
    play,
    spring,
)


def check(done: Transcript, change: Callable[[dict[str, Any]], None] | None = None) -> list[str]:
    """verify without Kafka: the last sum stands at offset len(sums) - 1."""
    assignment = Assignment(done.experiment, done.states[-1], len(done.sums) - 1)
    raw = orjson.loads(assignment.encode())
    if change:
        change(raw)
    entry = Entry(done.experiment.name, Definition(done.experiment), assignment, orjson.dumps(raw))
    return refold(entry, enumerate(done.sums)).differences


def reissued(record: bytes, **changes: Any) -> bytes:
    """A sum with other terms, whose id fits them."""
    terms = {**orjson.loads(record)["terms"], **changes}
    return edited(record, terms=terms, batch=parse(terms).batch_id)


@pytest.mark.parametrize("order", ["sequential", "interleaved"])
@pytest.mark.parametrize(
    "settings",
    [
        {"preset": "sdp-ae", "horizon": 300, "batch_size": 50},
        {"preset": "vb-sdp-ae", "horizon": 300},
        {"preset": "optimal"},
        {"preset": "kl-ucb", "horizon": 600},
        {"preset": "optimal", "horizon": 40, "batch_size": 10, "horizon_known": False},
    ],
    ids=lambda s: s["preset"] + ("" if s.get("horizon_known", True) else "-unknown-horizon"),
)
def test_a_correct_run_verifies(settings: dict[str, Any], order: str) -> None:
    """Every preset and order, at every moment of its run."""
    whole = play(spring(**settings, order=order), batches=12)
    for n in range(len(whole.sums) + 1):
        part = replace(whole, sums=whole.sums[:n], states=whole.states[: n + 1])

        assert [] == check(part)


def test_an_agent_may_be_behind() -> None:
    """Sums that the assignment does not count yet are checked, and are no difference."""
    done = play(spring())
    assignment = Assignment(done.experiment, done.states[2], 1)
    entry = Entry("spring", None, assignment, assignment.encode())
    found = refold(entry, enumerate(done.sums))

    assert ([], len(done.sums)) == (found.differences, len(found.sums))


@pytest.mark.parametrize("released", [0, 1])
def test_a_stopped_experiment_verifies(released: int) -> None:
    """Its state is the stopped one; a sum of a batch that was open at the stop is ignored."""
    done = play(spring(order="interleaved"), batches=2 + released)
    stopped = done.agent.stop(done.states[2])
    assignment = Assignment(done.experiment, stopped, 1)
    entry = Entry("spring", None, assignment, assignment.encode())

    assert [] == refold(entry, enumerate(done.sums)).differences


def test_a_stopped_experiment_releases_no_later_batch() -> None:
    """Batches that a stopped agent cannot have opened are found."""
    done = play(spring(), batches=4)
    assignment = Assignment(done.experiment, done.agent.stop(done.states[2]), 1)
    entry = Entry("spring", None, assignment, assignment.encode())

    assert 1 == len(refold(entry, enumerate(done.sums)).differences)


CHANGES: dict[str, Callable[[dict[str, Any]], None]] = {
    "arms[0].users": lambda raw: raw["arms"][0].update(users=raw["arms"][0]["users"] + 1),
    "arms[1].viable": lambda raw: raw["arms"][1].update(viable=not raw["arms"][1]["viable"]),
    "arms[0].weighted": lambda raw: raw["arms"][0].update(
        weighted=raw["arms"][0]["weighted"] * (1 + 1e-8)
    ),
    "arms[1].batches": lambda raw: raw["arms"][1].update(batches=7),
    "phase": lambda raw: raw.update(phase=9),
    "serve": lambda raw: raw.update(serve="arm-1"),
    "state": lambda raw: raw.update(state="exhausted"),
    "sequence": lambda raw: raw.update(sequence=50),
    "spent": lambda raw: raw.update(spent=1),
    "guarantee": lambda raw: raw.update(guarantee="high-probability"),
    "open": lambda raw: raw.update(open=[{"batch": "5.x", "terms": {}}]),
    "extra": lambda raw: raw.update(extra=1),
}


@pytest.mark.parametrize("path", CHANGES)
def test_a_tampered_assignment_is_found(path: str) -> None:
    """Each field of the agent's record must follow from the sums."""
    (found,) = check(play(spring()), CHANGES[path])

    assert found.startswith(f"assignment.{path} is ")


def test_tampered_open_terms_are_found() -> None:
    """The open batches' terms and ids are part of the comparison."""

    def weaken(raw: dict[str, Any]) -> None:
        raw["open"][0]["terms"]["epsilon"] = "2"

    (found,) = check(play(spring(), batches=1), weaken)

    assert found == 'assignment.open[0].terms.epsilon is "2", recomputed "0.5"'


def test_a_float_may_differ_in_its_last_bits() -> None:
    """Another machine may round the weighted sums differently."""

    def nudge(raw: dict[str, Any]) -> None:
        raw["arms"][0]["weighted"] *= 1 + 1e-11

    assert [] == check(play(spring()), nudge)


SUM_CHANGES: dict[str, tuple[Callable[[Transcript], None], str]] = {
    "total": (lambda d: d.edit_sum(1, total=json.loads(d.sums[1])["total"] + 1), "its estimate is"),
    "estimate": (lambda d: d.edit_sum(1, estimate=0.5), "its estimate is 0.5"),
    "total too large": (lambda d: d.edit_sum(1, total=10**9), "is not valid"),
    "id": (lambda d: d.edit_sum(1, batch="2." + "A" * 43), "is not valid"),
    "not JSON": (lambda d: d.sums.__setitem__(1, b"x"), "is not valid"),
    "twice": (lambda d: d.sums.insert(2, d.sums[1]), "released twice"),
    "missing": (lambda d: d.sums.pop(1), "the agent did not open it"),
    "missing at the end": (lambda d: d.sums.pop(), "there is none"),
    "other arm": (
        lambda d: d.sums.__setitem__(1, reissued(d.sums[1], arm="arm-0")),
        "its terms have arm = arm-0, the experiment's arm-1",
    ),
    "other attribution": (
        lambda d: d.sums.__setitem__(1, reissued(d.sums[1], attribution_ms=5)),
        "its terms have attribution_ms = 5",
    ),
    "other sequence": (
        lambda d: d.sums.__setitem__(3, reissued(d.sums[3], sequence=9)),
        "the agent did not open it",
    ),
}


@pytest.mark.parametrize("name", SUM_CHANGES)
def test_a_tampered_sum_is_found(name: str) -> None:
    """By its own record, or because the agent's state does not follow any more."""
    done = play(spring())
    folded = Assignment(done.experiment, done.states[-1], len(done.sums) - 1)
    change, expected = SUM_CHANGES[name]
    change(done)
    entry = Entry("spring", None, folded, folded.encode())
    found = refold(entry, enumerate(done.sums)).differences

    assert any(expected in line for line in found), found


def test_too_little_noise_is_found() -> None:
    """A certificate above the stated delta, although terms and id fit each other."""
    done = play(spring())
    terms = parse(orjson.loads(done.sums[0])["terms"])
    assert isinstance(terms.mechanism, DiscreteLaplace)
    strict = replace(terms.mechanism.promise, delta=Decimal("1e-12"))
    weak = Terms(
        terms.experiment, terms.sequence, terms.arm, replace(terms.mechanism, promise=strict)
    )
    done.edit_sum(0, terms=weak.as_json(), batch=weak.batch_id)

    assert any("its noise gives delta" in line for line in check(done))


def test_another_definition_is_found() -> None:
    """The agent must run what the operator defined."""
    done = play(spring())
    assignment = Assignment(done.experiment, done.states[-1], len(done.sums) - 1)
    operator = Definition(spring(epsilon="0.4"))
    found = refold(Entry("spring", operator, assignment, assignment.encode()), enumerate(done.sums))

    assert ["the agent runs another definition than the operator's"] == found.differences


def test_sums_without_an_assignment_are_found() -> None:
    done = play(spring(), batches=1)
    entry = Entry("spring", Definition(done.experiment))

    assert ["there are sums, but no assignment"] == refold(entry, enumerate(done.sums)).differences


# With a broker from here on.


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

    expected = Report("spring", len(done.sums), done.states[-1].users, (), (), audited.sums)
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
