"""What confidence bounds know of noise: moments, and many batches at once."""

import math

import numpy as np
import pytest

from stream_app.core.binomial import BinomialNoise
from stream_app.core.discrete_laplace import LaplaceNoise
from stream_app.core.mechanisms import MechanismName, calibrate
from stream_app.core.noise import NoNoise, stack
from stream_app.core.promise import Calibration
from tests.core.noises import KINDS, promise


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [2, 50, 10**5])
@pytest.mark.parametrize("honest", ["1", "0.9"])
def test_variance_and_log_mgf_agree(
    kind: tuple[MechanismName, Calibration], size: int, honest: str
) -> None:
    """psi(0) = psi'(0) = 0 and psi''(0) is the stated variance."""
    mechanism = calibrate(promise(size, honest=honest), *kind)
    h = 1e-3
    psi = mechanism.noise.log_mgf(np.array([-h, 0.0, h]))

    assert psi[1] == 0
    assert mechanism.variance == pytest.approx((psi[0] + psi[2]) / h**2, rel=1e-3)
    assert abs(psi[2] - psi[0]) / (2 * h) < 0.01 * math.sqrt(mechanism.variance)


def test_stacked_noise() -> None:
    """Many batches in one value give each batch's own log-MGF."""
    theta = np.array([0.1, 0.2])
    binomial = [BinomialNoise(10.0, 0.5), BinomialNoise(20.0, 0.1)]
    laplace = [LaplaceNoise(1.0, 0.5), LaplaceNoise(1.2, 0.5)]
    for noises in (binomial, laplace):
        each = [float(n.log_mgf(t)) for n, t in zip(noises, theta, strict=True)]
        assert each == pytest.approx(stack(noises).log_mgf(theta).tolist())
    assert stack([NoNoise(), NoNoise()]).log_mgf(theta).tolist() == [0, 0]
    assert (stack(binomial).limit, NoNoise().limit) == (30.0, 30.0)
    assert stack(laplace).limit == 0.5


@pytest.mark.parametrize(
    "noise", [BinomialNoise(40.0, 0.3), LaplaceNoise(1.0, 0.5), LaplaceNoise(10 / 9, 0.2)]
)
def test_noise_moments(noise: BinomialNoise | LaplaceNoise) -> None:
    """Drawn noise is centred and has psi''(0) as its variance; 5 standard errors, fixed seed."""
    drawn = noise.draw(200_000, np.random.default_rng(4))
    h = 1e-3
    variance = float(np.sum(noise.log_mgf(np.array([h, -h])))) / h**2
    kurtosis = np.mean((drawn - drawn.mean()) ** 4)

    assert abs(drawn.mean()) < 5 * math.sqrt(variance / len(drawn))
    assert abs(drawn.var() - variance) < 5 * math.sqrt(kurtosis / len(drawn))


def test_no_noise() -> None:
    """Without privacy the sums are the rewards'."""
    assert NoNoise().draw(3, np.random.default_rng(1)).tolist() == [0, 0, 0]
