"""A headless Chromium over its DevTools protocol: fresh profiles, and what leaves them."""

import asyncio
import contextlib
import itertools
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-background-timer-throttling",
    "--disable-renderer-backgrounding",
    "--disable-backgrounding-occluded-windows",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-default-apps",
    "--disable-breakpad",
    "--disable-spare-renderer-for-site-per-process",
    "--disable-features=SpareRendererForSitePerProcess,Translate,OptimizationHints,MediaRouter",
    "--remote-debugging-port=0",
]


def executable() -> str:
    """Where it is; a test that needs it is skipped without, but not in CI."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    if os.environ.get("CI") == "true":
        pytest.fail("chromium is missing: make browser", pytrace=False)
    pytest.skip("chromium is missing: make browser")


@dataclass
class Request:
    """One request as it left the browser."""

    url: str
    method: str
    body: str
    headers: dict[str, str]
    wall_s: float


@dataclass
class Page:
    """A tab in a profile of its own."""

    browser: "Chromium"
    context: str
    target: str
    session: str
    requests: list[Request] = field(default_factory=list)
    _headers: dict[str, dict[str, str]] = field(default_factory=dict)  # as they really left

    def heard(self, event: str, about: dict[str, Any]) -> None:
        """Note a request; its true headers come in an event of their own, sooner or later."""
        if event == "Network.requestWillBeSentExtraInfo":
            self._headers.setdefault(about["requestId"], {}).update(about["headers"])
        elif event == "Network.requestWillBeSent":
            sent = about["request"]
            headers = self._headers.setdefault(about["requestId"], {})
            self.requests.append(
                Request(
                    sent["url"],
                    sent["method"],
                    sent.get("postData", ""),
                    headers,
                    about["wallTime"],
                )
            )

    async def call(self, method: str, **parameters: Any) -> Any:
        return await self.browser.call(method, self.session, **parameters)

    async def run(self, script: str) -> Any:
        """The value of an expression; promises are awaited."""
        answer = await self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"]["exception"].get("description"))
        return answer["result"].get("value")

    async def until(self, script: str, within_s: float = 15) -> Any:
        """Wait until an expression is true."""
        async with asyncio.timeout(within_s):
            while not (value := await self.run(script)):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return value

    async def open(self, url: str, ready: str = "document.readyState === 'complete'") -> None:
        await self.call("Page.navigate", url=url)
        await self.until(f"location.href.startsWith({url!r}) && ({ready})")

    async def offline(self, away: bool) -> None:
        await self.call(
            "Network.emulateNetworkConditions",
            offline=away, latency=0, downloadThroughput=-1, uploadThroughput=-1,
        )  # fmt: skip

    async def close(self) -> None:
        """Close the tab; the profile stays."""
        await self.browser.call("Target.closeTarget", targetId=self.target)

    @property
    def posts(self) -> list[Request]:
        return [request for request in self.requests if request.method == "POST"]


class Chromium:
    """One browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._pages: dict[str, Page] = {}

    async def call(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        number = next(self._numbers)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": parameters}
        await self._socket.send_json({**message, **({"sessionId": session} if session else {})})
        return await asyncio.wait_for(self._waiting[number], 30)

    async def listen(self) -> None:
        async for message in self._socket:
            raw = message.json()
            if "id" in raw:
                waiting = self._waiting.pop(raw["id"])
                if waiting.cancelled():
                    continue
                if "error" in raw:
                    waiting.set_exception(AssertionError(raw["error"]["message"]))
                else:
                    waiting.set_result(raw["result"])
            elif (page := self._pages.get(raw.get("sessionId", ""))) is not None:
                page.heard(raw["method"], raw["params"])

    async def profile(self) -> str:
        """A fresh profile."""
        made = await self.call("Target.createBrowserContext")
        return str(made["browserContextId"])

    async def page(self, context: str | None = None, url: str = "about:blank") -> Page:
        """A new tab, in a fresh profile if none is given; its first requests may go unheard."""
        context = context or await self.profile()
        made = await self.call("Target.createTarget", url=url, browserContextId=context)
        target = made["targetId"]
        attached = await self.call("Target.attachToTarget", targetId=target, flatten=True)
        page = Page(self, context, target, attached["sessionId"])
        self._pages[page.session] = page
        for domain in ("Page", "Network"):
            await page.call(f"{domain}.enable")
        return page

    async def forget(self, context: str) -> None:
        await self.call("Target.disposeBrowserContext", browserContextId=context)


@contextlib.asynccontextmanager
async def chromium() -> AsyncIterator[Chromium]:
    """A running browser; its processes and its profile are gone afterwards."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = await asyncio.create_subprocess_exec(
            executable(), *FLAGS, f"--user-data-dir={folder}", "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            address = await _address(Path(folder) / "DevToolsActivePort")
            async with (
                aiohttp.ClientSession() as session,
                session.ws_connect(address, max_msg_size=0) as socket,
            ):
                browser = Chromium(socket)
                listening = asyncio.ensure_future(browser.listen())
                try:
                    yield browser
                finally:
                    listening.cancel()
        finally:
            process.terminate()
            await process.wait()


async def _address(file: Path) -> str:
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(FileNotFoundError, ValueError):
                port, path = file.read_text().split()  # noqa: ASYNC240
                return f"ws://127.0.0.1:{port}{path}"
            await asyncio.sleep(0.05)
