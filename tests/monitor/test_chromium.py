"""The page in a real Chromium: every state, live, without a console error, for any name."""

import asyncio
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from producers.simulated_users import run_users
from stream_app import registry
from stream_app.local.broker import LocalBroker, free_port
from stream_app.settings import MonitorSettings
from tests.integration import service
from tests.monitor.site import MonitorSite, ScriptedRun, demo, feed
from tests.support.chromium_fixtures import Browser

MARKUP = "<img src=x onerror=alert(1)>"


@pytest.fixture
def site() -> Iterator[MonitorSite]:
    running = MonitorSite().start()
    yield running
    running.close()


def until(holds: Callable[[], Any], within_s: float = 10) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)


def overflow(browser: Browser) -> int:
    """By how many pixels the page is too wide."""
    root = "document.documentElement"
    return int(browser.run(f"return {root}.scrollWidth - {root}.clientWidth"))


def settle() -> None:
    """Charts are drawn in the frame after their size is known."""
    time.sleep(0.4)


def test_empty(browser: Browser, site: MonitorSite) -> None:
    """Nothing yet: the page says how to begin, and shows the first experiment by itself."""
    browser.open(site.url)
    until(lambda: "No experiment yet" in browser.text())

    assert "shufflebandit experiment create FILE.toml" in browser.text()
    assert browser.text("#connection") == "live"
    browser.screenshot("empty")

    site.do(site.view.assignment, ScriptedRun(demo()).assignment())
    until(lambda: "demo" in browser.text("table.list"))
    assert "No experiment yet" not in browser.text()
    settle()
    browser.screenshot("list")
    assert browser.complaints() == []


def test_unknown_experiment(browser: Browser, site: MonitorSite) -> None:
    """Its page says so, and comes to life when the experiment is created."""
    browser.open(f"{site.url}/experiments/demo")
    until(lambda: "No such experiment yet" in browser.text())
    site.do(site.view.assignment, ScriptedRun(demo()).assignment())
    until(lambda: "running: phase 1" in browser.text(".summary"))

    assert "No batch has been released yet." in browser.text()
    assert "reports are deleted from their topic once" in browser.text("p.reports")
    assert "No such experiment yet" not in browser.text()
    settle()
    browser.screenshot("begun")
    assert browser.complaints() == []


def test_running_to_decided(browser: Browser, site: MonitorSite) -> None:
    """The page follows the run without a reload: numbers, charts, dropped arms, the winner."""
    run = ScriptedRun(demo())
    site.do(feed, site.view, run, 14)
    browser.open(f"{site.url}/experiments/demo")
    until(lambda: "running: phase 3" in browser.text(".summary"))
    settle()
    browser.run("window.mark = 1")
    browser.screenshot("running")

    assert 5 == browser.run("return document.querySelectorAll('.arms tbody tr').length")
    assert 5 == browser.run("return document.querySelectorAll('polyline.line').length - 2")

    site.do(feed, site.view, run)
    until(lambda: "decided: serve spring" in browser.text(".summary"))
    settle()

    assert browser.run("return window.mark") == 1
    assert "nothing is promised of the winner's name" in browser.text(".summary")
    assert "winner" in browser.text(".arms tr.winner")
    assert 4 == browser.run("return document.querySelectorAll('.arms tr.out').length")
    assert "One report alone hides little" in browser.text()
    href = browser.run("return document.querySelector('a[href$=sums]').href")
    assert href == f"{site.url}/api/experiments/demo/sums"
    browser.screenshot("decided")
    browser.looks(dark=True)
    settle()
    browser.screenshot("decided-dark")
    assert browser.complaints() == []


def test_stopped(browser: Browser, site: MonitorSite) -> None:
    """An operator's stop is not a decision, and the page says whose it was."""
    run = ScriptedRun(demo())
    site.do(feed, site.view, run, 20)
    site.do(site.view.assignment, run.stop())
    browser.open(f"{site.url}/experiments/demo")
    until(lambda: "stopped by the operator" in browser.text(".summary"))
    settle()
    browser.screenshot("stopped")

    assert "leader" in browser.text(".arms tr.winner")
    assert browser.complaints() == []


def test_service_down(browser: Browser, site: MonitorSite) -> None:
    """The page says that it reconnects, then that the service is down, and what it still shows."""
    site.do(feed, site.view, ScriptedRun(demo()), 14)
    browser.open(f"{site.url}/experiments/demo")
    until(lambda: browser.text("#connection") == "live")
    site.stop()
    until(lambda: browser.text("#connection").startswith("reconnecting since "))
    settle()
    browser.screenshot("reconnecting")
    until(lambda: browser.text("#connection").startswith("service down: showing the state of "), 15)
    settle()
    browser.screenshot("service-down")

    assert "running: phase 3" in browser.text(".summary")
    assert all("ERR_" in said or "Failed to load" in said for said in browser.complaints())

    site.start()
    until(lambda: browser.text("#connection") == "live", 15)


def test_kafka_away(browser: Browser, site: MonitorSite) -> None:
    """The service is there, but what it shows is old."""
    browser.open(site.url)
    until(lambda: browser.text("#connection") == "live")
    site.health.connected = False
    site.do(site.view.assignment, ScriptedRun(demo()).assignment())
    until(lambda: browser.text("#connection").startswith("Kafka is away: showing the state of "))
    site.health.connected = True
    until(lambda: browser.text("#connection") == "live")

    assert browser.complaints() == []


def test_refused(browser: Browser) -> None:
    """A page too many is told why."""
    site = MonitorSite(max_streams=0).start()
    try:
        browser.open(site.url)
        until(lambda: "monitor.max_streams" in browser.text("#connection"))
    finally:
        site.close()


def test_markup_in_names(browser: Browser, site: MonitorSite) -> None:
    """Names of arms are text, whatever is in them, everywhere; so is a name in the address."""
    run = ScriptedRun(demo("markup", (MARKUP, "<b>bold</b>", "a" * 100), horizon=20_000))
    site.do(feed, site.view, run)
    assert run.state.serve is not None
    browser.open(f"{site.url}/experiments/markup")
    until(lambda: MARKUP in browser.text(".arms"))
    settle()
    browser.screenshot("markup")

    assert 0 == browser.run("return document.querySelectorAll('main img, main b').length")
    assert MARKUP in browser.text(".phases") or MARKUP in browser.text(".summary")
    browser.open(site.url)
    until(lambda: "markup" in browser.text("table.list"))
    assert 0 == browser.run("return document.querySelectorAll('main img, main b').length")
    browser.open(f"{site.url}/experiments/%3Cb%3Ex")
    until(lambda: "no experiment named <b>x" in browser.text())
    assert browser.complaints() == []


@pytest.mark.parametrize("width", [360, 320])
def test_phone(browser: Browser, site: MonitorSite, width: int) -> None:
    """Readable on a phone: nothing to scroll sideways, with long names too."""
    site.do(feed, site.view, ScriptedRun(demo()))
    long = ScriptedRun(demo("x" * 64, ("w" * 100, "m" * 100, MARKUP), horizon=20_000))
    site.do(feed, site.view, long)
    browser.looks(width)
    for name in ("demo", "x" * 64):
        browser.open(f"{site.url}/experiments/{name}")
        until(lambda: "decided" in browser.text(".summary"))
        settle()
        browser.screenshot(f"phone-{width}-{name[:4]}")
        assert overflow(browser) <= 0
    browser.open(site.url)
    until(lambda: "demo" in browser.text("table.list"))
    browser.screenshot(f"phone-{width}-list")

    assert overflow(browser) <= 0
    assert browser.complaints() == []


def test_keyboard_and_screen_reader(browser: Browser, site: MonitorSite) -> None:
    """Charts have a name and their numbers as a table; what is focused stays focused."""
    run = ScriptedRun(demo())
    site.do(feed, site.view, run, 14)
    browser.open(f"{site.url}/experiments/demo")
    until(lambda: "running" in browser.text(".summary"))
    settle()
    images = "return [...document.querySelectorAll('svg[role=img]')].map(i => i.ariaLabel)"
    assert all(browser.run(images))
    browser.run(
        "document.querySelector('summary').click(); document.querySelector('summary').focus()"
    )
    until(lambda: "Lower" in browser.text("details"))
    rows = "return document.querySelectorAll('details tbody tr').length"
    before = browser.run(rows)
    site.do(feed, site.view, run, 4)
    until(lambda: browser.run(rows) > before)

    assert browser.run("return document.activeElement.tagName") == "SUMMARY"
    assert browser.run("return document.querySelector('details').open")
    browser.open(site.url)
    until(lambda: "demo" in browser.text("table.list"))
    browser.run("document.querySelector('table.list a').focus()")
    site.do(feed, site.view, run)
    until(lambda: "decided" in browser.text("table.list"))
    assert browser.run("return document.activeElement.tagName") == "A"


def test_nothing_jumps(browser: Browser, site: MonitorSite) -> None:
    """From the first release on, sections stay where they are."""
    run = ScriptedRun(demo())
    site.do(feed, site.view, run, 1)
    browser.open(f"{site.url}/experiments/demo")
    until(lambda: "running" in browser.text(".summary"))
    settle()
    boxes = (
        "return [...document.querySelectorAll('section.card:not([hidden]) > h2')].slice(0, 4)"
        ".map(h => Math.round(h.getBoundingClientRect().top))"
    )
    before = browser.run(boxes)
    site.do(feed, site.view, run, 20)
    until(lambda: "phase 4" in browser.text(".summary") or "phase 5" in browser.text(".summary"))
    settle()

    assert before == browser.run(boxes)


@pytest.mark.slow
@pytest.mark.kafka
def test_the_whole_service(browser: Browser, broker: LocalBroker, tmp_path: Path) -> None:
    """A real run: live to its decision; the service hangs, dies and returns, and the page knows."""
    port = free_port()
    settings = dataclasses.replace(
        service.settings_for(broker.bootstrap), monitor=MonitorSettings(port=port)
    )
    definition = service.experiment("page", horizon=20_000, means=[0.8, 0.7, 0.5])
    asyncio.run(service.topics(settings, 2))
    asyncio.run(registry.create(settings.kafka, definition))
    with service.workers(settings, tmp_path, "shuffle,agent", "monitor") as (_, monitor):
        until(lambda: "running: monitor" in monitor.log.read_text(), 20)
        browser.open(f"http://127.0.0.1:{port}/experiments/page")
        until(lambda: "running: phase" in browser.text(".summary"), 20)
        browser.run("window.mark = 1")
        send = run_users(settings, "page", rate=5_000, seed=1, experiment=definition)
        users = threading.Thread(target=asyncio.run, args=(send,))
        users.start()
        until(lambda: "Nobody reports any more" in browser.text(".summary"), 60)
        users.join()
        settle()
        browser.screenshot("service-decided")

        assert browser.run("return window.mark") == 1
        assert browser.complaints() == []
        lines = browser.run(
            "return fetch('/api/experiments/page/sums').then(a => a.text())"
        ).splitlines()
        shown = browser.run("return fetch('/api/experiments/page').then(a => a.json())")
        assert len(lines) == shown["sums"]

        monitor.pause()
        until(lambda: browser.text("#connection").startswith("reconnecting since"), 30)
        monitor.resume()
        until(lambda: browser.text("#connection") == "live", 30)
        monitor.kill()
        until(lambda: browser.text("#connection").startswith("service down"), 30)
        monitor.start()
        until(lambda: browser.text("#connection") == "live", 30)
        assert "Nobody reports any more" in browser.text(".summary")
