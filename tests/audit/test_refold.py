"""verify without Kafka: silent on correct transcripts, and each single change to one is found."""

import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import orjson
import pytest

from stream_app.audit.refold import refold
from stream_app.core.discrete_laplace import DiscreteLaplace
from stream_app.core.terms import Terms, parse
from stream_app.registry import Entry
from stream_app.wire.assignment import Assignment
from stream_app.wire.definition import Definition
from tests.support.transcripts import (
    Transcript,
    play,
    reissued,
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
