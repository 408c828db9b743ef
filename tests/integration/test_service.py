"""The service among bad neighbours: tampering, stalls, stops, outages, wrong settings."""

import asyncio
import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from decimal import Decimal
from pathlib import Path

import orjson
import pytest

from producers.client import Client
from producers.simulated_users import NewUsers, run_users
from stream_app import kafka, registry
from stream_app.core.agents import agent_for
from stream_app.core.mechanisms import MechanismName, calibrate
from stream_app.core.promise import Calibration, Promise
from stream_app.core.state import Status
from stream_app.core.terms import Terms, batch_id
from stream_app.errors import Unavailable
from stream_app.kafka.reading import read_partition
from stream_app.local.broker import LocalBroker
from stream_app.settings import Settings
from stream_app.wire.assignment import Assignment
from stream_app.wire.report import encode_report
from tests.integration.service import (
    check,
    environment,
    experiment,
    last_assignment,
    settings_for,
    topics,
    workers,
)

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


async def count(settings: Settings, topic: str, name: str) -> int:
    place = kafka.partition_of(name, await kafka.partition_count(settings.kafka))
    chunks = [chunk async for chunk in read_partition(settings.kafka, topic, place)]
    return sum(record.key == name.encode() for chunk in chunks for record in chunk)


async def until(condition: Callable[[], Awaitable[bool]], limit_s: float = 30) -> None:
    async with asyncio.timeout(limit_s):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.2)


async def send(settings: Settings, topic: str, key: bytes, *values: bytes) -> None:
    place = kafka.partition_of(key.decode(), await kafka.partition_count(settings.kafka))
    async with kafka.producer(settings.kafka) as producer:
        for value in values:
            name = kafka.topic(settings.kafka, topic)
            await producer.send_and_wait(name, key=key, value=value, partition=place)


def _tampered() -> dict[str, dict[str, object]]:
    """Terms that a malicious agent might write, each with the id that they hash to."""
    definition = experiment("victim")
    honest = Assignment(definition, agent_for(definition).begin())
    terms = honest.terms(honest.state.open[0])
    mechanism = terms.mechanism
    promise = mechanism.promise
    small = dataclasses.replace(promise, batch_size=promise.batch_size - 1)
    weak = calibrate(
        Promise(Decimal(1), Decimal("0.5"), promise.batch_size),
        MechanismName.DISCRETE_LAPLACE,
        Calibration.EXACT,
    )

    def terms_with(**changes: object) -> dict[str, object]:
        return dataclasses.replace(terms, **changes).as_json()

    return {
        "less noise": terms_with(mechanism=dataclasses.replace(weak, promise=promise)),
        "epsilon": terms_with(
            mechanism=dataclasses.replace(
                mechanism, promise=dataclasses.replace(promise, epsilon=Decimal(9))
            )
        ),
        "attribution": terms_with(attribution_ms=10**12),
        "another experiment": terms_with(experiment="other"),
        "id of other terms": terms_with(mechanism=dataclasses.replace(mechanism, promise=small)),
    }


@pytest.mark.parametrize("what", list(_tampered()))
async def test_malicious_assignment_is_refused(
    broker: LocalBroker, tmp_path: Path, what: str
) -> None:
    """Terms that weaken the promise: no client reports to them, no stage counts for them."""
    settings = settings_for(broker.bootstrap)
    await topics(settings, 1)
    definition = experiment("victim")
    honest = orjson.loads(Assignment(definition, agent_for(definition).begin()).encode())
    terms = _tampered()[what]
    stated = honest["open"][0]["batch"] if what == "id of other terms" else batch_id(terms)
    evil = orjson.dumps({**honest, "open": [{"batch": stated, "terms": terms}]})
    await send(settings, "assignments", b"victim", evil)
    size = int(str(terms["batch_size"]))
    reports = [encode_report(stated, os.urandom(16), 1) for _ in range(size)]
    with workers(settings, tmp_path, "shuffle") as running:
        async with Client(settings, "victim", store=NewUsers(), immediate=True) as client:
            with pytest.raises(Unavailable, match="nothing in its assignment can be used"):
                client.choose("user")
            refused = client.refused_terms
        await send(settings, "reports", b"victim", *reports)

        async def said() -> bool:
            return "refused batch" in running[0].log.read_text()

        await until(said)
        await asyncio.sleep(1)

    assert refused == 1
    assert await count(settings, "sums", "victim") == 0


async def test_second_terms_under_a_sequence_number(broker: LocalBroker, tmp_path: Path) -> None:
    """The first terms of a sequence number stand; others under the same number are refused."""
    settings = settings_for(broker.bootstrap)
    await topics(settings, 1)
    definition = experiment("twice")
    first = Assignment(definition, agent_for(definition).begin())
    other = experiment("twice", batch_size=40)
    second = Assignment(other, agent_for(other).begin())
    open_terms = [Terms.as_json(a.terms(a.state.open[0])) for a in (first, second)]
    size = int(str(open_terms[1]["batch_size"]))
    await send(settings, "assignments", b"twice", first.encode())
    with workers(settings, tmp_path, "shuffle") as running:
        async with Client(settings, "twice", store=NewUsers(), immediate=True) as client:
            assert client.choose("user").batch_id == batch_id(open_terms[0])
            await send(settings, "reports", b"twice", b"{}")

            async def opened() -> bool:
                return "shuffle: partition 0 opened" in running[0].log.read_text()

            await until(opened, limit_s=60)
            await send(settings, "assignments", b"twice", second.encode())
            await client.changed(5)
            refused = client.refused_terms
        second_id = batch_id(open_terms[1])
        reports = [encode_report(second_id, os.urandom(16), 1) for _ in range(size)]
        await send(settings, "reports", b"twice", *reports)

        async def said() -> bool:
            return "second terms" in running[0].log.read_text()

        await until(said)
        await asyncio.sleep(1)

    assert refused == 1
    assert await count(settings, "sums", "twice") == 0


async def test_stalled_experiment_does_not_hold_the_restart_back(
    broker: LocalBroker, tmp_path: Path
) -> None:
    """Beside a busy experiment, a restart rereads about max_reread_records, not all."""
    settings = settings_for(broker.bootstrap, max_reread_records=3_000)
    await topics(settings, 1)
    stalled = experiment("stalled")
    busy = experiment("busy", horizon=60_000, means=[0.5] * 3)
    with workers(settings, tmp_path, "shuffle", "agent") as running:
        for definition in (stalled, busy):
            await registry.create(settings.kafka, definition)
        await run_users(settings, "stalled", users=10, experiment=stalled)
        await run_users(settings, "busy", experiment=busy)
        await asyncio.sleep(2.5)
        end = await _end(settings, "reports")
        running[0].kill()
        running[0].start()
        outcome = await run_users(settings, "stalled", experiment=stalled)

    opened = re.findall(r"shuffle: partition 0 opened at offset (\d+)", running[0].log.read_text())
    assert outcome.status is not Status.RUNNING
    assert len(opened) == 2
    assert end - int(opened[1]) <= 3_000
    assert end > 30_000
    await check(settings, ["stalled", "busy"])


async def _end(settings: Settings, topic: str) -> int:
    last = 0
    async for chunk in read_partition(settings.kafka, topic, 0, committed=False):
        last = chunk[-1].offset + 1
    return last


async def test_stopped_experiment_releases_nothing_more(
    broker: LocalBroker, tmp_path: Path
) -> None:
    """Stop: the open window is dropped, later reports are late, a new create is refused."""
    settings = settings_for(broker.bootstrap)
    await topics(settings, 1)
    definition = experiment("stop")
    with workers(settings, tmp_path, "shuffle,agent"):
        await registry.create(settings.kafka, definition)
        await run_users(settings, "stop", users=20, experiment=definition)
        await registry.stop(settings.kafka, "stop")

        async def stopped() -> bool:
            state = (await last_assignment(settings, "stop")).state
            return state.status is Status.STOPPED and not state.open

        await until(stopped)
        outcome = await run_users(settings, "stop", users=200, experiment=definition)

    assert outcome.reports == 0
    assert await count(settings, "sums", "stop") == 0
    await check(settings, ["stop"])


async def test_broker_goes_away_and_comes_back(tmp_path: Path) -> None:
    """The service waits, says so once, and goes on; nothing is lost or counted twice."""
    with LocalBroker() as own:
        settings = settings_for(own.bootstrap)
        await topics(settings, 2)
        definition = experiment("outage", horizon=20_000, means=[0.5] * 3)
        with workers(settings, tmp_path, "shuffle,agent") as running:
            await registry.create(settings.kafka, definition)
            users = asyncio.ensure_future(
                run_users(settings, "outage", rate=1500, experiment=definition)
            )

            async def at_work() -> bool:
                return await count(settings, "sums", "outage") > 0

            await until(at_work, limit_s=60)
            await asyncio.to_thread(own.kill)
            await asyncio.sleep(8)
            await asyncio.to_thread(own.start)
            outcome = await asyncio.wait_for(users, 120)
            log = running[0].log.read_text()
        assert outcome.status is not Status.RUNNING
        assert 1 <= log.count("shuffle: Kafka is away") + log.count("agent: Kafka is away") <= 4
        await check(settings, ["outage"])


def _command(
    settings: Settings, *arguments: str, **changes: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stream_app", *arguments],
        env={**environment(settings), **changes},
        capture_output=True,
        text=True,
        check=False,
    )


def test_wrong_credentials_are_one_line() -> None:
    """A broker with SASL: wrong credentials and none at all are refused in one line, exit 3."""
    jaas = (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="admin" password="right" user_admin="right";'
    )
    properties = {
        "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.client.plain.sasl.jaas.config": jaas,
    }
    with LocalBroker(properties=properties) as own:
        settings = settings_for(own.bootstrap)
        sasl = {
            "SHUFFLEBANDIT_KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
            "SHUFFLEBANDIT_KAFKA_SASL_MECHANISM": "PLAIN",
            "SHUFFLEBANDIT_KAFKA_SASL_USERNAME": "admin",
        }
        good = _command(
            settings, "topics", "create", **sasl, SHUFFLEBANDIT_KAFKA_SASL_PASSWORD="right"
        )
        bad = _command(settings, "run", **sasl, SHUFFLEBANDIT_KAFKA_SASL_PASSWORD="wrong-secret")

    assert good.returncode == 0, good.stderr
    assert bad.returncode == 3
    assert bad.stderr.count("\n") == 1, bad.stderr
    assert "sasl_username" in bad.stderr
    assert "wrong-secret" not in bad.stderr + bad.stdout
