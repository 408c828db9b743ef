import numpy as np
import pytest

from producers.replay import arrow
from producers.replay.records import encode


@pytest.mark.parametrize("zone", ["", "Z", "+01:00"])
def test_times_by_column_are_those_one_by_one(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough different ones for arrow, and rows that have none."""
    texts = [f"2024-01-{1 + i % 28:02}T10:{i // 28:02}:07.25{zone}" for i in range(500)]
    column = encode([*texts, None, *texts[::3]])
    by_column = arrow.timestamps(column)
    monkeypatch.setattr(arrow, "INSTALLED", False)

    np.testing.assert_array_equal(arrow.timestamps(column), by_column)
    assert np.isnan(by_column[500])
