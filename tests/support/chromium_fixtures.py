"""A real Chromium for the tests of web pages; screenshots go to `.cache/screenshots`."""

import base64
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver

SCREENSHOTS = Path(__file__).parents[1] / ".cache" / "screenshots"
_ARGUMENTS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars",
)  # fmt: skip


class Browser:
    """A Chromium window."""

    def __init__(self, profile: Path, chromium: str, driver: str) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        for argument in (*_ARGUMENTS, f"--user-data-dir={profile}"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options, webdriver.ChromeService(driver))

    def open(self, url: str) -> None:
        self.driver.get(url)

    def text(self, selector: str = "body") -> str:
        return str(self.run(f"return document.querySelector({selector!r})?.innerText ?? ''"))

    def run(self, script: str) -> Any:
        return self.driver.execute_script(script)

    def looks(self, width: int = 1100, dark: bool = False) -> None:
        """The window's width, and what the user prefers."""
        metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def screenshot(self, name: str) -> Path:
        """The whole page, as it is now."""
        taken = self.driver.execute_cdp_cmd(
            "Page.captureScreenshot", {"format": "png", "captureBeyondViewport": True}
        )
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        path = SCREENSHOTS / f"{name}.png"
        path.write_bytes(base64.b64decode(taken["data"]))
        return path

    def complaints(self) -> list[str]:
        """What the console says since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests; only a missing program skips."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        remedy = "no Chromium: apt-get install chromium chromium-driver"
        if os.environ.get("CI") == "true":
            pytest.fail(remedy, pytrace=False)
        pytest.skip(remedy)
    browser = Browser(tmp_path_factory.mktemp("chromium"), program, driver)
    yield browser
    browser.driver.quit()


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """The browser with a page of its own, at the usual width, in light colours."""
    chromium.looks()
    chromium.complaints()
    yield chromium
    chromium.open("about:blank")
