"""Experiments and exact distributions for the tests of the core. Nothing here is under test."""

from decimal import Decimal
from typing import Any

import mpmath
import numpy as np

from stream_app.core.experiment import (
    PRESETS,
    AgentSettings,
    Comparison,
    Experiment,
    Guarantee,
    Order,
    Privacy,
    ScheduleName,
    Simulation,
)
from stream_app.core.mechanisms import MechanismName
from stream_app.core.promise import Calibration

_ENUMS: dict[str, Any] = {
    "test": Comparison,
    "guarantee": Guarantee,
    "schedule": ScheduleName,
    "order": Order,
    "mechanism": MechanismName,
    "calibration": Calibration,
}


def experiment(
    preset: str = "optimal",
    horizon: int = 10_000,
    arms: int = 2,
    *,
    epsilon: str = "0.5",
    delta: str = "0.000001",
    honest: str = "1",
    means: tuple[float, ...] | None = None,
    users: int | None = None,
    **changes: Any,
) -> Experiment:
    """An experiment from a preset; `changes` override its privacy or agent settings by name."""
    values = {**PRESETS[preset]["privacy"], **PRESETS[preset]["agent"], **changes}
    typed = {key: _ENUMS[key](value) if key in _ENUMS else value for key, value in values.items()}
    privacy = {key: typed.pop(key) for key in ("mechanism", "calibration")}
    if means is not None:
        arms = len(means)
    return Experiment(
        name="test",
        arms=tuple(f"arm-{i}" for i in range(arms)),
        horizon=horizon,
        privacy=Privacy(
            Decimal(epsilon), Decimal(delta), honest_fraction=Decimal(honest), **privacy
        ),
        agent=AgentSettings(preset=preset, **typed),
        simulation=None if means is None else Simulation(means, users),
    )


def hockey_stick(pmf: np.ndarray, epsilon: float) -> float:
    """The larger of the two divergences between B and B + 1, term by term (MATH 1)."""
    here = np.append(pmf, 0.0)
    shifted = np.insert(pmf, 0, 0.0)
    growth = np.exp(epsilon)
    return float(
        max(
            np.maximum(0, here - growth * shifted).sum(),
            np.maximum(0, shifted - growth * here).sum(),
        )
    )


def share_pmf(honest: int, epsilon: float, clip: int) -> np.ndarray:
    """P(clip(X - Y, -c, c) = d), d = -c..c, by convolving two mpmath negative binomials."""
    with mpmath.workdps(40):
        r = mpmath.mpf(1) / honest
        p = mpmath.exp(-mpmath.mpf(epsilon))
        reach = clip + int(60 / epsilon) + 2
        mass = [(1 - p) ** r]
        for k in range(reach):
            mass.append(mass[-1] * p * (k + r) / (k + 1))
        half = np.array([float(m) for m in mass])
    whole = np.convolve(half, half[::-1])
    middle = len(half) - 1
    kept = whole[middle - clip : middle + clip + 1].copy()
    kept[0] += whole[: middle - clip].sum()
    kept[-1] += whole[middle + clip + 1 :].sum()
    return kept


def convolution_power(pmf: np.ndarray, times: int) -> np.ndarray:
    """The pmf of a sum of `times` independent copies, by direct convolution."""
    total = np.array([1.0])
    for _ in range(times):
        total = np.convolve(total, pmf)
    return total
