"""Promises: what is allowed, how it is spelled, and how many users are surely honest."""

from decimal import Decimal

import pytest

from stream_app.core.promise import Promise, plain
from stream_app.errors import ConfigurationError
from tests.core.noises import promise


@pytest.mark.parametrize(
    ("size", "honest", "expected"), [(1, "0.1", 1), (10, "0.9", 9), (7, "0.5", 3)]
)
def test_honest_users(size: int, honest: str, expected: int) -> None:
    """h = max(1, floor(gm))."""
    assert expected == promise(size, honest=honest).honest


def test_honest_users_are_exact() -> None:
    """floor(gm) in exact arithmetic, for every honest fraction that the terms can state."""
    assert promise(10, honest="0." + "9" * 35).honest == 9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((Decimal(0), Decimal("0.1"), 5), "epsilon = 0: must be above 0"),
        ((Decimal(-1), Decimal("0.1"), 5), "epsilon = -1: must be above 0"),
        ((Decimal("Infinity"), Decimal("0.1"), 5), "epsilon = Infinity: must be above 0"),
        ((Decimal("NaN"), Decimal("0.1"), 5), "epsilon = NaN: must be above 0"),
        ((Decimal("0.000009"), Decimal("0.1"), 5), "epsilon = 0.000009: must be from"),
        ((Decimal(1), Decimal(0), 5), "delta = 0: must be between 0 and 1, both excluded"),
        ((Decimal(1), Decimal(1), 5), "delta = 1: must be between 0 and 1, both excluded"),
        ((Decimal(1), Decimal("0.1"), 0), "batch_size = 0: must be a whole number from 1 to 10"),
        ((Decimal(1), Decimal("0.1"), 10**9 + 1), "batch_size = 1000000001: must be"),
        ((Decimal(1), Decimal("0.1"), 5, Decimal(0)), r"honest_fraction = 0: must be in \(0, 1\]"),
        ((Decimal(1), Decimal("0.1"), 5, Decimal("1.1")), "honest_fraction = 1.1: must be in"),
    ],
)
def test_bad_promises(arguments: tuple[Decimal, Decimal, int], message: str) -> None:
    """An error names the setting, its value and what is allowed."""
    with pytest.raises(ConfigurationError, match="^" + message):
        Promise(*arguments)


@pytest.mark.parametrize("setting", ["delta", "honest_fraction"])
def test_not_a_number(setting: str) -> None:
    """NaN is refused like every other bad value."""
    values = {"delta": Decimal("0.1"), "honest_fraction": Decimal(1), setting: Decimal("NaN")}
    with pytest.raises(ConfigurationError, match=setting):
        Promise(Decimal(1), batch_size=5, **values)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0.000001", "0.000001"),
        ("1E-6", "0.000001"),
        ("0.50", "0.5"),
        ("10", "10"),
        ("1E+2", "100"),
    ],
)
def test_canonical_decimals(value: str, expected: str) -> None:
    """One spelling per number."""
    assert expected == plain(Decimal(value))
