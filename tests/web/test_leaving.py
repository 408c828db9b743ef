"""Pages that are left, in a real Chromium, on a real Kafka: they count like pages that stay."""

import asyncio
import dataclasses
import random
import time
from typing import Any

import orjson
import pytest
from scipy import stats

from stream_app.local.broker import LocalBroker, free_port
from tests.gateway.test_on_kafka import publish, serving, written
from tests.integration.service import settings_for, topics
from tests.web.chromium import Page, chromium
from tests.web.test_browser import MODULE

pytestmark = [pytest.mark.slow, pytest.mark.kafka]

VISITORS = 200
AT_ONCE = 24  # tabs
WINDOW_S = 3
LATEST_S = WINDOW_S + 6
# Of each hundred: what a browser on a crowded machine may lose.
MISSING = 2
# Both ways out are 100 draws of one distribution; a smaller p-value is a false alarm once in 1e5.
P_VALUE = 1e-5
SHOP = b"""<!doctype html><title>shop</title><a id=away href="AWAY">buy</a><script type=module>
import { connect } from "/shufflebandit.js";
const name = (key) => `${location.search} ${key}`;  // a memory for each visitor, in one browser
const storage = {
  getItem: (key) => localStorage.getItem(name(key)),
  setItem: (key, value) => localStorage.setItem(name(key), value),
  removeItem: (key) => localStorage.removeItem(name(key)),
};
window.bandit = await connect("GATEWAY", "shop", { windowS: WINDOW, storage });
await bandit.choose();
window.entry = bandit.ledger().reports[0];
document.getElementById("away").onclick = () => { bandit.report(1); };
</script>"""


def pages(port: int) -> dict[str, Any]:
    """The shop is on localhost; gateway and the page that its link leads to on 127.0.0.1."""
    shop = SHOP.replace(b"AWAY", f"http://127.0.0.1:{port}/away.html".encode())
    shop = shop.replace(b"GATEWAY", f"http://127.0.0.1:{port}".encode())
    shop = shop.replace(b"WINDOW", str(WINDOW_S).encode())
    return {
        "/shop.html": lambda: ("text/html", shop),
        "/away.html": lambda: ("text/html", b"<!doctype html><title>away</title>"),
        "/shufflebandit.js": lambda: ("text/javascript", MODULE.read_bytes()),
    }


@dataclasses.dataclass
class Visit:
    """One visitor."""

    leaves: bool
    report_id: str
    until_ms: float


async def visit(page: Page, port: int, number: int, leaves: bool, wait: float) -> Visit:
    """Somebody who clicks and follows the link at some moment of the window; or who just looks."""
    url = f"http://localhost:{port}/shop.html?{number}"
    await page.call("Page.navigate", url=url)
    entry = await page.until(f"location.search === '?{number}' && window.entry", within_s=90)
    if leaves:
        await asyncio.sleep(wait * max(0.0, entry["untilMs"] / 1000 - time.time()))
        await page.run("document.getElementById('away').click()")
        await page.until("document.title === 'away'", within_s=90)
    else:
        await page.until("bandit.ledger().reports[0].state === 'sent'", within_s=90)
    return Visit(leaves, entry["id"], entry["untilMs"])


async def test_who_clicks_and_leaves_is_counted_like_who_stays(broker: LocalBroker) -> None:
    """200 visitors, half of whom click and follow a link: as many of both count, at like times.

    Arrival on `reports` after the end of the window: Kolmogorov-Smirnov of both groups,
    false-failure probability 1e-5.
    """
    port = free_port()
    base = settings_for(broker.bootstrap)
    edge = dataclasses.replace(
        base.gateway, port=port, origins=f"http://localhost:{port}", hold_ms=50
    )
    settings = dataclasses.replace(base, gateway=edge)
    await topics(settings, 4)
    await publish(settings, "shop", attribution_s=str(WINDOW_S))
    chance = random.Random(3)
    leaving = [number % 2 == 0 for number in range(VISITORS)]
    chance.shuffle(leaving)
    waiting = [(number, leaves, 0.8 * chance.random()) for number, leaves in enumerate(leaving)]
    visits: list[Visit] = []

    async def tab(page: Page) -> None:
        while waiting:
            visits.append(await visit(page, port, *waiting.pop()))

    async with serving(settings, pages(port)), chromium() as browser:
        # A profile for each: tabs of one window would hide each other, which is to be left, too.
        tabs = [await browser.page() for _ in range(AT_ONCE)]
        await asyncio.gather(*map(tab, tabs))
        left_s = max(one.until_ms for one in visits) / 1000 + LATEST_S - WINDOW_S - time.time()
        await asyncio.sleep(max(0.0, left_s) + 1)
        records = await written(settings, "shop")
    arrived = {orjson.loads(record.value)["id"]: record.timestamp for record in records}
    after_ms = {
        leaves: [
            arrived[one.report_id] - one.until_ms
            for one in visits
            if one.leaves is leaves and one.report_id in arrived
        ]
        for leaves in (True, False)
    }

    half = VISITORS // 2
    print({leaves: len(found) for leaves, found in after_ms.items()})
    assert all(half - MISSING <= len(found) <= half for found in after_ms.values())
    assert len(records) == len(arrived)
    assert min(after_ms[True] + after_ms[False]) >= 1000
    assert stats.ks_2samp(after_ms[True], after_ms[False]).pvalue > P_VALUE


async def test_a_page_that_comes_back(broker: LocalBroker) -> None:
    """Left without a click, back in time, clicked, and left again: the second value is counted."""
    port = free_port()
    base = settings_for(broker.bootstrap)
    edge = dataclasses.replace(base.gateway, port=port, origins=f"http://localhost:{port}")
    settings = dataclasses.replace(base, gateway=edge)
    await topics(settings, 4)
    await publish(settings, "shop", attribution_s=str(WINDOW_S))
    async with serving(settings, pages(port)), chromium() as browser:
        page = await browser.page()
        shop = f"http://localhost:{port}/shop.html"
        await page.open(shop, "window.entry")
        noise = await page.run("entry.ones")
        await page.open(f"http://127.0.0.1:{port}/away.html")
        await page.open(shop, "window.entry")
        await page.run("document.getElementById('away').click()")
        await page.until("document.title === 'away'")
        await asyncio.sleep(LATEST_S + 1)
        records = await written(settings, "shop")

    assert [noise + 1] == [orjson.loads(record.value)["ones"] for record in records]
