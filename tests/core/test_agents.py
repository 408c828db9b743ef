"""The door to agents: every experiment has one, and it has all that the service calls."""

import inspect

import pytest

from stream_app.core.agents import Agent, agent_for
from tests.core.walks import PRESETS, small


@pytest.mark.parametrize("preset", PRESETS)
def test_an_agent_for_every_preset(preset: str) -> None:
    agent = agent_for(small(preset))
    listed = [name for name, _ in inspect.getmembers(Agent, inspect.isfunction) if name[0] != "_"]

    assert agent.begin().open
    assert {"begin", "fold", "stop"} < set(listed)
    for name in listed:
        wanted = inspect.signature(getattr(Agent, name)).parameters
        assert list(wanted)[1:] == list(inspect.signature(getattr(agent, name)).parameters)
