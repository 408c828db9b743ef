"""MATH 6's reference regrets, by simulation: five arms, T = 1e6, eps .5, delta 1e-6, all honest."""

import math

import numpy as np
import pytest

from stream_app.core.simulation import Job, blocks, private_runs, summarise
from tests.core.build import experiment

MEANS = (0.75, 0.70, 0.60, 0.60, 0.60)
HIGH = {"guarantee": "high-probability"}
ROWS = [
    ("vb-sdp-ae", {}, 68_400, 400),
    ("vb-sdp-ae", {"calibration": "exact", "test": "chernoff"}, 3_470, 40),
    ("vb-sdp-ae", {"calibration": "exact", "test": "pairwise"}, 2_139, 27),
    ("optimal", {"schedule": "doubling", **HIGH}, 1_259, 12),
    ("optimal", HIGH, 1_048, 10),
    ("optimal", {}, 748, 8),
    ("kl-ucb", HIGH, 458, 4),
    ("kl-ucb", {}, 334, 3),
]


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "changes", "regret", "error"), ROWS)
def test_reference_regret(preset: str, changes: dict[str, str], regret: int, error: int) -> None:
    """Mean regret of 300 runs within 3 combined standard errors of the reference.

    Fixed seed; for eight right rows and random seeds one would fail with probability 2%.
    """
    job = Job(preset, experiment(preset, 10**6, means=MEANS, **changes), private_runs)
    result = summarise(job, [job.block(7, i, runs) for i, runs in enumerate(blocks(300))])

    assert abs(result.regret_mean - regret) <= 3 * math.hypot(error, result.regret_sem)
    assert result.regret_sem > 0
    assert np.all(np.diff(result.regret) >= 0)
