"""Reports a second of one worker against batch size, experiments, partitions and checkpoints."""

import statistics
from collections.abc import Sequence
from typing import Any

import uvloop

from stream_app.local.broker import LocalBroker
from tests.benchmarks.scale import crowded
from tests.benchmarks.traffic import drained, waiting

_REPORTS = 200_000
_ROUNDS = 3


def curves() -> list[dict[str, Any]]:
    """One curve for each of the four: the median of some rounds at each point."""
    with LocalBroker(heap="1g") as broker:
        bootstrap = broker.bootstrap
        return [
            _curve("batch size", (100, 1_000, 10_000, 100_000), lambda n: _sized(bootstrap, n)),
            _curve(
                "experiments on 8 partitions, 1 batch each",
                (10, 100, 1_000, 10_000),
                lambda n: _mixed(bootstrap, n, 8),
            ),
            _curve(
                "partitions, 1 000 batches of 200",
                (1, 2, 4, 8, 16),
                lambda n: _mixed(bootstrap, 1_000, n),
            ),
            _curve(
                "max_reread_records, one batch",
                (5_000, 20_000, 100_000, 1_000_000),
                lambda n: _checkpointed(bootstrap, n),
            ),
        ]


def _curve(name: str, points: Sequence[int], measure: Any) -> dict[str, Any]:
    rates = []
    for point in points:
        rates.append(statistics.median(uvloop.run(measure(point)) for _ in range(_ROUNDS)))
        print(f"{rates[-1]:10.0f} reports/s at {point} {name}", flush=True)
    return {"name": name, "points": list(points), "reports_per_second": rates}


async def _sized(bootstrap: str, size: int) -> float:
    # An assignment lists at most 1 000 batches.
    count = min(1_000, _REPORTS // size)
    return count * size / await drained(await waiting(bootstrap, count, size), count)


async def _mixed(bootstrap: str, experiments: int, partitions: int) -> float:
    size = _REPORTS // experiments
    settings = await crowded(bootstrap, [size] * experiments, size, partitions)
    return experiments * size / await drained(settings, experiments, partitions)


async def _checkpointed(bootstrap: str, records: int) -> float:
    """One window that is saved again and again until it is full."""
    settings = await waiting(bootstrap, 1, _REPORTS, max_reread_records=records)
    return _REPORTS / await drained(settings, 1)
