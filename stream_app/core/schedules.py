"""How many users each batch of an arm has, and how much it weighs (MATH 5).

Notation: m_j is the size of an arm's j-th batch, T the horizon, k the number of arms, P the number
of phases that two arms can have. All of it is fixed before the first user comes.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import count, repeat

import numpy as np
from numpy.typing import NDArray

from stream_app.core.experiment import Comparison, Experiment, ScheduleName
from stream_app.core.noise import Floats, Noise, stack
from stream_app.core.promise import MAX_BATCH_SIZE

# An arm gets no more batches than this, whatever the horizon: a plan has a row for each.
MAX_BATCHES = 1_000_000
# The batch whose sigma^2 is the fixed schedule's default size: it hardly depends on it (MATH 5).
_SIGMA_AT = 1_000_000
# Noise, variance and the paper's sigma^2 of a batch, by its size.
Noises = Callable[[int], tuple[Noise, float, float]]


@dataclass(frozen=True, slots=True)
class Plan:
    """An arm's batches: their sizes in order, and what each kind of batch contributes.

    Batches of equal size are one group, so that evidence over b batches is a sum over groups
    with multiplicity counts[b]: one group for a fixed schedule, about log T for the others.
    """

    sizes: tuple[int, ...]
    users: Floats  # per group: n
    weights: Floats  # per group: w
    variances: Floats  # per group: the noise's variance as the paper's radius takes it
    noise: Noise  # per group
    counts: Floats  # (batches + 1, groups)
    group: NDArray[np.int64]  # of each batch

    def weight(self, batch: int) -> float:
        """The weight of an arm's batch, counted from 0."""
        return float(self.weights[self.group[batch]])

    def reached(self, batches: NDArray[np.int64]) -> "Plan":
        """Without the groups that no arm with so many batches came to: sizes never fall."""
        groups = int(np.max(self.group[batches - 1], initial=0)) + 1
        return replace(
            self,
            users=self.users[:groups],
            weights=self.weights[:groups],
            variances=self.variances[:groups],
            noise=self.noise.head(groups),
            counts=self.counts[:, :groups],
        )


def sizes(experiment: Experiment, horizon: int, variance: float) -> Iterator[int]:
    """The sizes of one arm's batches, without end (MATH 5)."""
    settings = experiment.agent
    if settings.schedule is ScheduleName.FIXED:
        return repeat(settings.batch_size or max(1, math.ceil(variance)))
    if settings.schedule is ScheduleName.DOUBLING:
        first = settings.batch_size or 2
        return (first << doublings for doublings in count())
    fitting = horizon // (8 * len(experiment.arms))
    wanted = math.ceil(32 / float(experiment.privacy.epsilon))
    first = settings.batch_size or max(2, min(wanted, fitting))
    growth = Fraction(settings.growth)
    if settings.test is Comparison.KL_UCB:
        return _growing_with_users(first, growth)
    return (math.ceil(first * growth**batch) for batch in count())


def _growing_with_users(first: int, growth: Fraction) -> Iterator[int]:
    """`kl-ucb`: each later batch max(m_1, ceil((growth - 1) N)), N users so far (MATH 4)."""
    users = 0
    while True:
        size = max(first, math.ceil((growth - 1) * users))
        yield size
        users += size


@lru_cache(maxsize=256)
def mechanism_noise(experiment: Experiment) -> Noises:
    """Noise, variance and the paper's sigma^2 of a batch of some size, under the promise."""

    def of(size: int) -> tuple[Noise, float, float]:
        mechanism = experiment.privacy.for_batch(size)
        return mechanism.noise, mechanism.variance, mechanism.sub_gaussian_variance

    return of


def plan(experiment: Experiment, horizon: int, noises: Noises) -> Plan:
    """The batches that can happen within the horizon: of one arm, or of two that compete."""
    share = horizon if experiment.agent.test is Comparison.KL_UCB else horizon // 2
    fixed = experiment.agent.schedule is ScheduleName.FIXED and experiment.agent.batch_size is None
    default_size = noises(_SIGMA_AT)[2] if fixed else 0.0
    fitting: list[int] = []
    total = 0
    for wanted in sizes(experiment, horizon, default_size):
        size = min(wanted, MAX_BATCH_SIZE)
        total += size
        if total > share and fitting:
            break
        fitting.append(size)
        if len(fitting) == MAX_BATCHES:
            break
    distinct = sorted(set(fitting))
    index = {size: i for i, size in enumerate(distinct)}
    known = [noises(size) for size in distinct]
    users = np.array(distinct, dtype=np.float64)
    variance = np.array([v for _, v, _ in known])
    weighted = experiment.agent.schedule is ScheduleName.GEOMETRIC
    group = np.array([index[size] for size in fitting])
    counts = np.zeros((len(fitting) + 1, len(distinct)))
    counts[np.arange(1, len(fitting) + 1), group] = 1
    return Plan(
        sizes=tuple(fitting),
        users=users,
        weights=1 / (0.25 + variance / users) if weighted else np.ones(len(distinct)),
        variances=np.array([s for _, _, s in known]),
        noise=stack([n for n, _, _ in known]),
        counts=np.cumsum(counts, axis=0),
        group=group,
    )
