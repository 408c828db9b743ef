"""Kafka is unreachable: said once, tried again, said once that it is back."""

import asyncio
import logging
from collections.abc import Callable

import pytest

from stream_app.errors import Unavailable
from stream_app.kafka.errors import KafkaError
from stream_app.kafka.reconnect import Backoff, Trouble, keep_connected

SOON = Backoff(0.001, 0.001)


def test_waits_double_up_to_the_last() -> None:
    """However long an outage is."""
    backoff = Backoff(0.2, 5.0)

    assert [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0] == [backoff.wait_s(n) for n in range(1, 8)]
    assert backoff.wait_s(10**6) == 5.0


def test_a_random_part_is_added() -> None:
    waits = {Backoff(0.1, 0.1, jitter_s=0.9).wait_s(1) for _ in range(100)}

    assert len(waits) > 1
    assert 0.1 <= min(waits) <= max(waits) < 1.0


def test_a_trouble_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    trouble = Trouble(logging.getLogger("test"))
    trouble.over("not said")
    for _ in range(3):
        trouble.begins("it fails")
    for _ in range(3):
        trouble.over("it works")

    assert ["it fails", "it works"] == caplog.messages


async def test_it_is_tried_until_it_works_and_until_it_is_halted() -> None:
    """Each failure is told, and each connection; nothing is tried after the halt."""
    errors: list[BaseException] = [
        Unavailable("no address"), KafkaError("no leader"), OSError("no route")
    ]  # fmt: skip
    told: list[object] = []
    halt = asyncio.Event()

    async def live(connected: Callable[[], None]) -> None:
        if errors:
            raise errors.pop(0)
        connected()
        halt.set()

    async with asyncio.timeout(5):
        await keep_connected(
            live, lambda error: told.append(type(error)), lambda: told.append("back"), SOON, halt
        )

    assert [Unavailable, KafkaError, OSError, "back"] == told


async def test_a_bug_comes_out() -> None:
    async def live(connected: Callable[[], None]) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await keep_connected(live, lambda _: None, lambda: None, SOON)
