"""The bounds of MATH 4 in their printed form, solved by scipy: what tests compare with."""

import math

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from stream_app.core.confidence import Confidence
from stream_app.core.experiment import Experiment
from stream_app.core.phased_agent import PhasedAgent
from stream_app.core.schedules import Plan

NOISES = [
    {"mechanism": "discrete-laplace"},
    {"mechanism": "binomial"},
    {"mechanism": "binomial", "schedule": "doubling"},
    {"mechanism": "discrete-laplace", "honest": "0.9", "epsilon": "0.2"},
]


def confidence(value: Experiment) -> Confidence:
    return PhasedAgent(value).rules(0).confidence


def psi(value: Experiment, size: int, theta: float) -> float:
    """MATH 4's log-MGF of one batch's centred noise, in its printed form."""
    mechanism = value.privacy.for_batch(size)
    if value.privacy.mechanism == "binomial":
        n = size * mechanism.trials
        q = mechanism.success
        return n * math.log(1 + q * (math.exp(theta) - 1)) - n * q * theta
    p = math.exp(-float(value.privacy.epsilon))
    inner = (
        2 * math.log(1 - p) - math.log(1 - p * math.exp(theta)) - math.log(1 - p * math.exp(-theta))
    )
    return size / mechanism.promise.honest * inner


def batches_of(value: Experiment, plan: Plan, batches: int) -> list[tuple[int, float]]:
    """(n_j, w_j) of an arm's first batches, from MATH 5."""
    result = []
    for size in plan.sizes[:batches]:
        variance = value.privacy.for_batch(size).variance
        weighted = value.agent.schedule == "geometric"
        result.append((size, 1 / (0.25 + variance / size) if weighted else 1.0))
    return result


def theta_limit(value: Experiment, parts: list[tuple[int, float]]) -> float:
    end = float(value.privacy.epsilon) if value.privacy.mechanism == "discrete-laplace" else 20.0
    return 0.9999 * end / max(w for _, w in parts)


def least(function, limit: float) -> tuple[float, float]:  # noqa: ANN001
    """Global minimum over theta in (0, limit): a log grid, then scipy's bounded search."""
    grid = np.geomspace(limit * 1e-5, limit, 60)
    best = int(np.argmin([function(t) for t in grid]))
    ends = (math.log(grid[max(0, best - 1)]), math.log(grid[min(len(grid) - 1, best + 1)]))
    found = minimize_scalar(
        lambda x: function(math.exp(x)), bounds=ends, method="bounded", options={"xatol": 1e-9}
    )
    return math.exp(found.x), found.fun


def cramer(value: Experiment, parts: list[tuple[int, float]], total: float, level: float) -> float:
    """MATH 4's upper bound by scipy: brentq for mu inside a search for theta."""

    def bound(theta: float) -> float:
        target = level + theta * total + sum(psi(value, n, -theta * w) for n, w in parts)

        def excess(mu: float) -> float:
            return target + sum(n * math.log1p(mu * math.expm1(-theta * w)) for n, w in parts)

        if excess(0.0) <= 0:
            return 0.0
        return 1.0 if excess(1.0) >= 0 else brentq(excess, 0, 1, xtol=1e-13)

    return least(bound, theta_limit(value, parts))[1]
