"""The four tests of MATH 4 against independent solutions."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq

from stream_app.core import confidence as confidence_module
from tests.core.bounds import NOISES, batches_of, confidence, cramer, least, psi, theta_limit
from tests.core.build import experiment

# Noise that is far from symmetric: one biased bit per user.
SKEWED = {"mechanism": "binomial", "batch_size": 400}
# Level 12 leaves geometric binomial batches out: see the plateau below.
GRID = [(3.0, noise) for noise in [*NOISES, SKEWED]] + [
    (12.0, noise) for noise in NOISES if noise != NOISES[1]
]


@pytest.mark.parametrize(("level", "changes"), GRID, ids=str)
@pytest.mark.parametrize("batches", [1, 3, 6])
@pytest.mark.parametrize("mean", [0.0, 0.02, 0.3, 0.75, 0.98])
def test_upper_bound(changes: dict[str, str], batches: int, mean: float, level: float) -> None:
    """Cramer's UCB equals an independent solution: never below it, at most 1e-4 above."""
    value = experiment(horizon=10**5, **changes)
    found = confidence(value)
    parts = batches_of(value, found.plan, batches)
    total = mean * sum(n * w for n, w in parts)
    upper = float(found.upper(np.array(batches), np.array(total), np.array(level)))

    expected = cramer(value, parts, total, level)

    assert expected - 1e-9 <= upper <= expected + 1e-4


@pytest.mark.parametrize(
    ("batches", "mean", "level"), [(1, 0.02, 20.0), (1, 0.3, 12.0), (3, 0.75, 12.0)]
)
def test_upper_bound_beside_a_plateau(batches: int, mean: float, level: float) -> None:
    """Where most theta prove nothing (mu = 1), the few that do are found."""
    value = experiment(horizon=10**5, mechanism="binomial")
    found = confidence(value)
    parts = batches_of(value, found.plan, batches)
    total = mean * sum(n * w for n, w in parts)
    upper = float(found.upper(np.array(batches), np.array(total), np.array(level)))

    assert upper == pytest.approx(cramer(value, parts, total, level), abs=1e-3)


@pytest.mark.parametrize("changes", [*NOISES, SKEWED], ids=str)
@pytest.mark.parametrize("mean", [0.02, 0.3, 0.75, 1.0])
def test_lower_bound(changes: dict[str, str], mean: float) -> None:
    """The LCB is the mirrored UCB: z -> n - z, and the noise mirrored too."""
    value = experiment(horizon=10**5, **changes)
    found = confidence(value)
    parts = batches_of(value, found.plan, 4)
    reach = sum(n * w for n, w in parts)

    def bound(theta: float) -> float:
        target = 5 + theta * (1 - mean) * reach + sum(psi(value, n, theta * w) for n, w in parts)

        def excess(nu: float) -> float:
            return target + sum(n * math.log1p(nu * math.expm1(-theta * w)) for n, w in parts)

        if excess(0.0) <= 0:
            return 0.0
        return 1.0 if excess(1.0) >= 0 else brentq(excess, 0, 1, xtol=1e-13)

    expected = 1 - least(bound, theta_limit(value, parts))[1]
    lower = float(found.lower(np.array(4), np.array(mean * reach), np.array(5.0)))

    assert expected - 1e-4 <= lower <= expected + 1e-9


def test_bounds_without_evidence_against_the_edges() -> None:
    """Sums far outside what rewards allow give bounds of 0 and 1, not an error."""
    found = confidence(experiment(horizon=10**5))
    one = np.array(1)

    assert float(found.upper(one, np.array(-1e6), np.array(3.0))) == 0
    assert float(found.upper(one, np.array(1e6), np.array(3.0))) == 1
    assert float(found.lower(one, np.array(1e6), np.array(3.0))) == 1


@pytest.mark.parametrize("changes", NOISES, ids=str)
@pytest.mark.parametrize("batches", [1, 4])
def test_chernoff_radius(changes: dict[str, str], batches: int) -> None:
    """I = inf (L + sum [n theta^2 w^2/8 + max psi(+-theta w)]) / theta / sum wn, L = ln(2kPT)."""
    value = experiment(
        horizon=10**5, arms=3, test="chernoff", guarantee="high-probability", **changes
    )
    found = confidence(value)
    parts = batches_of(value, found.plan, batches)
    level = math.log(2 * 3 * len(found.plan.sizes) * 10**5)

    def radius(theta: float) -> float:
        noise = sum(max(psi(value, n, theta * w), psi(value, n, -theta * w)) for n, w in parts)
        rewards = sum(n * (theta * w) ** 2 / 8 for n, w in parts)
        return (level + rewards + noise) / theta / sum(n * w for n, w in parts)

    expected = least(radius, theta_limit(value, parts))[1]
    lower, upper = found.intervals(np.array(batches), np.array(0.0))

    assert expected - 1e-9 <= float(found._radius(np.array(batches))) <= expected * (1 + 1e-4)
    assert float(upper) == min(1, float(found._radius(np.array(batches))))
    assert float(lower) == 0


def test_paper_radius_by_hand() -> None:
    """I = (2 sqrt(t) sigma/N + 1/sqrt(N)) sqrt(2 ln T): t = 3 doubling batches are N = 14."""
    found = confidence(experiment("vb-sdp-ae", 1000))
    sigma = math.sqrt(1.5 * 96 * math.log(2e6) / 0.25)
    expected = (2 * math.sqrt(3) * sigma / 14 + 1 / math.sqrt(14)) * math.sqrt(2 * math.log(1000))

    assert expected == pytest.approx(float(found._radius(np.array(3))))
    assert expected == pytest.approx(85.02, rel=1e-3)


def test_paper_elimination_by_hand() -> None:
    """An arm goes when mean + I < max(mean - I): strictly more than 2I behind, viable or not."""
    found = confidence(experiment("vb-sdp-ae", 10**9, 3))
    phase = 20
    users = 2**21 - 2
    radius = float(found._radius(np.array(phase)))
    sums = users * np.array([0.9, 0.9 - 1.999 * radius, 0.9 - 2.001 * radius])
    everyone = np.ones(3, dtype=bool)

    assert 2.001 * radius < 0.9
    assert found.survivors(phase, sums, everyone).tolist() == [True, True, False]
    # A leader that is no longer viable does not count (MATH 3.3: the max over S means V).
    assert found.survivors(phase, sums, np.array([False, True, True])).tolist() == [
        False,
        True,
        True,
    ]


@pytest.mark.parametrize("changes", NOISES, ids=str)
@pytest.mark.parametrize("guarantee", ["high-probability", "expected"])
@pytest.mark.parametrize("arms", [2, 5])
@pytest.mark.parametrize(("mean", "phase"), [(0.03, 1), (0.3, 5), (0.8, 2)])
def test_pairwise_threshold(
    changes: dict[str, str], guarantee: str, arms: int, mean: float, phase: int
) -> None:
    """By how much the leader must be ahead, against scipy's solution of MATH 4's formula."""
    value = experiment(horizon=10**5, arms=arms, guarantee=guarantee, **changes)
    found = confidence(value)
    parts = batches_of(value, found.plan, phase)
    total = mean * sum(n * w for n, w in parts)
    phases = len(found.plan.sizes)
    top = cramer(value, parts, total, math.log(arms * phases * 10**5))
    v = 0.25 if top >= 0.5 else top * (1 - top)
    level = math.log(10**5 * phases * (arms if guarantee[0] == "h" else arms * (arms - 1) / 2))

    def scaled(theta: float) -> float:
        spread = sum(
            n * math.log1p(v * (2 * math.cosh(theta * w) - 2))
            + psi(value, n, theta * w)
            + psi(value, n, -theta * w)
            for n, w in parts
        )
        if guarantee == "high-probability":
            return (level + spread) / theta
        kappa = sum(n * math.expm1(theta * w) / (1 + top * math.expm1(theta * w)) for n, w in parts)
        return (max(0.5, level - 1 - math.log(kappa)) + spread) / theta

    expected = least(scaled, theta_limit(value, parts))[1]
    threshold = float(found._pairwise_threshold(np.array(phase), np.array(total)))

    assert expected * (1 - 1e-6) <= threshold <= expected * (1 + 2e-3)
    for ahead, kept in ((0.999, True), (1.001, False)):
        sums = np.array([total] + [total - ahead * threshold] * (arms - 1))
        survivors = found.survivors(phase, sums, np.ones(arms, dtype=bool))
        assert survivors.tolist() == [True] + [kept] * (arms - 1)


@pytest.mark.parametrize("changes", [*NOISES, SKEWED], ids=str)
@pytest.mark.parametrize("guarantee", ["high-probability", "expected"])
@pytest.mark.parametrize("phase", [1, 5])
def test_many_rows_have_the_survivors_of_each(
    changes: dict[str, str], guarantee: str, phase: int
) -> None:
    """Brackets decide as each row's own threshold does: gaps from 1e-9 to 100% away from it."""
    found = confidence(experiment(horizon=10**5, arms=4, guarantee=guarantee, **changes))
    rng = np.random.default_rng(11)
    reach = found.plan.counts[phase] @ (found.plan.weights * found.plan.users)
    leader = reach * np.concatenate([rng.uniform(-0.2, 1.2, 400), [0.0, 0.25, 0.5, 1.0]])
    threshold = found._pairwise_threshold(np.full(leader.shape, phase), leader)
    away = 10 ** rng.uniform(-9, 0, (len(leader), 3)) * rng.choice([-1, 1], (len(leader), 3))
    sums = np.column_stack([leader, leader[:, None] - threshold[:, None] * (1 + away)])
    viable = np.column_stack([np.ones(len(leader), bool), rng.random((len(leader), 3)) < 0.8])
    kept = found.survivors(phase, sums, viable)

    assert np.array_equal(kept[:, 1:], viable[:, 1:] & (away <= 0))
    assert np.array_equal(kept, found.survivors(phase, sums, viable))  # the nodes are remembered
    for row in range(0, len(leader), 40):
        alone = found.survivors(phase, sums[row], viable[row])
        assert alone.tolist() == kept[row].tolist()
    low, high = found._bracket(phase, leader)
    assert np.all((low < threshold) & (threshold < high))


def test_remembered_nodes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan of many phases does not fill the memory; what is forgotten is computed again."""
    monkeypatch.setattr(confidence_module, "_MAX_NODES", 10)
    found = confidence(experiment(horizon=10**5, batch_size=50, schedule="fixed"))
    leader = np.linspace(20, 30, 5)
    first = found._bracket(1, leader)
    for phase in range(1, 30):
        found._bracket(phase, phase * leader)
        assert len(found._nodes) <= 10 + 2 * len(leader)

    assert np.array_equal(found._bracket(1, leader), first)


def test_means_are_weighted() -> None:
    """S / sum w_j n_j."""
    found = confidence(experiment(horizon=10**4))
    reach = float(np.sum(found.plan.users[:2] * found.plan.weights[:2]))

    assert float(found.means(np.array(2), np.array(0.3 * reach))) == pytest.approx(0.3)


@pytest.mark.parametrize("changes", NOISES, ids=str)
@pytest.mark.parametrize("preset", ["optimal", "kl-ucb"])
def test_many_arms_at_once(changes: dict[str, str], preset: str) -> None:
    """Intervals of many arms with different batches equal those of each alone."""
    found = confidence(experiment(preset, 10**5, **changes))
    batches = np.array([1, 2, 5, 5, 3])
    sums = 0.4 * found.plan.counts[batches] @ (found.plan.weights * found.plan.users)
    lower, upper = found.intervals(batches, sums)
    alone = [found.intervals(b, s) for b, s in zip(batches, sums, strict=True)]

    assert lower == pytest.approx([float(low) for low, _ in alone], abs=1e-12)
    assert upper == pytest.approx([float(up) for _, up in alone], abs=1e-12)
    assert np.all((lower <= 0.4) & (upper >= 0.4))
