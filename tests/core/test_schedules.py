"""Batch sizes, weights and the definition of an experiment."""

import itertools
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from stream_app.core.confidence import Confidence
from stream_app.core.experiment import (
    AgentSettings,
    Comparison,
    Experiment,
    Guarantee,
    ScheduleName,
    Simulation,
)
from stream_app.core.phased_agent import PhasedAgent
from stream_app.core.schedules import Plan, mechanism_noise, plan, sizes
from stream_app.errors import ConfigurationError
from tests.core.build import experiment


def first_sizes(value: Experiment, count: int, variance: float = 5.0) -> list[int]:
    return list(itertools.islice(sizes(value, value.horizon, variance), count))


def planned(value: Experiment) -> Plan:
    return plan(value, value.horizon, mechanism_noise(value))


def test_fixed_size_of_the_paper() -> None:
    """SDP-AE: every batch has ceil(sigma^2) = ceil(1.5 tau) users, tau = 96 ln(2/delta)/eps^2."""
    expected = math.ceil(1.5 * 96 * math.log(2 / 1e-6) / 0.25)
    batches = planned(experiment("sdp-ae", 10**6)).sizes

    assert expected == 8357
    assert {expected} == set(batches)
    assert len(batches) == 500_000 // expected


def test_fixed_size_of_other_mechanisms() -> None:
    """Without the paper's constants sigma^2 is the noise's variance: 7.84 and 90.1."""
    laplace = planned(experiment("sdp-ae", 1000, mechanism="discrete-laplace", calibration="exact"))
    binomial = planned(experiment("sdp-ae", 1000, calibration="exact"))

    assert {8} == set(laplace.sizes)
    assert {91} == set(binomial.sizes)


def test_fixed_size_provisioned_for_dishonesty() -> None:
    """With honest fraction g, sigma^2 grows by m/h."""
    expected = math.ceil(1.5 * 96 * math.log(2 / 1e-6) / 0.25 / 0.9)

    assert {expected} == set(planned(experiment("sdp-ae", 10**6, honest="0.9")).sizes)


def test_stated_sizes() -> None:
    """An experiment's own batch size replaces the default first or fixed one."""
    assert first_sizes(experiment("sdp-ae", batch_size=10), 4) == [10] * 4
    assert first_sizes(experiment("vb-sdp-ae", batch_size=10), 4) == [10, 20, 40, 80]
    assert first_sizes(experiment(batch_size=10), 5) == [10, 15, 23, 34, 51]


def test_doubling_sizes() -> None:
    """VB-SDP-AE: m_t = 2^t."""
    assert first_sizes(experiment("vb-sdp-ae"), 5) == [2, 4, 8, 16, 32]
    assert planned(experiment("vb-sdp-ae", 1000)).sizes == (2, 4, 8, 16, 32, 64, 128)


@pytest.mark.parametrize(
    ("epsilon", "horizon", "arms", "expected"),
    [
        ("0.5", 10**6, 5, 64),  # ceil(32/eps)
        ("0.3", 10**6, 5, 107),  # ceil(106.67)
        ("0.5", 1000, 5, 25),  # floor(T/8k)
        ("0.5", 1039, 5, 25),
        ("0.5", 50, 5, 2),  # at least 2
    ],
)
def test_first_geometric_size(epsilon: str, horizon: int, arms: int, expected: int) -> None:
    """m_1 = max(2, min(ceil(32/eps), floor(T/8k)))."""
    for preset in ("optimal", "kl-ucb"):
        assert [expected] == first_sizes(experiment(preset, horizon, arms, epsilon=epsilon), 1)


def test_geometric_sizes() -> None:
    """ceil(m_1 growth^j), from the exact product: 64, 96, 144, 216, 324, 486, 729, 1094."""
    assert first_sizes(experiment(horizon=10**6), 8) == [64, 96, 144, 216, 324, 486, 729, 1094]
    doubled = experiment(horizon=10**6, growth=Decimal(2))
    assert first_sizes(doubled, 3) == [64, 128, 256]


def test_kl_ucb_sizes() -> None:
    """Each later batch has max(m_1, ceil((growth - 1) N)): 64, 64, 64, 96, 144, 216, ..."""
    assert first_sizes(experiment("kl-ucb", 10**6), 7) == [64, 64, 64, 96, 144, 216, 324]
    assert first_sizes(experiment("kl-ucb", 10**6, batch_size=3), 6) == [3, 3, 3, 5, 7, 11]
    faster = experiment("kl-ucb", 10**6, batch_size=3, growth=Decimal("2.5"))
    assert first_sizes(faster, 4) == [3, 5, 12, 30]


def test_weights() -> None:
    """geometric: w_j = 1/(1/4 + var_j/n_j); the other schedules weigh all batches alike."""
    value = experiment(horizon=10**4)
    batches = planned(value)
    variance = 1 / (2 * math.sinh(0.25) ** 2)
    expected = [1 / (0.25 + variance / size) for size in batches.sizes]

    assert expected == pytest.approx([batches.weight(j) for j in range(len(batches.sizes))])
    assert {1.0} == set(planned(experiment("vb-sdp-ae")).weights.tolist())
    assert {1.0} == set(planned(experiment("sdp-ae", 10**5)).weights.tolist())


def test_plan_groups_batches_of_equal_size() -> None:
    """counts[b] says how many of the first b batches are of each size."""
    batches = planned(experiment("kl-ucb", 1000, batch_size=3))

    assert batches.sizes[:5] == (3, 3, 3, 5, 7)
    assert batches.users[:3].tolist() == [3, 5, 7]
    assert batches.counts[:6, :3].tolist() == [
        [0, 0, 0],
        [1, 0, 0],
        [2, 0, 0],
        [3, 0, 0],
        [3, 1, 0],
        [3, 1, 1],
    ]
    assert np.all(batches.counts @ batches.users == np.cumsum([0, *batches.sizes]))


def test_plan_takes_variances_of_each_size() -> None:
    """The paper's sigma^2 is the same for every batch; exact binomial's variance is not."""
    tau = 96 * math.log(2 / 1e-6) / 0.25
    paper, exact = (
        planned(experiment("vb-sdp-ae", 10**5, calibration=name)) for name in ("paper", "exact")
    )

    assert paper.variances.tolist() == pytest.approx([1.5 * tau] * len(paper.users))
    assert exact.variances[0] == 67
    assert exact.variances[-1] == pytest.approx(90, rel=0.01)


def confidence(value: Experiment) -> Confidence:
    return PhasedAgent(value).rules(0).confidence


@pytest.mark.parametrize(("horizon", "expected"), [(12, 2), (27, 2), (28, 3), (1000, 7), (4, 1)])
def test_phases(horizon: int, expected: int) -> None:
    """P = max{t : 2 sum_(j<=t) m_j <= T}: sizes 2, 4, 8 need T >= 4, 12, 28."""
    found = confidence(experiment("vb-sdp-ae", horizon))

    assert expected == found._phases
    assert expected == len(found.plan.sizes)


@pytest.mark.parametrize(("horizon", "expected"), [(9, 3), (13, 3), (14, 4), (20, 4), (21, 5)])
def test_batches_that_fit(horizon: int, expected: int) -> None:
    """nb: sizes 3, 3, 3, 5, 7 of one arm need T >= 3, 6, 9, 14, 21."""
    found = confidence(experiment("kl-ucb", horizon, batch_size=3))

    assert expected == found._fitting
    assert expected == len(found.plan.sizes)


def test_a_horizon_too_small_for_one_batch() -> None:
    """The plan still has one batch, P and nb are 1, and the agent opens none."""
    value = experiment("sdp-ae", 100)
    found = confidence(value)

    assert (found._phases, found._fitting) == (1, 1)
    assert found.plan.sizes == (8357,)
    assert PhasedAgent(value).begin().open == ()


def test_too_many_batches() -> None:
    """An arm has at most a million batches; batches have at most a billion users."""
    small = experiment("sdp-ae", 10**8, batch_size=1)
    large = experiment("vb-sdp-ae", 10**12)

    assert len(plan(small, 10**8, mechanism_noise(small)).sizes) == 1_000_000
    assert max(plan(large, 10**12, mechanism_noise(large)).sizes) == 1_000_000_000


def test_only_sizes_that_happen_are_calibrated() -> None:
    """A batch of one user may be impossible (too many bits) where the first real one is not."""
    value = experiment(horizon=10**6)
    noises = mechanism_noise(value)
    asked = []
    batches = plan(value, value.horizon, lambda size: (asked.append(size), noises(size))[1])

    assert set(asked) == set(batches.sizes)


# --- experiments -----------------------------------------------------------------------------


def test_presets() -> None:
    """The four names of the README and what they stand for."""
    found = {
        name: (e.privacy.mechanism, e.privacy.calibration, e.agent.test, e.agent.schedule)
        for name in ("sdp-ae", "vb-sdp-ae", "optimal", "kl-ucb")
        for e in [experiment(name)]
    }

    assert found == {
        "sdp-ae": ("binomial", "paper", "paper", "fixed"),
        "vb-sdp-ae": ("binomial", "paper", "paper", "doubling"),
        "optimal": ("discrete-laplace", "exact", "pairwise", "geometric"),
        "kl-ucb": ("discrete-laplace", "exact", "kl-ucb", "geometric"),
    }
    assert {experiment(n).agent.guarantee for n in ("optimal", "kl-ucb")} == {Guarantee.EXPECTED}
    assert experiment("sdp-ae").agent.guarantee is Guarantee.HIGH_PROBABILITY


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "name = '': must be 1 to 64"),
        ({"name": "Demo"}, "name = 'Demo': must be"),
        ({"name": "-demo"}, "name = '-demo'"),
        ({"name": "x" * 65}, "name = 'xxx"),
        ({"arms": ("a",)}, "arms: 1 given; must be 2 to 1000"),
        ({"arms": tuple(f"a{i}" for i in range(1001)), "horizon": 5000}, "arms: 1001 given"),
        ({"arms": ("a", "a")}, "arms = 'a': given twice"),
        ({"arms": ("a", "")}, "arms = '': must be 1 to 100 printable"),
        ({"arms": ("a", "b\n")}, r"arms = 'b\\n': must be"),
        ({"arms": ("a", "b" * 101)}, "arms = 'bbb"),
        ({"horizon": 1}, r"horizon = 1: must be from the number of arms \(2\)"),
        ({"horizon": 10**12 + 1}, "horizon = 1000000000001"),
        ({"attribution_s": Decimal(-1)}, "attribution_s = -1: must be from 0 to 2592000"),
        ({"attribution_s": Decimal(2592001)}, "attribution_s = 2592001"),
        ({"simulation": Simulation((0.5,))}, "simulation.means: 1 values for 2 arms"),
    ],
)
def test_bad_experiments(changes: dict[str, Any], message: str) -> None:
    """Each setting is refused by its name, its value and what is allowed."""
    base = experiment()
    values = {"name": "demo", "arms": ("a", "b"), "horizon": 1000, **changes}
    with pytest.raises(ConfigurationError, match="^" + message):
        Experiment(privacy=base.privacy, agent=base.agent, **values)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"test": Comparison.PAPER, "guarantee": Guarantee.EXPECTED},
            "agent.guarantee = expected",
        ),
        (
            {"test": Comparison.CHERNOFF, "guarantee": Guarantee.EXPECTED},
            "use test = pairwise or kl-ucb",
        ),
        (
            {"test": Comparison.PAPER, "schedule": ScheduleName.GEOMETRIC},
            "agent.schedule = geometric",
        ),
        ({"batch_size": 0}, "agent.batch_size = 0: must be from 1"),
        ({"batch_size": 10**9 + 1}, "agent.batch_size = 1000000001"),
        ({"growth": Decimal("1.01")}, "agent.growth = 1.01: must be from 1.05 to 10"),
        ({"growth": Decimal(11)}, "agent.growth = 11: must be"),
    ],
)
def test_bad_agent_settings(changes: dict[str, Any], message: str) -> None:
    """Combinations that prove nothing are refused with a remedy."""
    values = {
        "test": Comparison.PAIRWISE,
        "guarantee": Guarantee.HIGH_PROBABILITY,
        "schedule": ScheduleName.DOUBLING,
        **changes,
    }
    with pytest.raises(ConfigurationError, match=message):
        AgentSettings(preset="optimal", **values)


@pytest.mark.parametrize(
    ("means", "users", "message"),
    [
        ((0.5, 1.1), None, r"simulation.means = 1.1: must be in \[0, 1\]"),
        ((-0.1, 0.5), None, "simulation.means = -0.1"),
        ((float("nan"), 0.5), None, "simulation.means = nan"),
        ((0.5, 0.5), 0, "simulation.users = 0: must be from 1"),
    ],
)
def test_bad_simulations(means: tuple[float, ...], users: int | None, message: str) -> None:
    """Means are probabilities, users a positive number."""
    with pytest.raises(ConfigurationError, match="^" + message):
        Simulation(means, users)


def test_bad_privacy_is_refused_with_the_experiment() -> None:
    """Privacy settings are tried once, when the experiment is built."""
    with pytest.raises(ConfigurationError, match=r"^epsilon = 1: .*calibration = exact"):
        experiment("sdp-ae", epsilon="1")
    with pytest.raises(ConfigurationError, match=r"^delta = 0"):
        experiment(delta="0")


def test_attribution_in_milliseconds() -> None:
    """Fractions of a millisecond are dropped."""
    base = experiment()
    value = Experiment("x", ("a", "b"), 10, base.privacy, base.agent, Decimal("1.2345"))

    assert value.attribution_ms == 1234
