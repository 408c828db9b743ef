"""Assignments come back as they were written, and know a definition by its bytes."""

from typing import Any

import orjson
import pytest

from stream_app.core.agents import agent_for
from stream_app.wire.assignment import Assignment, decode_assignment, decode_offer, is_defined_so
from stream_app.wire.definition import Definition
from tests.support.transcripts import play, spring

DONE = play(spring())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"order": "interleaved"},
        {"preset": "kl-ucb", "horizon": 600},
        {"preset": "sdp-ae", "horizon": 300, "batch_size": 50},
        {"horizon": 40, "batch_size": 10, "horizon_known": False},
    ],
    ids=str,
)
def test_assignments_come_back(changes: dict[str, Any]) -> None:
    """At every moment of a run, and stopped; clients find the open batches' terms in it."""
    done = play(spring(**changes), batches=8)
    states = [*done.states, agent_for(done.experiment).stop(done.states[-1])]
    for folded, state in enumerate(states, start=-1):
        sent = Assignment(done.experiment, state, folded)
        offer = decode_offer(sent.encode())

        assert sent == decode_assignment(sent.encode())
        assert ("spring", state.status) == (offer.experiment, offer.status)
        assert [(t.batch_id, t.as_json()) for t in map(sent.terms, state.open)] == list(offer.open)


def test_a_definition_is_known_by_its_bytes() -> None:
    """The one that an assignment has; not a stopped one, another one, or another spelling."""
    assignment = Assignment(spring(), DONE.states[1], 4).encode()
    definition = Definition(spring()).encode()

    assert is_defined_so(definition, assignment)
    assert not is_defined_so(None, assignment)
    assert not is_defined_so(Definition(spring(), stopped=True).encode(), assignment)
    assert not is_defined_so(definition.replace(b"spring", b"summer"), assignment)
    assert not is_defined_so(orjson.dumps(orjson.loads(definition)["definition"]), assignment)
    assert not is_defined_so(b'{"definition":,"stopped":false,"version":1}', assignment)
    assert not is_defined_so(b'{"definition":},"stopped":false,"version":1}', assignment)
