"""Schemathesis against the served description: no 500, and no answer that is not described."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.gateway.build import running

CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def description() -> Iterator[Any]:
    """The description of a gateway that runs in a thread of its own."""
    found: list[str] = []
    ready = threading.Event()
    stop = []

    async def serve() -> None:
        end = asyncio.Event()
        async with running() as site:
            found.append(site.url)
            stop.append((asyncio.get_running_loop(), end))
            ready.set()
            await end.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(20)
    with ExitStack() as after:
        after.callback(thread.join)
        after.callback(lambda: stop[0][0].call_soon_threadsafe(stop[0][1].set))
        yield schemathesis.openapi.from_url(f"{found[0]}/v1/openapi.json").exclude(
            path_regex="/events$"  # has no end
        )


def test_no_request_breaks_it(description: Any) -> None:
    """Whatever is asked, the answer is one of those that are described."""
    operations = [found.ok() for found in description.get_all_operations()]
    for operation in operations:

        @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy() | operation.as_strategy(GenerationMode.NEGATIVE))
        def attempt(case: Any) -> None:
            case.call_and_validate(checks=CHECKS, timeout=10)

        attempt()
    assert len(operations) == 4
