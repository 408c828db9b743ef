"""The gateway's numbers: what happened, and nothing of who sent it or what was said."""

import asyncio
import random
import re

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from stream_app.errors import Unavailable
from stream_app.gateway import Gateway
from stream_app.gateway.mixer import Full
from stream_app.metrics.edge import EdgeMetrics
from stream_app.metrics.instruments import Metrics
from tests.gateway.build import ORIGIN, Site, batch_of, body, report, running


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
    """Held reports, as they come and go; nothing of who is connected, which tells who leaves."""
    async with running() as site:
        site.mixer.waiting = 7
        async with site.get("/v1/experiments/test/events") as stream:
            await stream.content.readline()
            open_now = exposed(site.gateway)
            async with site.get("/healthz") as answer:
                healthy = await answer.json()
        assert scraped(site.gateway)["held_reports",] == 7

    assert "connections" not in open_now
    assert healthy == {"kafka": True, "assignments": True, "waiting": 7}


async def test_a_handover_moves_nothing_until_it_leaves() -> None:
    """Pages are left at random moments; what a scrape or a probe shows is as if none was.

    When they leave for `reports`, they are counted as the reports of pages that stayed.
    """
    chance = random.Random(7)
    lateness = "999999." + batch_of().partition(".")[2]
    closed = "0." + batch_of().partition(".")[2]
    async with running() as site:
        metrics = Metrics()
        metrics.registry.register(site.gateway.metrics)
        before = await shown(site, metrics)
        until = asyncio.get_running_loop().time() + 4.0
        left = [report(chance.choice([batch_of(), closed, lateness])) for _ in range(40)]
        for one in [*left, report(ones="x")]:
            await asyncio.sleep(chance.random() * 0.03)
            left_ms = round(1000 * (until - asyncio.get_running_loop().time()))
            async with site.hand_over(one, left_ms) as answer:
                assert answer.status == (422 if one["ones"] == "x" else 202)
            assert before == await shown(site, metrics)
        assert site.mixer.sent == []
        late = sum(one["batch"] == closed for one in left)
        async with asyncio.timeout(30):
            while sum(site.gateway.metrics.reports.values()) < len(left):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        found = scraped(site.gateway)

    assert 40 - late == len(site.mixer.sent) == found["reports_total", "accepted", ""]
    assert 40 - late == found["requests_total", "202"]
    assert late == found["reports_total", "refused", "late"] == found["requests_total", "422"]


async def shown(site: Site, metrics: Metrics) -> tuple[list[str], bytes]:
    """All that a scrape and a probe see, less CPU and memory of the process and the probes."""
    hidden = ("process_cpu", "process_virtual", "process_resident", "# ")
    lines = metrics.expose().decode().splitlines()
    seen = [line for line in lines if not line.startswith(hidden)]
    return seen, site.gateway._health()[1]


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

    assert 4 == len(families)
    assert all(family.documentation.endswith(".") for family in families)
