import pytest

from producers.replay import columns
from producers.replay.columns import parse_filter
from stream_app.errors import ConfigurationError


def test_filters() -> None:
    """Equal to one of some, unequal, and compared as numbers."""
    assert parse_filter("position=1,2").keeps(2)
    assert not parse_filter("position = 1,2").keeps("3")
    assert parse_filter("country!=NL").keeps(None)
    assert parse_filter("age>=18").keeps("20")
    assert not parse_filter("age>=18").keeps("young")
    for wrong in ("position", "age<old"):
        with pytest.raises(ConfigurationError, match="--where"):
            parse_filter(wrong)


def test_times_in_every_spelling() -> None:
    """Seconds, milliseconds, microseconds; ISO 8601 with and without zone; nothing."""
    for value in (1704067200, "1704067200000", 1704067200000000, "2024-01-01T00:00:00Z",
                  "2024-01-01 01:00:00+01:00", "2024-01-01"):  # fmt: skip
        assert 1704067200 == columns.seconds(value)
    assert columns.seconds("soon") is None
