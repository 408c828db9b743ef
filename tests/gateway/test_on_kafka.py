"""The gateway on a real Kafka: what it acknowledged is there, whatever happens to the broker."""

import asyncio
import contextlib
import dataclasses
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from stream_app import kafka, registry
from stream_app.gateway import Gateway
from stream_app.kafka.reading import read_partition
from stream_app.local.broker import LocalBroker, free_port
from stream_app.settings import Settings
from stream_app.wire.assignment import decode_offer
from stream_app.wire.report import REPORT_BYTES
from tests.gateway.build import body, listening, report
from tests.integration.service import (
    WorkerProcess,
    check,
    experiment,
    settings_for,
    topics,
    workers,
)
from tests.producers.build import assignment, banners

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


def with_gateway(settings: Settings, **gateway: Any) -> Settings:
    given = {"port": free_port(), **gateway}
    return dataclasses.replace(settings, gateway=dataclasses.replace(settings.gateway, **given))


@contextlib.asynccontextmanager
async def serving(settings: Settings, pages: Any = None) -> AsyncIterator[Gateway]:
    edge = Gateway(settings, pages)
    stop = asyncio.Event()
    task = asyncio.ensure_future(edge.run(stop))
    try:
        await listening(settings.gateway.port)
        async with asyncio.timeout(20):
            while edge.unready():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        yield edge
    finally:
        stop.set()
        await task


async def publish(settings: Settings, name: str, attribution_s: str = "0") -> str:
    """Play the agent: one assignment; returns its batch's id."""
    value = assignment(banners(name, attribution_s=attribution_s))
    async with kafka.producer(settings.kafka) as producer:
        place = kafka.partition_of(name, 4)
        topic = kafka.topic(settings.kafka, "assignments")
        await producer.send_and_wait(topic, value, key=name.encode(), partition=place)
    return decode_offer(value).open[0][0]


async def written(settings: Settings, name: str) -> list[Any]:
    return [
        record
        async for records in read_partition(
            settings.kafka, "reports", kafka.partition_of(name, 4), committed=False
        )
        for record in records
    ]


async def test_records_and_changes(broker: LocalBroker) -> None:
    """Key, partition and length are right, one time for a whole hold, order at random."""
    settings = with_gateway(settings_for(broker.bootstrap), hold_requests=50, hold_ms=2000)
    await topics(settings, 4)
    batch = await publish(settings, "shop")
    sent = [report(batch) for _ in range(50)]
    async with serving(settings), aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{settings.gateway.port}/v1"
        async with session.get(f"{url}/experiments/shop/events") as stream:
            await stream.content.readuntil(b"\n\n")
            await publish(settings, "new")
            await asyncio.gather(
                *(session.post(f"{url}/reports", json=body(r, experiment="shop")) for r in sent)
            )
        async with session.get(f"{url}/experiments/new") as answer:
            assert answer.status == 200
    records = await written(settings, "shop")

    ids = [orjson.loads(record.value)["id"] for record in records]
    assert sorted(ids) == sorted(r["id"] for r in sent)
    assert ids != [r["id"] for r in sent]
    assert {REPORT_BYTES} == {len(record.value) for record in records}
    assert {b"shop"} == {record.key for record in records}
    assert len({record.timestamp for record in records}) == 1


async def test_nothing_acknowledged_is_lost(broker: LocalBroker, tmp_path: Path) -> None:
    """Kafka is killed and comes back under load; senders who got no 202 send again."""
    local = LocalBroker(tmp_path)
    await asyncio.to_thread(local.start)
    try:
        settings = with_gateway(settings_for(local.bootstrap), hold_ms=20, acknowledge_s=2)
        await topics(settings, 4)
        batch = await publish(settings, "shop")
        accepted: set[str] = set()
        turned_away = 0
        stop = asyncio.Event()

        async def sender(session: aiohttp.ClientSession) -> None:
            nonlocal turned_away
            url = f"http://127.0.0.1:{settings.gateway.port}/v1/reports"
            while not stop.is_set():
                one = report(batch)
                status = 503
                while status == 503:
                    async with session.post(url, json=body(one, experiment="shop")) as answer:
                        status = answer.status
                    if status == 503:
                        turned_away += 1
                        assert "Retry-After" in answer.headers
                        await asyncio.sleep(0.2)
                assert status == 202
                accepted.add(one["id"])

        async with serving(settings), aiohttp.ClientSession() as session:
            senders = [asyncio.ensure_future(sender(session)) for _ in range(32)]
            await asyncio.sleep(1)
            await asyncio.to_thread(local.kill)
            await asyncio.sleep(2.5)
            await asyncio.to_thread(local.start)
            before = len(accepted)
            async with asyncio.timeout(30):
                while len(accepted) < before + 300:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            stop.set()
            await asyncio.gather(*senders)
        ids = [orjson.loads(r.value)["id"] for r in await written(settings, "shop")]
    finally:
        await asyncio.to_thread(local.stop)

    assert turned_away > 0
    assert accepted <= set(ids)
    print(f"{len(accepted)} acknowledged, {turned_away} turned away, {len(ids)} written")


async def hand_over(session: aiohttp.ClientSession, port: int, one: Any, left_ms: int) -> None:
    """As a page does that is left: it does not wait for long, and has no second try."""
    content = {"experiment": "shop", "left_ms": left_ms, "report": one}
    async with session.post(f"http://127.0.0.1:{port}/v1/held", json=content) as answer:
        assert answer.status == 202, await answer.text()


async def test_a_killed_gateway_loses_no_handover(broker: LocalBroker, tmp_path: Path) -> None:
    """Two gateways; one is killed while reports wait, then the other one: all leave, when due.

    The newest value of each id leaves, and none before its time.
    """
    base = settings_for(broker.bootstrap)
    await topics(base, 4)
    batch = await publish(base, "shop")
    first = with_gateway(base, hold_ms=20)
    second = with_gateway(base, hold_ms=20)
    sent = [report(batch, ones=3) for _ in range(200)]
    with contextlib.ExitStack() as running:
        killed = running.enter_context(WorkerProcess(first, "gateway", tmp_path / "first.log"))
        other = running.enter_context(WorkerProcess(second, "gateway", tmp_path / "second.log"))
        for settings in (first, second):
            await served(settings.gateway.port)
        due_ms = time.time() * 1000 + 15_000
        async with aiohttp.ClientSession() as session:
            for number, one in enumerate(sent):
                port = (first, second)[number % 2].gateway.port
                await hand_over(session, port, one, round(due_ms - time.time() * 1000))
            for one in sent[:50]:  # they came back, were clicked, and left again
                one["ones"] += 1
                left_ms = round(due_ms - time.time() * 1000)
                await hand_over(session, first.gateway.port, one, left_ms)
        assert await written(base, "shop") == []
        await asyncio.to_thread(killed.kill)
        await asyncio.sleep(1)
        await asyncio.to_thread(other.kill)
        await asyncio.to_thread(other.start)
        found = await all_written(base, sent)

    assert {one["id"]: one["ones"] for one in sent} == {one["id"]: one["ones"] for one, _ in found}
    assert len({(one["id"], one["ones"]) for one, _ in found}) == len(sent)
    assert min(timestamp for _, timestamp in found) >= due_ms - 50


async def test_what_has_left_does_not_leave_again(broker: LocalBroker) -> None:
    """A new owner begins behind it, though an older report still waits; and `held` is emptied."""
    base = settings_for(broker.bootstrap)
    await topics(base, 4)
    batch = await publish(base, "shop")
    waits = report(batch)
    sent = [report(batch) for _ in range(20)]
    for _ in range(2):
        settings = with_gateway(base, hold_ms=20)
        async with serving(settings), aiohttp.ClientSession() as session:
            await hand_over(session, settings.gateway.port, waits, 3_600_000)
            for one in sent:
                await hand_over(session, settings.gateway.port, one, 500)
            await all_written(base, sent)
            await asyncio.sleep(2.5)  # for the note of progress
        sent = [report(batch) for _ in range(20)]
    records = await written(base, "shop")

    assert 40 == len(records) == len({record.value for record in records})


async def served(port: int) -> None:
    """Wait until a gateway has read the assignments and Kafka takes its reports."""
    await listening(port, within_s=60)
    async with asyncio.timeout(60), aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"http://127.0.0.1:{port}/healthz") as answer:
                state = await answer.json()
            if state["kafka"] and state["assignments"]:
                return
            await asyncio.sleep(0.1)


async def all_written(settings: Settings, sent: list[Any]) -> list[tuple[Any, int]]:
    """Wait until all ids are in `reports`; returns reports with their times."""
    async with asyncio.timeout(90):
        while True:
            records = await written(settings, "shop")
            found = [(orjson.loads(one.value), one.timestamp) for one in records]
            if {one["id"] for one in sent} <= {one["id"] for one, _ in found}:
                return found
            await asyncio.sleep(0.2)


async def test_the_role_in_a_worker(broker: LocalBroker, tmp_path: Path) -> None:
    """A whole experiment through `run --roles shuffle,agent,gateway`; the auditor agrees.

    The worker's metrics count its reports, and the time to Kafka's acknowledgement.
    """
    settings = with_gateway(settings_for(broker.bootstrap), hold_ms=10)
    endpoint = dataclasses.replace(settings.metrics, port=free_port(settings.gateway.port))
    settings = dataclasses.replace(settings, metrics=endpoint)
    await topics(settings, 4)
    await registry.create(settings.kafka, experiment("edge", horizon=600))
    port = {"SHUFFLEBANDIT_GATEWAY_PORT": str(settings.gateway.port)}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in port.items():
            patch.setenv(name, value)
        with workers(settings, tmp_path, "shuffle,agent,gateway") as [worker]:
            await listening(settings.gateway.port)
            state = await _play(f"http://127.0.0.1:{settings.gateway.port}/v1")
            found = await _metrics(settings)
            took = await asyncio.to_thread(worker.stop)

    assert state in ("decided", "exhausted")
    assert took < 5
    batches, reports = await check(settings, ["edge"])
    assert batches > 2
    assert reports > 100
    assert found["shufflebandit_gateway_reports_total", "accepted", ""] >= reports
    assert found["shufflebandit_gateway_acknowledgement_seconds_count",] > 2
    assert found["shufflebandit_gateway_acknowledgement_seconds_sum",] > 0.02
    assert found["shufflebandit_gateway_held_reports",] == 0


async def _metrics(settings: Settings) -> dict[tuple[str, ...], float]:
    """Samples of a worker, by name and label values."""
    url = f"http://127.0.0.1:{settings.metrics.port}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        families = text_string_to_metric_families(await answer.text())
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


async def _play(url: str) -> str:
    """Send what the open batches ask for until the experiment has ended; returns its state."""
    async with asyncio.timeout(60), aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"{url}/experiments/edge") as answer:
                shown = await answer.json() if answer.status == 200 else {"state": "", "open": []}
            if shown["state"] not in ("", "running"):
                return str(shown["state"])
            for entry in shown["open"]:
                middle = entry["terms"]["parameters"]["clip"]
                reports = [
                    {"batch": entry["batch"], "id": secrets.token_hex(16), "ones": middle}
                    for _ in range(min(1000, entry["terms"]["batch_size"]))
                ]
                wanted = body(*reports, experiment="edge")
                async with session.post(f"{url}/reports", json=wanted) as answer:
                    assert answer.status in (202, 422, 503)
            await asyncio.sleep(0.1)
