"""Terms of one batch, for their tests. Nothing here is under test."""

from decimal import Decimal
from typing import Any

from stream_app.core.mechanisms import Mechanism, MechanismName, calibrate
from stream_app.core.promise import Calibration, Promise
from stream_app.core.terms import Limits, Terms

LIMITS = Limits(min_batch_size=1)


def mechanism(
    name: str = "discrete-laplace", calibration: str = "exact", size: int = 100, honest: str = "0.9"
) -> Mechanism:
    promise = Promise(Decimal("0.5"), Decimal("0.000001"), size, Decimal(honest))
    return calibrate(promise, MechanismName(name), Calibration(calibration))


def terms(*arguments: Any, **named: Any) -> Terms:
    return Terms("demo", 7, "blue", mechanism(*arguments, **named), 1500)


KINDS = [("discrete-laplace", "exact"), ("binomial", "exact"), ("binomial", "paper")]
