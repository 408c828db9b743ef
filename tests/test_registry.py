"""Experiments on their topics: created once, never changed, stopped for good."""

import asyncio
from dataclasses import replace

import pytest

from stream_app import kafka, registry
from stream_app.core.agents import agent_for
from stream_app.core.state import Status
from stream_app.errors import ConfigurationError, Unavailable
from stream_app.local.broker import LocalBroker
from stream_app.wire.assignment import Assignment
from stream_app.wire.definition import Definition
from tests.support.transcripts import Writer, fresh_settings, make_topics, play, spring

pytestmark = pytest.mark.kafka


@pytest.fixture
async def writer(broker: LocalBroker) -> Writer:
    settings = fresh_settings(broker)
    await make_topics(settings)
    return Writer(settings, spring())


async def test_create_twice_is_fine(writer: Writer) -> None:
    """The same content again changes nothing."""
    first = await registry.create(writer.settings, spring())
    second = await registry.create(writer.settings, spring())
    (entry,) = await registry.read_all(writer.settings)

    assert (True, False) == (first, second)
    assert registry.Entry("spring", Definition(spring())) == entry
    assert "waiting" == entry.state


async def test_other_content_is_refused(writer: Writer) -> None:
    """The message names the first setting that differs and the remedy; nothing is written."""
    await registry.create(writer.settings, spring())
    with pytest.raises(ConfigurationError) as refused:
        await registry.create(writer.settings, spring(epsilon="0.4"))
    entry = await registry.find(writer.settings, "spring")

    assert str(refused.value) == (
        "experiment 'spring' exists with privacy.epsilon = 0.5, this file has 0.4; "
        "a definition cannot be changed, use another name"
    )
    assert spring() == entry.experiment


async def test_the_agents_record_counts_as_known(writer: Writer) -> None:
    """Even if the definition was lost: users have reported under it."""
    state = agent_for(spring()).begin()
    await writer.transaction("assignments", Assignment(spring(), state).encode())
    with pytest.raises(ConfigurationError, match=r"horizon = 400, this file has 500"):
        await registry.create(writer.settings, spring(horizon=500))

    assert await registry.create(writer.settings, spring())


async def test_stop_is_for_good(writer: Writer) -> None:
    """The definition is written again as stopped; it cannot be created again."""
    await registry.create(writer.settings, spring())
    stopped = await registry.stop(writer.settings, "spring")
    again = await registry.stop(writer.settings, "spring")
    entry = await registry.find(writer.settings, "spring")

    assert (True, False) == (stopped, again)
    assert Definition(spring(), stopped=True) == entry.definition
    assert "stopping" == entry.state
    with pytest.raises(ConfigurationError, match="was stopped and does not start again"):
        await registry.create(writer.settings, spring())


async def test_unknown_names_are_refused(writer: Writer) -> None:
    with pytest.raises(ConfigurationError, match="not known"):
        await registry.find(writer.settings, "nobody")
    with pytest.raises(ConfigurationError, match="not known"):
        await registry.stop(writer.settings, "nobody")


async def test_only_one_of_two_creators_wins(writer: Writer) -> None:
    """At the same moment with different content: one definition stands, the other is refused."""
    definitions = [spring(horizon=400 + i) for i in range(4)]
    results = await asyncio.gather(
        *(registry.create(writer.settings, one) for one in definitions), return_exceptions=True
    )
    entry = await registry.find(writer.settings, "spring")
    winners = [one for one, result in zip(definitions, results, strict=True) if result is True]

    assert [entry.experiment] == winners
    assert all(r is True or isinstance(r, ConfigurationError | Unavailable) for r in results)


async def test_all_experiments_are_listed(writer: Writer) -> None:
    """From every partition, by name, with the agent's newest record."""
    names = [f"e{i}" for i in range(6)]
    for name in names:
        await registry.create(writer.settings, replace(spring(), name=name))
    done = play(spring())
    await writer.transcript(done)
    entries = await registry.read_all(writer.settings)

    assert [*names, "spring"] == [entry.name for entry in entries]
    assert "decided" == entries[-1].state
    assert entries[-1].assignment is not None
    assert Status.DECIDED is entries[-1].assignment.state.status


async def test_bad_records_are_said_and_do_not_hide_others(writer: Writer) -> None:
    """An untrusted agent can write anything; a tombstone forgets."""
    await registry.create(writer.settings, spring())
    await writer.transaction("assignments", b"not JSON")
    await writer.plain("experiments", [(b"bad", b"{}"), (b"liar", Definition(spring()).encode())])
    async with kafka.producer(writer.settings) as producer:
        for value in (Definition(spring()).encode(), None):
            await producer.send_and_wait(
                kafka.topic(writer.settings, "experiments"),
                value,
                key=b"gone",
                partition=writer.partition,
            )
    entries = {entry.name: entry for entry in await registry.read_all(writer.settings)}

    assert {"bad", "liar", "spring"} == set(entries)
    assert {"unreadable"} == {entry.state for entry in entries.values()}
    assert spring() == entries["spring"].experiment
    assert "under the key 'liar' stands 'spring'" in entries["liar"].problem
