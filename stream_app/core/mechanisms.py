"""Which mechanisms there are: what each user adds to the reward, and what is known of the sum.

A mechanism is one frozen value, made for one batch size: it is calibrated for a promise or rebuilt
from stated parameters, encodes a reward, removes the bias of a total, and states its noise and its
certificate. Whoever uses one asks the value and never which it is. To add one: a module with a
class that does what `Mechanism` lists, a line in `MechanismName`, its tests, and the same noise in
the browser's client (producers/web).

Privacy noise comes from the operating system's generator; other sources are for tests, for replays
(a secret key's stream) and, from numpy, for simulations.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import ClassVar, Protocol, Self

from stream_app.core.binomial import Binomial
from stream_app.core.discrete_laplace import DiscreteLaplace
from stream_app.core.noise import Noise
from stream_app.core.promise import Calibration, Promise
from stream_app.core.samplers import Entropy, ManyShares, Sampler


class Mechanism(Protocol):
    """The noise of one batch, and all that anybody asks of it."""

    name: ClassVar[str]
    parameter_names: ClassVar[frozenset[str]]
    # Those that can be beyond JSON's whole numbers: strings in the terms.
    wide_parameters: ClassVar[frozenset[str]]

    @classmethod
    def calibrate(cls, promise: Promise, calibration: Calibration) -> "Mechanism":
        """The noise that the promise needs from its honest users. Raises ConfigurationError."""

    @classmethod
    def rebuild(
        cls, promise: Promise, calibration: Calibration, parameters: Mapping[str, int], /
    ) -> "Mechanism":
        """The noise that was stated, right or wrong. Raises ConfigurationError if out of range."""

    @property
    def promise(self) -> Promise:
        """What the noise is to keep."""

    @property
    def calibration(self) -> Calibration:
        """How the amount of noise was found."""

    @property
    def parameters(self) -> dict[str, int]:
        """What a stranger needs, beside the promise, to recompute the certificate."""

    @property
    def certified_delta(self) -> float:
        """An upper bound of delta at the promised eps, with noise from the honest users only."""

    def delta_left(self, honest: int) -> Callable[[float], float]:
        """Delta as a function of eps, when only so many users add their noise."""

    @property
    def max_ones(self) -> int:
        """A report is an integer from 0 to this."""

    @property
    def variance(self) -> float:
        """Of the total noise when all users are honest."""

    @property
    def sub_gaussian_variance(self) -> float:
        """The sigma^2 that the paper's radius and batch size ask for (MATH 3 and 5)."""

    @property
    def noise(self) -> Noise:
        """The centred total noise, for confidence bounds and simulations."""

    def debias(self, total: int) -> float:
        """total - E[B]."""

    def sampler(self, entropy: Entropy = ...) -> Sampler:
        """What a client uses to encode rewards; by default from the operating system."""

    def many_shares(self, entropy: Entropy) -> ManyShares:
        """The shares that `sampler` would draw from this entropy, many at once: for replays.

        Takes just the bytes that are needed, so that it does not matter how many are asked at once.
        """


class MechanismName(StrEnum):
    """The registry: a name on the wire and in files, and the family that it stands for."""

    family: type[Mechanism]

    BINOMIAL = Binomial.name, Binomial
    DISCRETE_LAPLACE = DiscreteLaplace.name, DiscreteLaplace

    def __new__(cls, name: str, *family: type[Mechanism]) -> Self:
        """A member is its name, with its family beside it; a call by name alone is a lookup."""
        member = str.__new__(cls, name)
        member._value_ = name
        [member.family] = family
        return member


@lru_cache(maxsize=65536)
def calibrate(
    promise: Promise,
    name: MechanismName = MechanismName.DISCRETE_LAPLACE,
    calibration: Calibration = Calibration.EXACT,
) -> Mechanism:
    """The mechanism of this name with the noise that the promise needs from its honest users."""
    return name.family.calibrate(promise, calibration)


def rebuild(
    name: MechanismName,
    calibration: Calibration,
    promise: Promise,
    parameters: Mapping[str, int],
) -> Mechanism:
    """A mechanism from a certificate's or a batch's stated parameters, as they stand there."""
    return name.family.rebuild(promise, calibration, parameters)
