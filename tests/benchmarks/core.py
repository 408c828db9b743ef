"""The core: encoding, simulation, calibration, decisions."""

import secrets
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import numpy as np
from scipy import stats

from stream_app.config import load_experiment
from stream_app.core import accounting, simulation
from stream_app.core.experiment import Experiment
from stream_app.core.mechanisms import Promise, calibrate
from tests.benchmarks.harness import Outcome, compare, seconds

FILE = Path(__file__).parents[2] / "deploy" / "experiments" / "five-arms.toml"


def outcomes() -> Iterator[Outcome]:
    """All comparisons of this module."""
    experiment = load_experiment(FILE)
    yield compare(
        "simulation: 100 runs of optimal, T = 1e6",
        "the same at T = 1e5",
        seconds(lambda: _runs(replace(experiment, horizon=100_000))),
        seconds(lambda: _runs(experiment)),
        target=1.5,
    )
    sampler = calibrate(Promise(Decimal("0.5"), Decimal("1e-6"), 1000)).sampler()
    yield compare(
        "encode one reward, noise from the operating system",
        "secrets.token_bytes(8)",
        seconds(lambda: [secrets.token_bytes(8) for _ in range(100_000)]),
        seconds(lambda: [sampler.encode(1) for _ in range(100_000)]),
        target=3.0,
    )
    yield compare(
        "exact binomial delta, m = 1e6",
        "scipy.stats.binom on the same support by the textbook formula",
        seconds(_textbook_delta),
        seconds(_our_delta),
        target=0.1,
    )


def _runs(experiment: Experiment) -> None:
    job = simulation.Job("optimal", experiment, simulation.private_runs)
    for index, size in enumerate(simulation.blocks(100)):
        job.block(1, index, size)


def _textbook_delta() -> float:
    users, success, growth = 1_000_000, 90.2 / 1_000_000, np.exp(0.5)
    support = np.arange(users + 2)
    mass = stats.binom.pmf(support, users, success)
    shifted = np.concatenate(([0.0], mass[:-1]))
    return float(
        max(
            np.maximum(mass - growth * shifted, 0).sum(),
            np.maximum(shifted - growth * mass, 0).sum(),
        )
    )


def _our_delta() -> float:
    accounting.binomial_delta.cache_clear()
    return accounting.binomial_delta(1_000_000, int(90.2 / 1_000_000 * accounting.ONE), 0.5)
