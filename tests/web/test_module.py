"""The browser module under Node: vectors, behaviour, and the distribution of its noise."""

import json
import os
import shutil
import subprocess
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from scipy import stats

from producers.web import make_vectors
from stream_app.core.mechanisms import (
    Calibration,
    DiscreteLaplace,
    Mechanism,
    MechanismName,
    Promise,
    calibrate,
)
from stream_app.core.terms import Terms
from tests.core.build import share_pmf

HERE = Path(__file__).parent
DRAWS = 200_000


@pytest.fixture(scope="session")
def node() -> str:
    found = shutil.which("node")
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail("node is missing", pytrace=False)
        pytest.skip("node is missing")
    return found


def test_the_vectors_are_current() -> None:
    """The file is what the code makes now; floats may differ in their last digits elsewhere."""
    stored, made = orjson.loads(make_vectors.FILE.read_bytes()), orjson.loads(make_vectors.dump())
    for before, now in zip(stored["terms"], made["terms"], strict=True):
        assert before.pop("certified_delta") == pytest.approx(now.pop("certified_delta"), rel=1e-12)

    assert stored == made, "run: python -m producers.web.make_vectors"


def test_python_agrees_with_the_vectors() -> None:
    """It accepts what is to be accepted and refuses what is to be refused."""
    stored = orjson.loads(make_vectors.FILE.read_bytes())

    assert all(make_vectors.accepts(one["id"], one["terms"]) for one in stored["terms"])
    assert not any(make_vectors.accepts(one["batch"], one["terms"]) for one in stored["refused"])


def test_the_module(node: str) -> None:
    """All of tests/web/*.test.mjs."""
    files = sorted(map(str, HERE.glob("*.test.mjs")))
    done = subprocess.run(
        [node, "--test", *files], capture_output=True, text=True, check=False, timeout=120
    )

    assert done.returncode == 0, done.stdout[-8000:]
    assert "# pass 0" not in done.stdout


def mechanism(name: str, size: int, epsilon: str = "1") -> Mechanism:
    promise = Promise(Decimal(epsilon), Decimal("0.000001"), size, Decimal("0.9"))
    return calibrate(promise, MechanismName(name), Calibration.EXACT)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (mechanism("discrete-laplace", 2), None),
        (mechanism("discrete-laplace", 40, "0.3"), None),
        (mechanism("binomial", 2), stats.binom(80, 0.5)),
        (mechanism("binomial", 1000), stats.binom(1, mechanism("binomial", 1000).success)),  # type: ignore[union-attr]
    ],
    ids=["laplace", "laplace-spread", "fair-bits", "biased-bit"],
)
def test_the_noise_has_the_exact_distribution(node: str, made: Mechanism, expected: Any) -> None:
    """Chi-square of 200 000 draws of crypto.getRandomValues; false-failure probability 1e-7.

    Against negative binomials convolved by mpmath, and scipy's binomial.
    """
    terms = orjson.dumps(Terms("x", 0, "a", made).as_json()).decode()
    done = subprocess.run(
        [node, HERE / "histogram.mjs", terms, str(DRAWS)],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    counts = np.array(json.loads(done.stdout), dtype=float)
    if isinstance(made, DiscreteLaplace):
        promise = made.promise
        chances = share_pmf(promise.honest, promise.effective_epsilon, made.clip)
    else:
        chances = expected.pmf(np.arange(len(counts)))

    assert counts.sum() == DRAWS
    wanted = DRAWS * chances
    common = wanted >= 10
    counts = np.append(counts[common], counts[~common].sum())
    wanted = np.append(wanted[common], wanted[~common].sum())
    kept = wanted > 0
    assert stats.chisquare(counts[kept], wanted[kept] * DRAWS / wanted[kept].sum()).pvalue > 1e-7
