"""A chaos run of two to three minutes in all, in CI; `make chaos MINUTES=n` for longer ones."""

from pathlib import Path

import pytest

from stream_app.local.broker import LocalBroker
from tests.integration.chaos.chaos import run, small_disk

SEED = 814689  # of the schedule; `make chaos` draws another each time


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_nothing_is_lost_or_counted_twice(tmp_path: Path) -> None:
    """Kills, freezes and restarts of workers, producers and broker: the auditor finds nothing."""
    with small_disk() as disk, LocalBroker(disk) as broker:
        events = await run(broker, tmp_path, minutes=1.5, seed=SEED)
    print(dict(events))

    assert events["kill worker"] + events["kill producer"] >= 15
    assert events["batches"] > 100
    assert events["lists"] > 0
