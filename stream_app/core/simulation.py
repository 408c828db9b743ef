"""Whole experiments without Kafka: many runs at once, by the rules of the service's agent.

Fast code with a simple twin: one run, folded sum by sum by the agent (a test compares). A batch's
sum is one binomial draw (the rewards) and one draw of the noise, so a run costs by its
batches, not by its users; and all runs go through a phase together, in arrays. The noise here is
numpy's and seeded: a simulation has no user to protect. It draws the unclipped noise; clipping
changes a sum with probability below delta.

Regret is the paper's pseudo-regret: the sum over all T users of the gap of the arm each was given.
Users after the last released batch are given the arm that the agent names to serve.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from stream_app.core.confidence import Bools, Ints
from stream_app.core.experiment import Experiment, Order
from stream_app.core.noise import Floats
from stream_app.core.phased_agent import Arms, PhasedAgent
from stream_app.core.schedules import Noises, mechanism_noise

# Runs that share one generator: the result does not depend on how many processes share the work.
# Another number would be as good, but would change every seeded figure.
BLOCK = 200


@dataclass(frozen=True, slots=True)
class RunBlock:
    """What some runs gave; `curve` is their summed regret at the users of `grid`."""

    regret: Floats
    decided_at: Floats  # users until the decision; nan if there was none
    best_kept: Bools
    curve: Floats


@dataclass(frozen=True, slots=True)
class Result:
    """What all runs of one algorithm gave."""

    name: str
    runs: int
    regret_mean: float
    regret_sem: float
    decided_fraction: float
    best_arm_kept: float
    users_to_decision_mean: float | None
    users: tuple[int, ...]
    regret: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """One algorithm on one experiment: simulates a block of runs from a seed."""

    name: str
    experiment: Experiment
    simulate: Callable[[Experiment, int, np.random.Generator], RunBlock]

    def block(self, seed: int, index: int, runs: int) -> RunBlock:
        """The index-th block of runs; the same for the same seed on every machine."""
        sequence = np.random.SeedSequence(seed, spawn_key=(index,))
        return self.simulate(self.experiment, runs, np.random.default_rng(sequence))


def blocks(runs: int) -> list[int]:
    """How many runs each block has."""
    return [min(BLOCK, runs - start) for start in range(0, runs, BLOCK)]


def grid(last: int) -> Floats:
    """The users at which a regret curve is given: about evenly spaced in their logarithm."""
    points: Floats = np.unique(np.rint(np.geomspace(1, last, 80)))
    return points


def users_of(experiment: Experiment) -> int:
    """How many users come: the horizon, unless the file says otherwise."""
    assert experiment.simulation is not None
    return experiment.simulation.users or experiment.horizon


def means_of(experiment: Experiment) -> Floats:
    """The true means; a simulation cannot do without."""
    assert experiment.simulation is not None
    return np.array(experiment.simulation.means)


def summarise(job: Job, results: Sequence[RunBlock]) -> Result:
    """All blocks of one algorithm together."""
    regret = np.concatenate([b.regret for b in results])
    decided = np.concatenate([b.decided_at for b in results])
    known = decided[~np.isnan(decided)]
    runs = len(regret)
    curve = np.sum([b.curve for b in results], axis=0) / runs
    return Result(
        name=job.name,
        runs=runs,
        regret_mean=float(regret.mean()),
        regret_sem=float(regret.std(ddof=1) / math.sqrt(runs)) if runs > 1 else 0.0,
        decided_fraction=len(known) / runs,
        best_arm_kept=float(np.mean(np.concatenate([b.best_kept for b in results]))),
        users_to_decision_mean=float(known.mean()) if len(known) else None,
        users=tuple(int(u) for u in grid(users_of(job.experiment))),
        regret=tuple(curve.tolist()),
    )


def private_runs(experiment: Experiment, runs: int, rng: np.random.Generator) -> RunBlock:
    """The experiment as it stands, with its own noise."""
    return agent_runs(experiment, mechanism_noise(experiment), means_of(experiment), runs, rng)


def agent_runs(
    experiment: Experiment,
    noises: Noises,
    reward_means: Floats,
    runs: int,
    rng: np.random.Generator,
) -> RunBlock:
    """Runs of the experiment's agent; `reward_means` are the means of what reports carry."""
    books = _Runs(_agent(experiment, noises), noises, reward_means, runs, rng)
    epoch = 0
    active = np.arange(runs)
    while len(active):
        active = books.epoch(epoch, active)
        epoch += 1
    return books.block()


class _Runs:
    """Runs that go through the phases together: the users of each, its regret, how it ended."""

    def __init__(
        self,
        agent: PhasedAgent,
        noises: Noises,
        reward_means: Floats,
        runs: int,
        rng: np.random.Generator,
    ) -> None:
        self._agent = agent
        self._noises = noises
        self._reward_means = reward_means
        self._rng = rng
        means = means_of(agent.experiment)
        self._last = users_of(agent.experiment)
        self._gaps = means.max() - means
        self._points = grid(self._last)
        self._users = np.zeros(runs, np.int64)
        self._viable = np.ones((runs, len(means)), np.bool_)
        self._serve = np.zeros(runs, np.int64)
        self._curves = np.zeros((runs, len(self._points)))

    def epoch(self, epoch: int, active: Ints) -> Ints:
        """Take these runs through an epoch; returns those that begin another one."""
        agent = self._agent
        again = active[:0]
        phase = 0
        arms = Arms.fresh(len(active), len(self._gaps))
        while True:
            phase += 1
            self._viable[active] = arms.viable
            chosen, size = agent.opening(epoch, phase, arms)
            full = size == 0
            decided = np.sum(arms.viable, axis=1) == 1
            ended = decided | (full & agent.final(epoch))
            self._serve[active[ended]] = agent.leaders(epoch, arms.rows(ended))
            again = np.append(again, active[full & ~ended])
            # An unknown horizon never exhausts the agent: then the last user ends the run.
            going = ~full & ~decided & (self._users[active] < self._last)
            if not np.any(going):
                return again
            active = active[going]
            arms = arms.rows(going)
            chosen = chosen[going]
            size = size[going]
            complete = self._completes(active, chosen, size)
            arms = agent.recorded(epoch, arms, chosen, size, self._collect(active, chosen, size))
            active = active[complete]
            arms = agent.judged(epoch, phase, arms.rows(complete))

    def _completes(self, active: Ints, chosen: Bools, size: Ints) -> Bools:
        """Whether a phase's last batch begins before the last user; interleaved, all do."""
        batches = np.sum(chosen, axis=1)
        waiting = batches - 1 if self._agent.experiment.agent.order is Order.SEQUENTIAL else 0
        complete: Bools = self._users[active] + size * waiting < self._last
        return complete

    def _collect(self, active: Ints, chosen: Bools, size: Ints) -> Floats:
        """Draw a phase's sums, row by row, and account for its users in that order."""
        row, arm = np.nonzero(chosen)
        sizes = size[row]
        before = (np.cumsum(chosen, axis=1) - 1)[row, arm]
        start = self._users[active][row] + before * sizes
        served = np.clip(self._points - start[:, None], 0, sizes[:, None])
        regret = served * self._gaps[arm][:, None]
        self._curves[active] += np.add.reduceat(regret, np.flatnonzero(before == 0))
        self._users[active] += size * np.sum(chosen, axis=1)
        return _draw_sums(sizes, self._reward_means[arm], self._noises, self._rng)

    def block(self) -> RunBlock:
        """Serve every user that is left, and measure."""
        left = np.maximum(0, self._points - self._users[:, None])
        curves = self._curves + left * self._gaps[self._serve][:, None]
        decided = np.sum(self._viable, axis=1) == 1
        return RunBlock(
            regret=curves[:, -1],
            decided_at=np.where(decided, self._users, np.nan),
            best_kept=np.any(self._viable[:, self._gaps == 0], axis=1),
            curve=np.sum(curves, axis=0),
        )


def _draw_sums(sizes: Ints, means: Floats, noises: Noises, rng: np.random.Generator) -> Floats:
    """Each batch's debiased sum: rewards plus centred noise."""
    sums = rng.binomial(sizes, means).astype(np.float64)
    for size in np.unique(sizes):
        same = sizes == size
        sums[same] += noises(int(size))[0].draw(int(same.sum()), rng)
    return sums


@lru_cache(maxsize=32)
def _agent(experiment: Experiment, noises: Noises) -> PhasedAgent:
    """Remembered, with its thresholds: all blocks of a job have the same."""
    return PhasedAgent(experiment, noises)
