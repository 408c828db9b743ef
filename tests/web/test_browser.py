"""The module in a real Chromium, against a real gateway."""

import asyncio
import contextlib
import dataclasses
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from scipy import stats

from producers.commands.demo_web import pages
from producers.web import make_vectors
from stream_app import registry
from stream_app.core.experiment import Experiment
from stream_app.definitions import resolve
from stream_app.local.broker import LocalBroker, free_port
from stream_app.monitor.view import View
from stream_app.settings import Settings
from tests.gateway.build import Site, assignment, banners, running
from tests.gateway.test_on_kafka import serving, written
from tests.integration.service import check, last_assignment, settings_for, topics, workers
from tests.producers.build import changed
from tests.web.chromium import Chromium, Page, chromium

pytestmark = pytest.mark.slow

WINDOW_S = 1.0
LATEST_S = WINDOW_S + 6.0  # until a report leaves at the latest
AT_ONCE = 12  # visitors
Visit = tuple[Page, dict[str, Any]]
MODULE = make_vectors.FILE.with_name("shufflebandit.js")
VISITOR = b"""<!doctype html><title>visitor</title><p id=message></p><script type=module>
import { connect } from "/shufflebandit.js";
const asked = Object.fromEntries(new URLSearchParams(location.search));
const options = { windowS: Number(asked.window), limits: { maxEpsilon: "2" } };
window.bandit = await connect(asked.url, asked.experiment, options);
window.visit = async (rates) => {
  const arm = await bandit.choose();
  const click = Math.random() < (rates[arm] ?? 0);
  if (click) await bandit.report(1);
  return { arm, click, due: bandit.ledger().reports[0]?.dueMs };
};
window.show = () => bandit.choose().catch((error) => {
  document.getElementById("message").textContent = error.message;
});
window.ready = true;
</script>"""
PAGES = {
    "/visitor.html": lambda: ("text/html", VISITOR),
    "/shufflebandit.js": lambda: ("text/javascript", MODULE.read_bytes()),
}
BODY = re.compile(
    r'\{"experiment":"[a-z]+","reports":\[\{"batch":"\d+\.[\w-]{43}","id":"[0-9a-f]{32}",'
    r'"ones":\d+\} *\]\}'
)
SENT = "bandit.ledger().reports[0]?.state === 'sent'"


def address(port: int, experiment: str) -> str:
    """The page is on localhost, the gateway on 127.0.0.1: two origins."""
    return (
        f"http://localhost:{port}/visitor.html?url=http://127.0.0.1:{port}&experiment={experiment}"
        f"&window={WINDOW_S}"
    )


@contextlib.asynccontextmanager
async def visited(value: bytes | None = None) -> AsyncIterator[tuple[Site, Chromium, str]]:
    """A gateway whose Kafka is played by the test, a browser, and the page's address."""
    port = free_port()
    value = value or assignment(banners(attribution_s="1"))
    origins = f"http://localhost:{port}"
    async with (
        running(value, pages=PAGES, port=port, origins=origins) as site,
        chromium() as browser,
    ):
        yield site, browser, address(port, "test")


async def test_a_tampered_assignment_is_refused_in_the_page() -> None:
    """Less noise than promised: a clear message, and nothing leaves."""

    def less_noise(terms: dict[str, Any]) -> None:
        terms["parameters"]["clip"] -= 2

    value = changed(assignment(banners(attribution_s="1")), less_noise, rehash=True)
    async with visited(value) as (site, browser, url):
        page = await browser.page()
        await page.open(url, "window.ready")
        await page.run("show()")
        said = await page.run("document.getElementById('message').textContent")
        await asyncio.sleep(LATEST_S + 0.3)
        assert page.posts == []
        assert site.mixer.sent == []

    assert re.fullmatch(
        r"batch \S+: its noise gives delta = \S+, more than the stated 0\.000001: "
        r"it would protect less than it says",
        said,
    )


async def test_offline_and_back() -> None:
    """The report waits, and leaves when the network is there again, once."""
    async with visited() as (site, browser, url):
        page = await browser.page()
        await page.open(url, "window.ready")
        await page.run("visit({'arm-0': 1, 'arm-1': 1})")
        await page.offline(True)
        await asyncio.sleep(LATEST_S + 0.5)
        assert site.mixer.sent == []
        assert await page.run("bandit.ledger().reports[0].state") == "waiting"
        await page.offline(False)
        await page.until(SENT)

        bodies = {request.body for request in page.posts}
        assert len(bodies) == 1
        assert len(site.mixer.sent) == 1


async def test_a_closed_tab() -> None:
    """It hands its report over and counts, without another visit; the arm stays the same."""
    async with visited() as (site, browser, url):
        profile = await browser.profile()
        first = await browser.page(profile)
        await first.open(url, "window.ready")
        chosen = await first.run("visit({'arm-0': 1, 'arm-1': 1})")
        kept = await first.run("bandit.ledger().reports[0]")
        await first.close()
        async with asyncio.timeout(30):
            while not site.mixer.sent:  # noqa: ASYNC110
                await asyncio.sleep(0.1)

        second = await browser.page(profile)
        await second.open(url, "window.ready")
        again = await second.run("bandit.choose()")
        await asyncio.sleep(LATEST_S + 0.3)
        values = {value for _, _, value in site.mixer.sent}

    assert chosen["arm"] == kept["arm"] == again
    assert [{key: kept[key] for key in ("batch", "id", "ones")}] == list(map(orjson.loads, values))


async def test_two_tabs_of_a_profile_are_one_visitor() -> None:
    """They show the same arm, and one report leaves."""
    async with visited() as (site, browser, url):
        profile = await browser.profile()
        tabs = [await browser.page(profile) for _ in range(3)]
        await asyncio.gather(*(tab.open(url, "window.ready") for tab in tabs))
        chosen = await asyncio.gather(*(tab.run("visit({'arm-0': 1, 'arm-1': 1})") for tab in tabs))
        await asyncio.sleep(LATEST_S + 0.5)
        await tabs[0].until(SENT)

        assert len({one["arm"] for one in chosen}) == 1
        assert len({value for _, _, value in site.mixer.sent}) == 1


async def test_the_shop_page() -> None:
    """`demo-web`'s page: a click, the clock, and what left, shown as it happens; opting out."""
    port = free_port()
    view = View()
    value = assignment(banners("shop", attribution_s="5"))
    view.assignment(value)
    origins = f"http://localhost:{port}"
    async with running(posted=False, pages=pages(view), port=port, origins=origins) as site:
        site.assignments.post(value, "shop")
        async with chromium() as browser:
            page = await browser.page()
            await page.open(f"http://localhost:{port}/", "document.documentElement?.dataset.ready")
            await page.run("document.getElementById('buy').click()")
            await page.until("document.getElementById('state').textContent.startsWith('Clicked')")
            await page.until(
                "document.getElementById('state').textContent.includes('it counts')", within_s=30
            )
            shown = await page.run("document.querySelector('#log pre').textContent")
            rows = await page.run("document.querySelectorAll('#arms tr').length")
            await page.run("document.getElementById('next').click()")
            await page.until("document.getElementById('state').textContent.startsWith('Not')")
            await page.run("document.getElementById('out').click()")
            await page.until("document.getElementById('state').textContent.includes('opted out')")
            await asyncio.sleep(5 + LATEST_S + 0.3)

            assert [shown] == [request.body for request in page.posts]
            assert rows == 2
            assert len(site.mixer.sent) == 1


def shop() -> Experiment:
    raw = {
        "name": "shop",
        "arms": ["spring", "summer", "winter"],
        "horizon": 60,
        "attribution_s": WINDOW_S,
        "privacy": {"epsilon": 1, "delta": 1e-6},
        "agent": {"order": "interleaved"},
        "simulation": {"means": [0.9, 0.4, 0.1]},
    }
    return resolve(raw, "shop")


@pytest.mark.kafka
async def test_a_hundred_visitors(broker: LocalBroker, tmp_path: Path) -> None:
    """A full experiment by fresh profiles; the auditor's sums are those of the browsers.

    Network bodies hold the noisy report and nothing else, of one size; clickers and others cannot
    be told apart by time (Mann-Whitney, false-failure probability 1e-5).
    """
    port = free_port()
    settings = settings_for(broker.bootstrap)
    edge = dataclasses.replace(
        settings.gateway, port=port, origins=f"http://localhost:{port}", hold_ms=50
    )
    settings = dataclasses.replace(settings, gateway=edge)
    await topics(settings, 4)
    definition = shop()
    await registry.create(settings.kafka, definition)
    with workers(settings, tmp_path, "shuffle,agent"):
        async with serving(settings, PAGES) as gateway, chromium() as browser:
            async with asyncio.timeout(30):
                while gateway.assignments.find("shop") is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            visits: list[Visit] = []
            await asyncio.gather(*(_visitors(browser, port, visits) for _ in range(AT_ONCE)))
    _check_network(visits)
    await _check_log(settings, visits)


async def _visitors(browser: Chromium, port: int, visits: list[Visit]) -> None:
    """One after the other, a hundred by all callers together, and on until the experiment is over.

    How many are asked for a report is chance: it may be decided early, and reports may be late.
    """
    asked = True
    while asked or len(visits) < 100:
        page = await browser.page(url=address(port, "shop"))
        await page.until("window.ready", within_s=60)
        rates = orjson.dumps({"spring": 0.9, "summer": 0.4, "winter": 0.1}).decode()
        visit = await page.run(f"visit({rates})")
        asked = visit.get("due") is not None
        if asked:
            await page.until(SENT, within_s=60)
            visit["outcome"] = await page.run("bandit.ledger().reports[0].outcome")
        await browser.forget(page.context)
        visits.append((page, visit))


def _check_network(visits: list[Visit]) -> None:
    assert all(len(page.posts) == ("due" in visit) for page, visit in visits)
    posts = [(page.posts[0], visit) for page, visit in visits if page.posts]
    assert all(BODY.fullmatch(request.body) for request, _ in posts)
    assert len({len(request.body) for request, _ in posts}) == 1
    headers = [{k.lower(): v for k, v in request.headers.items()} for request, _ in posts]
    assert not any({"cookie", "referer", "authorization"} & set(one) for one in headers)
    assert len({str(sorted(one.items())) for one in headers if one}) == 1
    delays = {
        click: [r.wall_s - v["due"] / 1000 for r, v in posts if v["click"] is click]
        for click in (True, False)
    }
    assert min(delays[True] + delays[False]) >= -0.01  # none before its window has ended
    assert stats.mannwhitneyu(delays[True], delays[False]).pvalue > 1e-5


async def _check_log(settings: Settings, visits: list[Visit]) -> None:
    sent = [
        orjson.loads(page.posts[0].body)["reports"][0]
        for page, visit in visits
        if visit.get("outcome") == "accepted"
    ]
    records = [orjson.loads(record.value) for record in await written(settings, "shop")]
    assert {tuple(one.items()) for one in records} == {tuple(one.items()) for one in sent}
    last = await last_assignment(settings, "shop")
    assert last.state.status in ("decided", "exhausted")
    batches, reports = await check(settings, ["shop"])
    assert batches >= 3
    assert reports >= 12
    print(f"{len(visits)} visitors, {len(sent)} reports, {batches} batches, {last.state.status}")
