"""Takes the documents' pictures of the page from a real run: python -m tests.monitor.screenshots"""

import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from PIL import Image

from tests.support.chromium_fixtures import Browser

FOLDER = Path(__file__).parents[2] / "deploy" / "screenshots"
COMMAND = (sys.executable, "-u", "-m", "stream_app", "demo", "--rate", "800")


def take(browser: Browser, name: str, width: int, sections: int) -> None:
    """The page's first sections, in 160 colours: small, and no worse to read."""
    browser.looks(width)
    time.sleep(0.6)
    last = f"document.querySelectorAll('.parts > section')[{sections - 1}]"
    height = browser.run(f"return Math.round({last}.getBoundingClientRect().bottom + scrollY)")
    whole = Image.open(browser.screenshot(name))
    part = whole.crop((0, 0, whole.width, height + 12))
    FOLDER.mkdir(parents=True, exist_ok=True)
    part.quantize(160, dither=Image.Dither.NONE).save(FOLDER / f"{name}.png", optimize=True)


def wait(browser: Browser, text: str) -> None:
    deadline = time.monotonic() + 120
    while text not in browser.text(".summary"):
        assert time.monotonic() < deadline, f"{text!r} was never shown"
        time.sleep(0.1)


def until_served(address: str) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), urllib.request.urlopen(address):  # noqa: S310
            return
        time.sleep(0.1)


def main() -> None:
    chromium = shutil.which("chromium")
    driver = shutil.which("chromedriver")
    assert chromium, "apt-get install chromium"
    assert driver, "apt-get install chromium-driver"
    demo = subprocess.Popen(COMMAND, stdout=subprocess.PIPE, text=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(Path(profile), chromium, driver)
        try:
            assert demo.stdout is not None
            address = next(
                found[1] for line in demo.stdout if (found := re.search(r"live: (\S+)", line))
            )
            until_served(address)
            browser.open(address)
            wait(browser, "running: phase 7")
            take(browser, "page-running", 1000, 4)
            take(browser, "page-phone", 360, 2)
            browser.looks(1000)
            wait(browser, "Nobody reports any more")
            take(browser, "page-decided", 1000, 4)
        finally:
            browser.driver.quit()
            demo.terminate()
            demo.wait(30)


if __name__ == "__main__":
    main()
