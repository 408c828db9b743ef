import math
import pickle
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from stream_app.core import baselines
from stream_app.core.baselines import BASELINES
from stream_app.core.confidence import Ints
from stream_app.core.experiment import (
    AgentSettings,
    Comparison,
    Experiment,
    Guarantee,
    Privacy,
    ScheduleName,
    Simulation,
)
from stream_app.core.mechanisms import MechanismName
from stream_app.core.noise import Floats
from stream_app.core.promise import Calibration
from stream_app.core.simulation import Job, Result, blocks, grid, summarise

SEED = 20


def experiment(
    means: tuple[float, ...] = (0.75, 0.70, 0.60, 0.60, 0.60),
    horizon: int = 1_000_000,
    guarantee: Guarantee = Guarantee.HIGH_PROBABILITY,
    epsilon: str = "0.5",
    users: int | None = None,
) -> Experiment:
    """MATH 6's experiment, unless told otherwise."""
    return Experiment(
        name="reference",
        arms=tuple(f"arm-{i}" for i in range(len(means))),
        horizon=horizon,
        privacy=Privacy(
            Decimal(epsilon),
            Decimal("1e-6"),
            MechanismName.DISCRETE_LAPLACE,
            Calibration.EXACT,
            Decimal(1),
        ),
        agent=AgentSettings("optimal", Comparison.PAIRWISE, guarantee, ScheduleName.GEOMETRIC),
        simulation=Simulation(means, users),
    )


def result(name: str, given: Experiment, runs: int) -> Result:
    job = Job(name, given, BASELINES[name])
    return summarise(job, [job.block(SEED, i, n) for i, n in enumerate(blocks(runs))])


class Quiet:
    """A generator without chance: sums are their means, noise is 0."""

    def binomial(
        self, trials: Ints, success: Floats, size: tuple[int, ...] | None = None
    ) -> Floats:
        return np.broadcast_to(np.asarray(trials) * success, size or np.shape(success))

    def laplace(self, _mean: float, scale: Floats, size: tuple[int, ...] | None = None) -> Floats:
        return np.zeros(size or np.shape(scale))


QUIET: Any = Quiet()


@pytest.mark.parametrize(
    ("name", "guarantee", "runs", "mean", "sem"),
    [
        ("non-private-elimination", Guarantee.HIGH_PROBABILITY, 100, 937, 10),
        ("non-private-elimination", Guarantee.EXPECTED, 100, 649, 8),
        ("non-private-kl-ucb", Guarantee.EXPECTED, 100, 233, 3),
        ("local", Guarantee.EXPECTED, 100, 3580, 50),
        ("central-dp-se", Guarantee.HIGH_PROBABILITY, 600, 6250, 100),
        # Not in MATH 6: this implementation, 400 runs with another seed.
        ("central-dp-ucb-int", Guarantee.HIGH_PROBABILITY, 50, 15_061, 79),
    ],
)
def test_reference_regret(
    name: str, guarantee: Guarantee, runs: int, mean: float, sem: float
) -> None:
    """Regret is MATH 6's within 3 combined standard errors.

    With another seed each case fails with probability 0.3%, one of the six with 1.6%.
    """
    found = result(name, experiment(guarantee=guarantee), runs)

    assert abs(found.regret_mean - mean) <= 3 * math.hypot(found.regret_sem, sem)


@pytest.mark.parametrize("name", BASELINES)
class TestEveryBaseline:
    def test_equal_means_cost_nothing(self, name: str) -> None:
        block = BASELINES[name](experiment((0.3,) * 3, 5_000), 4, np.random.default_rng(SEED))

        assert np.all(block.regret == 0)
        assert np.all(block.curve == 0)

    @pytest.mark.parametrize("users", [None, 7_000, 70_000])
    def test_curve_rises_to_the_regret(self, name: str, users: int | None) -> None:
        """Also when fewer or more users come than the horizon says."""
        given = experiment(horizon=20_000, users=users)
        block = BASELINES[name](given, 5, np.random.default_rng(SEED))

        assert len(block.curve) == len(grid(users or 20_000))
        assert np.all(np.diff(block.curve) >= -1e-9)
        assert block.curve[-1] == pytest.approx(block.regret.sum())
        # Nobody can lose more than the largest gap with each user.
        assert np.all(block.regret <= 0.15 * (users or 20_000) + 1e-6)

    def test_same_seed_same_result(self, name: str) -> None:
        given = experiment(horizon=20_000)
        one = result(name, given, 3)
        two = result(name, given, 3)

        assert one == two

    def test_is_sent_to_other_processes(self, name: str) -> None:
        job = Job(name, experiment(), BASELINES[name])

        assert pickle.loads(pickle.dumps(job)) == job  # noqa: S301


@pytest.mark.parametrize("name", ["non-private-elimination", "non-private-kl-ucb"])
def test_first_batch_fits_a_short_horizon(name: str) -> None:
    """30 users for 2 arms: with two batches of 16 nothing would be learned, and all 30 lost."""
    block = BASELINES[name](experiment((0.0, 1.0), 30), 5, np.random.default_rng(SEED))

    assert np.all(block.regret <= 15)


def test_elimination_keeps_the_guarantee_of_the_experiment() -> None:
    """A paper test becomes pairwise; the guarantee stays."""
    agent = AgentSettings("vb", Comparison.PAPER, Guarantee.HIGH_PROBABILITY, ScheduleName.DOUBLING)
    given = experiment(horizon=20_000)
    paper = replace(given, agent=agent)
    one, two = (
        baselines.non_private_elimination(e, 3, np.random.default_rng(SEED)).regret
        for e in (given, paper)
    )

    assert np.array_equal(one, two)


class TestDpSe:
    def test_epoch_by_hand(self) -> None:
        """|S| = 2, e = 1, beta = .01: sampling decides R at eps 1, privacy at eps .01.

        32 ln(1600) / .25 = 944.4; 8 ln(800) / (.01 * .5) = 10 695.4.
        """
        wide = baselines.dp_se_epoch(np.array([2]), 1, 1.0, 0.01)
        narrow = baselines.dp_se_epoch(np.array([2]), 1, 0.01, 0.01)

        assert wide.pulls.tolist() == [946]
        assert wide.noise_scale == pytest.approx(1 / 946)
        assert wide.threshold == pytest.approx(2 * 0.0624459 + 2 * 0.0070662, rel=1e-5)
        assert narrow.pulls.tolist() == [10_697]
        assert narrow.noise_scale == pytest.approx(1 / 106.97)

    def test_drops_only_arms_below_the_threshold(self) -> None:
        """The best viable mean is .8: .5 stays, .4 goes; an arm that is gone does not count."""
        viable = np.array([[True, True, True, False]])
        epoch = baselines.Epoch(np.array([10.0]), np.array([1.0]), np.array([0.35]))
        kept = baselines._dp_se_survivors(viable, epoch, np.array([0.8, 0.5, 0.4, 1.0]), QUIET)

        assert kept.tolist() == [[True, True, False, False]]

    @pytest.mark.parametrize("horizon", [4_001, 30_000, 200_000])
    def test_counts_each_user_in_order(self, horizon: int) -> None:
        """Against users served one by one, without chance; a horizon may end in mid-epoch."""
        means = [0.2, 0.9, 0.6]
        given = experiment(tuple(means), horizon)
        block = baselines.central_dp_se(given, 2, QUIET)
        arms = [0, 1, 2]
        served = []
        decided = math.nan
        for e in range(1, 50):
            epoch = baselines.dp_se_epoch(np.array([len(arms)]), e, 0.5, 1 / horizon)
            served += arms * int(epoch.pulls[0])
            if len(served) > horizon:
                break
            arms = [a for a in arms if 0.9 - means[a] <= epoch.threshold[0]]
            if len(arms) == 1:
                decided = len(served)
                served += arms * (horizon - len(served))
                break
        regret = np.cumsum([0.9 - means[a] for a in served])

        assert block.curve / 2 == pytest.approx(regret[grid(horizon).astype(int) - 1])
        assert block.decided_at == pytest.approx([decided] * 2, nan_ok=True)
        assert block.best_kept.all()


class TestDpUcbInt:
    @pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 4.0])
    @pytest.mark.parametrize("delta", [1e-4, 1e-9])
    @pytest.mark.parametrize("rate", [1.1, 1.5])
    def test_interval_is_the_least_that_composes(
        self, epsilon: float, delta: float, rate: float
    ) -> None:
        f = baselines.release_interval(epsilon, delta, rate)

        assert baselines.composed_epsilon(f, delta, rate) <= epsilon
        assert baselines.composed_epsilon(f - 1, delta, rate) > epsilon

    @pytest.mark.parametrize("interval", [1, 45])
    @pytest.mark.parametrize("rate", [1.2, 1.5])
    def test_composition_is_the_infinite_sum(self, interval: int, rate: float) -> None:
        """Between its first 10^6 terms and those plus integrals that bound the rest."""
        cut = 1_000_000
        log = 2 * math.log(1e6)
        cost = (np.arange(1, cut + 1) * float(interval)) ** (-rate / 2)
        squares = np.sum(cost**2)
        excess = np.sum(cost * np.expm1(cost))
        tail = float(interval) ** -rate * cut ** (1 - rate) / (rate - 1)
        found = baselines.composed_epsilon(interval, 1e-6, rate)

        assert math.sqrt(log * squares) + excess <= found
        assert found <= math.sqrt(log * (squares + tail)) + excess + 1.1 * tail

    def test_interval_of_the_reference_experiment(self) -> None:
        assert baselines.release_interval(0.5, 1e-6, 1.1) == 636

    def test_counts_each_user_in_order(self) -> None:
        """Against users served one by one, without chance: one index per 636 users."""
        means = [0.2, 0.9, 0.6]
        horizon = 20_000
        block = baselines.central_dp_ucb_int(experiment(tuple(means), horizon), 2, QUIET)
        served: list[int] = []

        def index(arm: int) -> float:
            n = served.count(arm)
            level = math.log(len(served) + 1)
            if n == 0:
                return math.inf
            return means[arm] + math.sqrt(2 * level / n) + level / math.pow(n, 0.45)

        arm = 0
        while len(served) < horizon:
            if len(served) % 636 == 0:
                arm = max(range(3), key=index)
            served.append(arm)
        regret = np.cumsum([0.9 - means[a] for a in served])

        assert set(served) == {0, 1, 2}
        assert block.curve / 2 == pytest.approx(regret[grid(horizon).astype(int) - 1])
        assert np.isnan(block.decided_at).all()
        assert block.best_kept.all()
