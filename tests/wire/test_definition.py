"""Definitions come back as they were written."""

import pytest

from stream_app.wire.definition import Definition, decode_definition
from tests.support.transcripts import play, spring

DONE = play(spring())


@pytest.mark.parametrize("stopped", [False, True])
def test_definitions_come_back(stopped: bool) -> None:
    definition = Definition(spring(), stopped)

    assert definition == decode_definition(definition.encode())
    assert definition.encode() == decode_definition(definition.encode()).encode()
