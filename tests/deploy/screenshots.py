"""Takes the documents' pictures of Grafana from a real run: python -m tests.deploy.screenshots"""

import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from tests.deploy.observing import ROOT
from tests.support.chromium_fixtures import Browser

FOLDER = ROOT / "deploy" / "screenshots"
COMMAND = (sys.executable, "-m", "stream_app", "observe", "--free-ports", "--rate", "45")
LOADING = '[aria-label="Panel loading bar"]'
WIDTH = 1280
HEIGHT = 1400


def take(browser: Browser, name: str) -> None:
    """The first rows, in 160 colours: small, and no worse to read."""
    until(lambda: browser.run(f"return document.querySelector({LOADING!r}) === null"), 60)
    whole = Image.open(browser.screenshot(name))
    part = whole.crop((0, 0, WIDTH, HEIGHT)).quantize(160, dither=Image.Dither.NONE)
    part.save(FOLDER / f"{name}.png", optimize=True)


def until(holds: Callable[[], bool], within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(1)


def answers(address: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(address):  # noqa: S310
        return True
    return False


def look(browser: Browser, address: str) -> None:
    """The dashboard in two states: a run in which two arms are out, and its decision."""
    size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.open(f"{address.partition('?')[0]}?theme=light&from=now-8m&to=now")
    until(lambda: browser.text().split().count("out") >= 2, 600)
    time.sleep(80)
    take(browser, "grafana-running")
    until(lambda: "decided" in browser.text().split(), 600)
    time.sleep(15)
    take(browser, "grafana-decided")


def main() -> None:
    chromium = shutil.which("chromium")
    driver = shutil.which("chromedriver")
    assert chromium, "apt-get install chromium"
    assert driver, "apt-get install chromium-driver"
    assert shutil.which("grafana"), "grafana: not in PATH"
    observe = subprocess.Popen(COMMAND, stdout=subprocess.PIPE, text=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(Path(profile), chromium, driver)
        try:
            assert observe.stdout is not None
            said = (line.split() for line in observe.stdout)
            address = next(words[1] for words in said if words[0] == "grafana")
            until(lambda: answers(address), 120)
            look(browser, address)
        finally:
            browser.driver.quit()
            observe.terminate()
            observe.wait(30)


if __name__ == "__main__":
    main()
