"""Noninterference of the gateway: its answers, numbers and log lines do not depend on rewards.

Two gateways get the same requests at the same places, with the same ids and other counts of ones:
valid, repeated, late, malformed, too many. Every byte that comes back, every number that is
exported and every line that is logged must be equal; so must number, order and length of what goes
on to Kafka. Times are left out: the seconds of a histogram, and when to come again.
"""

import random
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tests.gateway.build import batch_of, body, running
from tests.noninterference.world import capturing

RUNS = 60
_HEADERS = ("Date", "Retry-After")


def script(chance: random.Random) -> list[list[dict[str, Any]]]:
    """Requests without their ones."""
    ids = [chance.randbytes(16).hex() for _ in range(12)]
    batches = [batch_of(), batch_of(), "1." + "A" * 43, "999." + "B" * 43, "nonsense"]
    return [
        [
            {"batch": chance.choice(batches), "id": chance.choice(ids)}
            for _ in range(chance.randint(1, 5))
        ]
        for _ in range(chance.randint(1, 6))
    ]


async def visible(requests: list[list[dict[str, Any]]], rewards: random.Random) -> list[object]:
    """What everybody can see of these requests."""
    seen: list[object] = []
    with capturing(seen):
        async with running() as site:
            for reports in requests:
                full = [{**report, "ones": rewards.randint(0, 9)} for report in reports]
                async with site.post(body(*full)) as answer:
                    headers = {k: v for k, v in answer.headers.items() if k not in _HEADERS}
                    seen.append((answer.status, headers, await answer.read()))
                async with site.get("/healthz") as health:
                    seen.append(await health.read())
                registry = CollectorRegistry()
                registry.register(site.gateway.metrics)
                lines = generate_latest(registry).decode().splitlines()
                seen.append([line for line in lines if "seconds" not in line])
            seen.append([(p, key, len(value)) for p, key, value in site.mixer.sent])
    return seen


@pytest.mark.parametrize("seed", range(RUNS))
async def test_other_rewards_look_the_same(seed: int) -> None:
    """Ones that differ in value and in digits are answered, counted and logged alike."""
    requests = script(random.Random(seed))

    one = await visible(requests, random.Random(f"one {seed}"))
    other = await visible(requests, random.Random(f"other {seed}"))

    assert one == other
