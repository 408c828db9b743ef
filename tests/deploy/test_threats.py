"""The figures of deploy/SECURITY.md: they are what the code gives, by two ways where there are."""

import math
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import nbinom

from deploy import threats
from stream_app.core import accounting
from stream_app.core.binomial import Binomial
from stream_app.core.discrete_laplace import DiscreteLaplace
from stream_app.core.mechanisms import MechanismName, calibrate
from stream_app.core.promise import Promise

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "deploy" / "SECURITY.md").read_text()


def laplace(users: int = threats.USERS) -> DiscreteLaplace:
    found = threats.mechanism_for(MechanismName.DISCRETE_LAPLACE, users)
    assert isinstance(found, DiscreteLaplace)
    return found


def binomial(users: int = threats.USERS) -> Binomial:
    found = threats.mechanism_for(MechanismName.BINOMIAL, users)
    assert isinstance(found, Binomial)
    return found


@pytest.mark.parametrize("table", [threats.rights, threats.sybil, threats.poisoning])
def test_the_page_has_the_tables(table: threats.Table) -> None:
    assert table() in PAGE


def test_the_page_has_the_figures_in_its_text() -> None:
    forged = [threats.forged_to_move("0.05", 1000, name) for name in reversed(MechanismName)]
    half = calibrate(Promise(threats.EPSILON, threats.DELTA, 1000, Decimal("0.5")))

    assert f"1000 with {forged[0]} false reports under discrete Laplace, {forged[1]} under" in PAGE
    assert f"has {half.variance / laplace().variance:.1f} times the variance" in PAGE


def test_the_summary_has_the_same_figures() -> None:
    """What the page says in short."""
    both = (binomial(), laplace())
    deltas = [mechanism.delta_left(500) for mechanism in both]
    left = [threats.upward(threats.epsilon_left(d, float(threats.DELTA))) for d in deltas]
    moved = [threats.upward(threats.reach(mechanism), 2) for mechanism in both]

    assert f"eps is {left[0]} (binomial) or {left[1]} (discrete Laplace)" in PAGE
    assert f"up to {moved[0]} rewards each there (binomial) or {moved[1]} (discrete" in PAGE


def test_shuffled_reports_alone_are_not_private() -> None:
    """The page's figure; and a simulation of 4000 batches agrees.

    A test that guesses a user's reward from the count alone is right more often than (0.5, 0.35)
    allows. The standard error of its advantage is below 0.012: 10 of them to the bound.
    """
    bound = threats.delta_of_shuffled_reports(laplace())
    rng = np.random.default_rng(17)
    share = laplace().share_masses
    middle = laplace().clip
    counts = rng.binomial(threats.USERS - 1, share[middle + 1], (2, 4000))
    own = rng.random((2, 4000))
    unrewarded = (counts[0] + (own[0] < share[middle + 1]) == 0).mean()
    rewarded = (counts[1] + (own[1] < share[middle]) == 0).mean()

    assert f"delta is at least {math.floor(1000 * bound) / 1000}:" in PAGE
    assert f"it is at least {math.floor(1000 * binomial().success) / 1000}, since" in PAGE
    assert bound > 0.35
    assert unrewarded - math.exp(0.5) * rewarded == pytest.approx(bound, abs=0.05)


@pytest.mark.parametrize("honest", [800, 500, 200])
def test_laplace_by_its_closed_form(honest: int) -> None:
    """Below the honest fraction the loss is ln f(0)/f(1) of two negative binomials' difference."""
    mechanism = laplace()
    shape = honest / mechanism.promise.honest
    stop = 1 - math.exp(-float(threats.EPSILON))
    masses = nbinom(shape, stop).pmf(np.arange(400))
    difference = [masses[: 400 - d] @ masses[d:] for d in (0, 1)]
    found = threats.epsilon_left(mechanism.delta_left(honest), float(threats.DELTA))

    assert math.log(difference[0] / difference[1]) == pytest.approx(found, abs=2e-4)


@pytest.mark.parametrize("honest", [1000, 900, 500])
def test_binomial_by_its_distribution(honest: int) -> None:
    """The certificate is the divergence of the distribution itself."""
    mechanism = binomial()
    q = mechanism.success
    noise = accounting.total_masses(np.array([1 - q, q]), honest * mechanism.trials)
    left = mechanism.delta_left(honest)
    for epsilon in (0.5, 0.8):
        exact = accounting.hockey_stick(noise, epsilon)

        assert left(epsilon) == pytest.approx(exact, rel=1e-3, abs=2e-10)


def test_the_promise_holds_at_the_honest_fraction() -> None:
    """Exact figures lie below what the terms certify."""
    for mechanism in (laplace(), binomial()):
        exact = mechanism.delta_left(mechanism.promise.honest)(float(threats.EPSILON))

        assert exact <= mechanism.certified_delta * (1 + 1e-9) <= float(threats.DELTA) * (1 + 1e-9)


@pytest.mark.parametrize("users", threats.SIZES)
def test_false_reports_reach_as_far_as_stated(users: int) -> None:
    """The formulas beside the table, and the estimate of a sum in which one report is false."""
    forged = laplace(users)
    honest = binomial(users)
    flat = honest.success_numerator == 1 << 63
    share = honest.trials / 2 if flat else honest.success
    formula = 1 + honest.trials / 2 if flat else 2 - honest.success

    assert threats.reach(forged) == forged.clip + 1
    assert threats.reach(honest) == pytest.approx(formula)
    for mechanism, mean in ((forged, forged.clip), (honest, share)):
        rest = round(mean * (users - 1))
        highest = mechanism.debias(rest + mechanism.max_ones) - mechanism.debias(rest) - mean

        assert highest <= threats.reach(mechanism) + 1e-9
