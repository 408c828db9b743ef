"""The pages and the API: files, words, and the transcript of an experiment's sums."""

import http.client

import aiohttp
import pytest

from stream_app.core.wording import guarantee, promise
from tests.monitor.site import FakeSums, MonitorSite, ScriptedRun, demo, feed


@pytest.mark.parametrize(
    "path",
    ["/web/../pages.py", "/web/%2e%2e%2fpages.py", "/web/", "/web/nothing.js", "/web//etc/passwd"],
)
def test_only_the_pages_files_are_served(site: MonitorSite, path: str) -> None:
    """No path leads out of the folder."""
    connection = http.client.HTTPConnection("127.0.0.1", site.settings.port, timeout=5)
    connection.request("GET", path)

    assert connection.getresponse().status == 404


async def test_the_api_has_the_words(site: MonitorSite, client: aiohttp.ClientSession) -> None:
    """State, guarantee, certificate and assumptions are sentences in the API too."""
    site.do(feed, site.view, ScriptedRun(demo()))
    async with client.get("/api/experiments/demo") as answer:
        shown = await answer.json()

    words = shown["words"]
    assert words["state"] == "decided: serve spring"
    assert words["guarantee"] == guarantee(demo().agent, 100_000)
    assert words["privacy"] == promise(demo().privacy)
    assert "90%" in words["assumptions"][1]
    assert "One report alone hides little" in words["assumptions"][4]
    assert {one["arm"] for one in shown["eliminated"]} == {"summer", "autumn", "winter", "plain"}
    assert shown["regret"][-1][:2] == [shown["users"], pytest.approx(shown["estimated_regret"])]
    assert shown["arms"][0]["track"][-1][1:] == [
        pytest.approx(shown["arms"][0][key], abs=1e-5) for key in ("mean", "lower", "upper")
    ]


async def test_transcript(site: MonitorSite, client: aiohttp.ClientSession) -> None:
    """Lines as they come from the topic; `start` is an offset."""
    site.do(site.view.assignment, ScriptedRun(demo()).assignment())
    async with client.get("/api/experiments/demo/sums") as answer:
        lines = await answer.read()
    async with client.get("/api/experiments/demo/sums?start=17"):
        pass
    async with client.get("/api/experiments/demo/sums?start=-1") as wrong:
        pass
    async with client.get("/api/experiments/nobody/sums") as missing:
        pass

    assert b'{"offset":0}\n' == lines
    assert answer.headers["Content-Type"] == "application/x-ndjson; charset=utf-8"
    assert [("demo", None), ("demo", 17)] == site.sums.asked
    assert (400, 404) == (wrong.status, missing.status)
    assert site.sums.closed == 2


async def test_transcript_without_kafka(site: MonitorSite, client: aiohttp.ClientSession) -> None:
    """503 and one line; if it happens in between, the last line says so."""
    site.stop()
    site.do(site.view.assignment, ScriptedRun(demo()).assignment())
    found = []
    for chunks in ((None,), (b"{}\n", None)):
        site.sums = FakeSums(*chunks)
        site.start()
        async with client.get("/api/experiments/demo/sums") as answer:
            found.append((answer.status, (await answer.text()).splitlines()[-1]))
        site.stop()

    error = '{"error":"kafka.bootstrap = \'here\': no Kafka answers there"}'
    assert [(503, error), (200, error)] == found
