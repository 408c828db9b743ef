"""All mechanisms: every calibration keeps its promise, and a stranger can rebuild it."""

import numpy as np
import pytest

from stream_app.core.accounting import ONE
from stream_app.core.binomial import Binomial
from stream_app.core.discrete_laplace import DiscreteLaplace
from stream_app.core.mechanisms import Mechanism, MechanismName, calibrate, rebuild
from stream_app.core.promise import MAX_BATCH_SIZE, Calibration
from stream_app.errors import ConfigurationError
from tests.core.build import convolution_power, hockey_stick, share_pmf
from tests.core.noises import (
    BINOMIAL,
    EXACT,
    KINDS,
    LAPLACE,
    PAPER,
    SAMPLED,
    promise,
    share_distribution,
)


@pytest.mark.parametrize(
    ("kind", "size", "expected"),
    [
        ((BINOMIAL, PAPER), 2, 1393),
        ((BINOMIAL, PAPER), 10**9, 2786),
        ((BINOMIAL, EXACT), 2, 67),
        ((BINOMIAL, EXACT), 10**6, 90),
        ((LAPLACE, EXACT), 2, 7.84),
        ((LAPLACE, EXACT), 10**6, 7.84),
    ],
)
def test_variances_of_the_specification(
    kind: tuple[MechanismName, Calibration], size: int, expected: float
) -> None:
    """MATH 2's table at eps .5, delta 1e-6."""
    found = calibrate(promise(size), *kind).variance

    assert expected == pytest.approx(found, abs=0.6 if expected > 10 else 0.005)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 2, 10, 100, 269, 1000, 6000, 10**6, MAX_BATCH_SIZE])
@pytest.mark.parametrize("honest", ["1", "0.9", "0.5", "0.01"])
@pytest.mark.parametrize(("epsilon", "delta"), [("0.1", "0.0001"), ("0.5", "0.000001")])
def test_every_calibration_keeps_its_promise(
    kind: tuple[MechanismName, Calibration], size: int, honest: str, epsilon: str, delta: str
) -> None:
    """The certificate, with noise of the honest users only, is at most the promised delta."""
    mechanism = calibrate(promise(size, epsilon, delta, honest), *kind)

    assert 0 < mechanism.certified_delta <= float(delta)


def test_unprovisioned_dishonesty_breaks_the_promise() -> None:
    """The check above can fail: noise provisioned for all users is too little from half of them."""
    mechanism = calibrate(promise(20, "1", "0.01", "1"), LAPLACE)
    total = convolution_power(share_pmf(20, 1.0, mechanism.clip), 10)

    assert hockey_stick(total, 1.0) > 0.01


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("delta", ["1E-305", "1E-400"])
def test_delta_below_what_floats_hold(kind: tuple[MechanismName, Calibration], delta: str) -> None:
    """A delta that no certificate (or no terms, 61 decimals) can state is refused by name."""
    with pytest.raises(ConfigurationError, match="delta"):
        calibrate(promise(10, "0.5", delta), *kind)


def test_a_calibration_takes_milliseconds_for_a_billion_users() -> None:
    """MATH 2's values at m = 1e9, by all mechanisms."""
    exact, laplace = (calibrate(promise(10**9), name) for name in (BINOMIAL, LAPLACE))

    assert isinstance(exact, Binomial)
    assert isinstance(laplace, DiscreteLaplace)
    assert 10**9 * exact.success == pytest.approx(90.1428, abs=1e-4)
    assert (laplace.clip, laplace.table_bits) == (26, 64)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [2, 100, 10**7])
def test_rebuilt_from_its_parameters(kind: tuple[MechanismName, Calibration], size: int) -> None:
    """A stranger who knows the promise and the parameters makes the same mechanism."""
    mechanism = calibrate(promise(size, honest="0.9"), *kind)

    assert mechanism == rebuild(*kind, mechanism.promise, mechanism.parameters)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (LAPLACE, {"clip": 0}, "clip = 0: must be from 1"),
        (LAPLACE, {"clip": 2**24 + 1}, "clip = 16777217"),
        (LAPLACE, {"table_bits": 32}, "table_bits = 32: must be 64 or 128"),
        (BINOMIAL, {"trials": 0}, "trials = 0: must be a positive multiple of batch_size"),
        (BINOMIAL, {"trials": 101}, "trials = 101: must be a positive multiple"),
        (BINOMIAL, {"trials": 100 << 33}, "at most 33554432 a user"),
        (BINOMIAL, {"success_numerator": 0}, r"success_numerator = 0: must be in \(0, 2\*\*64\)"),
        (BINOMIAL, {"success_numerator": ONE}, "success_numerator = 18446744073709551616"),
        (BINOMIAL, {"success_bits": 53}, "success_bits = 53: must be 64"),
    ],
)
def test_parameters_out_of_range(
    name: MechanismName, changes: dict[str, int], message: str
) -> None:
    """Each stated parameter is checked by name."""
    mechanism = calibrate(promise(100), name)
    with pytest.raises(ConfigurationError, match=message):
        rebuild(name, EXACT, mechanism.promise, {**mechanism.parameters, **changes})


@pytest.mark.parametrize("mechanism", SAMPLED, ids=str)
def test_debias_is_unbiased(mechanism: Mechanism) -> None:
    """debias removes exactly the expected noise of a batch, in exact arithmetic.

    E[B] is m times the exact mean of one share.
    """
    size = mechanism.promise.batch_size
    pmf = share_distribution(mechanism)
    mean = float(pmf @ np.arange(len(pmf)))

    assert mechanism.debias(0) == pytest.approx(-size * mean, rel=1e-9)
    assert mechanism.debias(1234) - mechanism.debias(1233) == pytest.approx(1, abs=1e-9)
