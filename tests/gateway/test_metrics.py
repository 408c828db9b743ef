"""The gateway's numbers: what happened, and nothing of who sent it or what was said."""

import asyncio
import re

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from stream_app.errors import Unavailable
from stream_app.gateway import Gateway
from stream_app.gateway.mixer import Full
from stream_app.metrics.edge import EdgeMetrics
from tests.gateway.build import ORIGIN, body, report, running


def exposed(gateway: Gateway) -> str:
    registry = CollectorRegistry()
    registry.register(gateway.metrics)
    return generate_latest(registry).decode()


def scraped(gateway: Gateway) -> dict[tuple[str, ...], float]:
    """Samples by name without the prefix, and label values."""
    return {
        (sample.name.removeprefix("shufflebandit_gateway_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(exposed(gateway))
        for sample in family.samples
    }


async def test_requests_and_reports_by_outcome() -> None:
    """Each request and each report is counted once, whatever became of it."""
    async with running(max_reports_per_s=1) as site:
        posts = [
            body(report(ones=3), report(ones=-1), report(ones="x")),
            body(report(), experiment="nobody"),
            body(*[report() for _ in range(600)]),
            body(*[report() for _ in range(600)]),
            {"no": "reports"},
        ]
        for content in posts:
            async with site.post(content):
                pass
        async with site.get("/v1/experiments/test"):
            pass
        found = scraped(site.gateway)

    assert {key[1:]: value for key, value in found.items() if key[0] == "reports_total"} == {
        ("accepted", ""): 601,
        ("refused", "out_of_range"): 1,
        ("refused", "malformed"): 1,
        ("refused", "unknown_experiment"): 1,
        ("turned_away", "rate"): 600,
    }
    assert {key[1:]: value for key, value in found.items() if key[0] == "requests_total"} == {
        ("202",): 2,
        ("404",): 1,
        ("429",): 1,
        ("400",): 1,
        ("200",): 1,
    }


@pytest.mark.parametrize("fails", [Full(), Unavailable("Kafka is away")])
async def test_reports_that_kafka_did_not_take(fails: Exception) -> None:
    """Turned away, all of the request: the sender sends all of it again."""
    async with running() as site:
        site.mixer.fails = fails
        async with site.post(body(report(), report(ones=-1))) as answer:
            assert answer.status == 503

        assert scraped(site.gateway)["reports_total", "turned_away", "busy"] == 2


async def test_how_things_stand() -> None:
    """Open connections and held reports, as they come and go."""
    async with running() as site:
        site.mixer.waiting = 7
        async with site.get("/v1/experiments/test/events") as stream:
            await stream.content.readline()
            open_now = scraped(site.gateway)
        await asyncio.sleep(0.1)
        later = scraped(site.gateway)

    assert (1, 7) == (open_now["connections",], open_now["held_reports",])
    assert later["connections",] == 0


async def test_nothing_of_a_sender_or_a_reward() -> None:
    """No label but status, outcome and reason; two rewards leave the same numbers."""
    marks = {"User-Agent": "agent-mark", "X-Forwarded-For": "10.9.8.7", "Origin": ORIGIN}
    texts = []
    for ones in (3, 4):
        async with running() as site:
            async with site.post(body(report(ones=ones)), **marks) as answer:
                assert answer.status == 202
            texts.append(exposed(site.gateway))

    assert texts[0] == texts[1]
    assert {"status", "outcome", "reason", "le"} == set(re.findall(r'[{,](\w+)="', texts[0]))


def test_a_gateway_that_did_nothing() -> None:
    """All families are there from the beginning."""
    families = list(EdgeMetrics().collect())

    assert 5 == len(families)
    assert all(family.documentation.endswith(".") for family in families)
