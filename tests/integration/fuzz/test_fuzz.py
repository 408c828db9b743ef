"""50 000 inputs in CI; `make fuzz INPUTS=1000000` for more."""

from pathlib import Path

import pytest

from stream_app.local.broker import LocalBroker
from tests.integration.fuzz.fuzz import run

SEED = 271828  # of the inputs; `make fuzz` draws another each time


@pytest.mark.kafka
@pytest.mark.slow
async def test_no_record_stops_a_stage(broker: LocalBroker, tmp_path: Path) -> None:
    """Every record is counted, memory does not grow, and real experiments beside it are right."""
    found = await run(broker, tmp_path, 50_000, SEED)
    print(found)

    assert sum(found["sent"].values()) >= 50_000
    assert min(found["kinds"].values()) > 0
    batches, reports = found["audited"]
    assert batches > 5
    assert reports == found["reports"]["accepted"]
