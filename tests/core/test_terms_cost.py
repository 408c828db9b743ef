"""What it costs to check terms is bounded before it is paid, and what is honest stays accepted."""

from decimal import Decimal
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_app.core.accounting import MOST_STEPS, ONE, one_sided_steps
from stream_app.core.binomial import MAX_TRIALS
from stream_app.core.discrete_laplace import MOST_TABLE_STEPS, DiscreteLaplace, table_steps
from stream_app.core.mechanisms import Mechanism, MechanismName, calibrate
from stream_app.core.promise import MAX_REPORT_BITS, MIN_EPSILON, Calibration, Promise
from stream_app.core.terms import (
    MOST_CERTIFICATES,
    MOST_REFUSED,
    Checks,
    Limits,
    Terms,
    batch_id,
    check,
)
from stream_app.errors import ConfigurationError, InvalidInput

# Nothing here is about limits: what costs too much is refused whatever they are.
WIDE = Limits(max_epsilon=Decimal(100), max_honest_fraction=Decimal(1))


def laplace(size: int = 100, epsilon: str = "0.5", delta: str = "0.000001") -> Mechanism:
    return calibrate(Promise(Decimal(epsilon), Decimal(delta), size))


@pytest.mark.parametrize(
    ("epsilon", "parameters"),
    [
        ("0.00001", {"clip": 10_000_000, "table_bits": 128}),
        ("0.009", {"clip": 5_000, "table_bits": 64}),
        ("0.01", {"clip": 30_000, "table_bits": 64}),
        ("0.5", {"clip": 10_000_000, "table_bits": 64}),
    ],
)
def test_terms_that_would_stop_everyone(epsilon: str, parameters: dict[str, int]) -> None:
    """An eps of 1e-5 with a clip of 1e7 took 4 s and 443 MB: refused in one line, unread."""
    raw: dict[str, Any] = Terms("demo", 7, "blue", laplace(), 0).as_json()
    raw |= {"epsilon": epsilon, "parameters": parameters}
    with pytest.raises(InvalidInput, match=r"terms: (epsilon|clip) = \S+: must be from [0-9.]+ to"):
        check(batch_id(raw), raw, WIDE)


@given(
    trials=st.integers(1, MAX_TRIALS),
    numerator=st.integers(1, ONE - 1) | st.integers(0, 63).map(lambda bits: 1 << bits),
    epsilon=st.floats(float(MIN_EPSILON), 50),
)
def test_any_certificate_is_a_short_walk(trials: int, numerator: int, epsilon: float) -> None:
    """Of all that terms can state: so many terms in each direction."""
    assert one_sided_steps(trials, numerator, epsilon) <= MOST_STEPS
    assert one_sided_steps(trials, ONE - numerator, epsilon) <= MOST_STEPS


@pytest.mark.parametrize("bits", [64, 128])
@pytest.mark.parametrize("epsilon", ["0.01", "0.5", "50"])
def test_the_largest_table(epsilon: str, bits: int) -> None:
    """The largest clip that is accepted takes the most steps, and one more is refused."""
    promise = Promise(Decimal(epsilon), Decimal("0.000001"), 100)
    most = MOST_TABLE_STEPS - table_steps(0, bits, float(epsilon))
    found = DiscreteLaplace.rebuild(promise, Calibration.EXACT, {"clip": most, "table_bits": bits})

    assert MOST_TABLE_STEPS == table_steps(most, bits, float(epsilon))
    assert found.max_ones < 2 * MOST_TABLE_STEPS
    with pytest.raises(ConfigurationError, match=f"clip = {most + 1}: must be from 1 to {most}"):
        DiscreteLaplace.rebuild(promise, Calibration.EXACT, {"clip": most + 1, "table_bits": bits})


@pytest.mark.parametrize(
    ("epsilon", "size"),
    list(product(["0.01", "0.1", "0.5", "0.99", "2", "8"], [2, 32, 1000, 10**6, 10**9])),
)
@pytest.mark.parametrize("delta", ["0.000000000001", "0.0001"])
def test_what_presets_ask_for_is_accepted(epsilon: str, delta: str, size: int) -> None:
    """Every mechanism and calibration over the documented range: calibrated, then checked."""
    promise = Promise(Decimal(epsilon), Decimal(delta), size)
    for name, calibration in product(MechanismName, Calibration):
        laplace_paper = name is MechanismName.DISCRETE_LAPLACE and calibration is Calibration.PAPER
        if laplace_paper or (calibration is Calibration.PAPER and promise.epsilon >= 1):
            continue
        mechanism = calibrate(promise, name, calibration)
        terms = Terms("demo", 1, "blue", mechanism, 0)

        assert terms == check(terms.batch_id, terms.as_json(), WIDE)
        assert mechanism.max_ones <= 1 + MAX_REPORT_BITS


def test_an_assignment_has_few_kinds_of_noise() -> None:
    """A thousand batches of one size are one certificate; a thousand sizes are not computed."""
    alike = Checks(WIDE)
    for number in range(1000):
        terms = Terms("demo", number, "blue", laplace(), 0)

        assert terms == alike.check(terms.batch_id, terms.as_json())
    many = Checks(WIDE)
    for number in range(MOST_CERTIFICATES):
        terms = Terms("demo", number, "blue", laplace(100 + number), 0)
        many.check(terms.batch_id, terms.as_json())
    other = Terms("demo", 99, "blue", laplace(99), 0)
    with pytest.raises(InvalidInput, match="more than 4 kinds of noise"):
        many.check(other.batch_id, other.as_json())


class Unread(dict[str, Any]):
    """Terms that nobody may look at."""

    def __iter__(self) -> Any:
        raise AssertionError("read")


def test_after_some_that_are_refused_the_rest_is_not_read() -> None:
    checks = Checks(WIDE)
    for number in range(MOST_REFUSED):
        with pytest.raises(InvalidInput, match="exactly the keys"):
            checks.check(f"{number}.x", {})
    with pytest.raises(InvalidInput, match="not read, 16 of its assignment were refused"):
        checks.check("99.x", Unread())
