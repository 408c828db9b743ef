"""Bandits to compare with: the other rows of the paper's Table 1, and rows without privacy.

Each is a function like `simulation.private_runs`: an experiment, a number of runs and a generator
give a `RunBlock`, so that every privacy model stands in one table. Nothing here serves users, and
the noise is numpy's. From the experiment they take arms, means, users, horizon, epsilon and delta.

- `non-private-elimination`: the service's agent without noise: `pairwise` (MATH 4) on geometric
  batches from 16, with the experiment's guarantee.
- `non-private-kl-ucb`: the service's `kl-ucb`, expected guarantee (MATH 4), from 16, growth 1.5.
- `local`, (eps, 0): Ren, Zhou, Liu and Shroff 2020, "Multi-armed bandits with local differential
  privacy". Taken: randomised response of each user's bit. Deviation: on the reported bits runs the
  same `kl-ucb`, sharper than their UCB, so that the row shows the cost of the model alone. (An
  index on the reports' means nu = f + (1 - 2f) mu orders arms as one on the debiased means.)
- `central-dp-se`, (eps, 0): Sajed and Sheffet 2019, "An optimal private stochastic-MAB algorithm
  based on an optimal private stopping rule". Taken: all of it with its constants (MATH 7),
  beta = 1/T. Each epoch begins with fresh users, arms take turns; no deviation known.
- `central-dp-ucb-int`, (eps, delta): Tossou and Dimitrakakis 2016, "Algorithms for differentially
  private multi-armed bandits". Taken: an arm's mean is released after every f of its pulls, with
  noise Lap(n^(v/2-1)). Deviations (MATH 7): f is the least that composition allows, not
  ceil(1/eps), which does not keep the promise; a mean gets its noise once per release; the index
  adds a bound on that noise, b ln t; an arm is held for all f pulls, the first round included,
  since nothing new is known in between; v = 1.1, where the noise n^(v/2-1) shrinks fastest for
  f's that are still small. The row depends much on these choices: regret at T = 1e6 of the
  reference experiment is 14 800 here, 93 000 with v = 1.5 and the bound 4 b ln t that fails as
  rarely as UCB1's own term, and 1 600 with no bound, which then locks onto a wrong arm at times.

A first batch is smaller than 16 when 8 of it for every arm do not fit into the horizon (MATH 5).
Regret is accounted as in `simulation`: pseudo-regret of each user in order, to the last user.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import count

import numpy as np
from scipy.special import zeta

from stream_app.core.confidence import Bools, Ints
from stream_app.core.experiment import Comparison, Experiment, Guarantee, ScheduleName
from stream_app.core.noise import Floats, Noise, NoNoise
from stream_app.core.simulation import RunBlock, agent_runs, grid, means_of, users_of

Baseline = Callable[[Experiment, int, np.random.Generator], RunBlock]


def no_noise(_size: int) -> tuple[Noise, float, float]:
    """The noise of a batch without privacy: none, of variance 0."""
    return NoNoise(), 0.0, 0.0


def non_private_elimination(
    experiment: Experiment, runs: int, rng: np.random.Generator
) -> RunBlock:
    """Arm elimination on the rewards themselves."""
    bare = _with_test(experiment, Comparison.PAIRWISE, experiment.agent.guarantee)
    return agent_runs(bare, no_noise, means_of(experiment), runs, rng)


def non_private_kl_ucb(experiment: Experiment, runs: int, rng: np.random.Generator) -> RunBlock:
    """kl-ucb on the rewards themselves."""
    bare = _with_test(experiment, Comparison.KL_UCB, Guarantee.EXPECTED)
    return agent_runs(bare, no_noise, means_of(experiment), runs, rng)


def local(experiment: Experiment, runs: int, rng: np.random.Generator) -> RunBlock:
    """kl-ucb on bits that each user flips with probability f = 1/(1 + e^eps) (Ren et al. 2020)."""
    flip = 1 / (1 + math.exp(float(experiment.privacy.epsilon)))
    bare = _with_test(experiment, Comparison.KL_UCB, Guarantee.EXPECTED)
    return agent_runs(bare, no_noise, flip + (1 - 2 * flip) * means_of(experiment), runs, rng)


def _with_test(experiment: Experiment, test: Comparison, guarantee: Guarantee) -> Experiment:
    """The experiment with this test on geometric batches from 16, or MATH 5's T/8k if less."""
    first = max(2, min(16, experiment.horizon // (8 * len(experiment.arms))))
    agent = replace(
        experiment.agent,
        test=test,
        guarantee=guarantee,
        schedule=ScheduleName.GEOMETRIC,
        batch_size=first,
        growth=Decimal("1.5"),
    )
    return replace(experiment, agent=agent)


@dataclass(frozen=True, slots=True)
class Epoch:
    """An epoch of DP-SE, per run: pulls of each viable arm, noise on a mean, gap to drop an arm."""

    pulls: Floats
    noise_scale: Floats
    threshold: Floats


def dp_se_epoch(viable: Ints, epoch: int, epsilon: float, beta: float) -> Epoch:
    """R, 1/(eps R) and 2h + 2c of Sajed and Sheffet 2019 (MATH 7), for |S| = viable."""
    gap = 2.0**-epoch
    sampling = np.log(8 * viable * epoch**2 / beta)
    privacy = np.log(4 * viable * epoch**2 / beta)
    pulls = np.ceil(np.maximum(32 * sampling / gap**2, 8 * privacy / (epsilon * gap))) + 1
    h = np.sqrt(sampling / (2 * pulls))
    c = privacy / (pulls * epsilon)
    return Epoch(pulls, 1 / (epsilon * pulls), 2 * h + 2 * c)


def central_dp_se(experiment: Experiment, runs: int, rng: np.random.Generator) -> RunBlock:
    """DP-SE (Sajed and Sheffet 2019; MATH 7), with beta = 1/T."""
    epsilon = float(experiment.privacy.epsilon)
    beta = 1 / experiment.horizon
    means = means_of(experiment)
    last = users_of(experiment)
    gaps = means.max() - means
    points = grid(last)
    viable = np.ones((runs, len(means)), dtype=np.bool_)
    users = np.zeros(runs)
    curves = np.zeros((runs, len(points)))
    for number in count(1):
        active = np.flatnonzero((viable.sum(1) > 1) & (users < last))
        if not len(active):
            break
        among = viable[active]
        epoch = dp_se_epoch(among.sum(1), number, epsilon, beta)
        length = epoch.pulls * among.sum(1)
        served = np.clip(points - users[active, None], 0, length[:, None])
        curves[active] += _taking_turns(among, gaps, served)
        users[active] += length
        done = users[active] <= last  # the horizon's end in mid-epoch releases nothing
        kept = _dp_se_survivors(among, epoch, means, rng)
        viable[active[done]] = kept[done]
    decided = viable.sum(1) == 1
    left = np.maximum(0, points - users[:, None]) * gaps[viable.argmax(1)][:, None]
    curves += np.where(decided[:, None], left, 0)
    return RunBlock(
        regret=curves[:, -1],
        decided_at=np.where(decided, users, np.nan),
        best_kept=viable[:, int(gaps.argmin())],
        curve=curves.sum(0),
    )


def _dp_se_survivors(viable: Bools, epoch: Epoch, means: Floats, rng: np.random.Generator) -> Bools:
    """Draw the epoch's private means; drop arms more than the threshold below the best one."""
    pulls = epoch.pulls[:, None]
    rewards = rng.binomial(pulls.astype(np.int64), means, viable.shape)
    private = rewards / pulls + rng.laplace(0, epoch.noise_scale[:, None], viable.shape)
    best = np.where(viable, private, -np.inf).max(1, keepdims=True)
    kept: Bools = viable & ~(best - private > epoch.threshold[:, None])
    return kept


def _taking_turns(viable: Bools, gaps: Floats, served: Floats) -> Floats:
    """Each run's regret after `served` users (runs, points) to whom viable arms go in turn."""
    order = np.argsort(~viable, axis=1, kind="stable")  # the viable ones first
    own = np.take_along_axis(np.where(viable, gaps, 0.0), order, axis=1)
    first = np.pad(np.cumsum(own, axis=1), ((0, 0), (1, 0)))  # regret of the first j turns
    turns = viable.sum(1)[:, None]
    rest = np.take_along_axis(first, (served % turns).astype(np.int64), axis=1)
    regret: Floats = served // turns * first[:, -1:] + rest
    return regret


def composed_epsilon(interval: int, delta: float, rate: float) -> float:
    """What all releases of one arm cost together, however many, at this delta (MATH 7).

    Advanced composition (Dwork, Rothblum and Vadhan 2010) of costs e_i = (i f)^(-v/2), i = 1, 2...:
    sqrt(2 ln(1/delta) sum e_i^2) + sum e_i (e^(e_i) - 1). The sums to infinity are zeta functions:
    sum e_i^2 = f^-v zeta(v), sum e_i (e^(e_i) - 1) = sum_(j>=1) f^(-v(j+1)/2) zeta(v(j+1)/2) / j!;
    terms with j > 20 are together at most f^-v zeta(v) / 20!. The factor covers rounding.
    """
    squares = math.pow(interval, -rate) * float(zeta(rate))
    orders = [rate * (j + 1) / 2 for j in range(1, 21)]
    terms = [
        math.pow(interval, -s) * float(zeta(s)) / math.factorial(j)
        for j, s in enumerate(orders, start=1)
    ]
    excess = math.fsum(terms) + squares / math.factorial(20)
    return (math.sqrt(2 * math.log(1 / delta) * squares) + excess) * (1 + 1e-12)


def release_interval(epsilon: float, delta: float, rate: float) -> int:
    """The least f with which DP-UCB-INT keeps (epsilon, delta); the cost falls with f."""
    high = 1
    while composed_epsilon(high, delta, rate) > epsilon:
        high *= 2
    low = high // 2  # too short, or 0
    while high - low > 1:
        middle = (low + high) // 2
        if composed_epsilon(middle, delta, rate) > epsilon:
            low = middle
        else:
            high = middle
    return high


def central_dp_ucb_int(
    experiment: Experiment, runs: int, rng: np.random.Generator, rate: float = 1.1
) -> RunBlock:
    """DP-UCB-INT (Tossou and Dimitrakakis 2016; MATH 7), 1 < v = rate <= 1.5; costs T/f steps.

    The bound on the noise is b ln t: P(|Lap(b)| > b ln t) = 1/t.
    """
    privacy = experiment.privacy
    interval = release_interval(float(privacy.epsilon), float(privacy.delta), rate)
    means = means_of(experiment)
    last = users_of(experiment)
    gaps = means.max() - means
    points = grid(last)
    every = np.arange(runs)
    rewards = np.zeros((runs, len(means)))
    pulls = np.zeros((runs, len(means)))
    released = np.full((runs, len(means)), np.inf)  # an arm without a release goes first
    regret = np.zeros(runs)
    curves = np.zeros((runs, len(points)))
    known = 0
    for users in range(0, last, interval):
        level = math.log(users + 1)
        n = np.maximum(pulls, 1)
        arm = (released + np.sqrt(2 * level / n) + level * n ** (rate / 2 - 1)).argmax(1)
        while known < len(points) and points[known] <= users + interval:
            curves[:, known] = regret + (points[known] - users) * gaps[arm]
            known += 1
        regret += interval * gaps[arm]
        pulls[every, arm] += interval
        rewards[every, arm] += rng.binomial(interval, means[arm])
        n = pulls[every, arm]
        released[every, arm] = rewards[every, arm] / n + rng.laplace(0, n ** (rate / 2 - 1))
    return RunBlock(
        regret=curves[:, -1],
        decided_at=np.full(runs, np.nan),
        best_kept=np.ones(runs, dtype=np.bool_),
        curve=curves.sum(0),
    )


# By the names that `simulate --baseline` takes.
BASELINES: dict[str, Baseline] = {
    "non-private-elimination": non_private_elimination,
    "non-private-kl-ucb": non_private_kl_ucb,
    "local": local,
    "central-dp-se": central_dp_se,
    "central-dp-ucb-int": central_dp_ucb_int,
}
