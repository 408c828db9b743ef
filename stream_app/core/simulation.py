"""Whole experiments without Kafka: many runs at once, through the agents of the service.

A batch's sum is one binomial draw (the rewards) and one draw of the noise, so a run costs by its
batches, not by its users. The noise here is numpy's and seeded: a simulation has no user to
protect. It draws the unclipped noise; clipping changes a sum with probability below delta.

Regret is the paper's pseudo-regret: the sum over all T users of the gap of the arm each was given.
Users after the last released batch are given the arm that the agent names to serve.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from stream_app.core.agents import Agent, OpenBatch, State, Status
from stream_app.core.confidence import Bools
from stream_app.core.experiment import Experiment
from stream_app.core.noise import AnyNoise, BinomialNoise, Floats, LaplaceNoise, NoNoise
from stream_app.core.schedules import Noises, mechanism_noise

# Runs that share one generator: the result does not depend on how many processes share the work.
BLOCK = 200


@dataclass(frozen=True, slots=True)
class Block:
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
    simulate: Callable[[Experiment, int, np.random.Generator], Block]

    def block(self, seed: int, index: int, runs: int) -> Block:
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


def summarise(job: Job, results: Sequence[Block]) -> Result:
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


def private_runs(experiment: Experiment, runs: int, rng: np.random.Generator) -> Block:
    """The experiment as it stands, with its own noise."""
    return agent_runs(experiment, mechanism_noise(experiment), means_of(experiment), runs, rng)


def agent_runs(
    experiment: Experiment,
    noises: Noises,
    reward_means: Floats,
    runs: int,
    rng: np.random.Generator,
) -> Block:
    """Runs of the experiment's agent; `reward_means` are the means of what reports carry."""
    agent = _agent(experiment, noises)
    means = means_of(experiment)
    gaps = means.max() - means
    states = [agent.begin() for _ in range(runs)]
    paths: list[list[tuple[int, float]]] = [[(0, 0.0)] for _ in range(runs)]
    active = [i for i in range(runs) if _goes_on(states[i], experiment)]
    while active:
        jobs = [(i, batch) for i in active for batch in states[i].open]
        sums = _draw_sums([batch for _, batch in jobs], reward_means, noises, rng)
        for (i, batch), value in zip(jobs, sums.tolist(), strict=True):
            states[i] = agent.record(states[i], batch.sequence, value)
            users, regret = paths[i][-1]
            paths[i].append((users + batch.size, regret + batch.size * float(gaps[batch.arm])))
        due = [i for i in active if agent.due(states[i])]
        for i, state in zip(due, agent.decide([states[i] for i in due]), strict=True):
            states[i] = state
        active = [i for i in active if _goes_on(states[i], experiment)]
    return _finish(agent, states, paths, gaps)


def _goes_on(state: State, experiment: Experiment) -> bool:
    """An unknown horizon never exhausts the agent: then the last user ends the run."""
    return state.status is Status.RUNNING and state.users < users_of(experiment)


def _draw_sums(
    batches: Sequence[OpenBatch],
    reward_means: Floats,
    noises: Noises,
    rng: np.random.Generator,
) -> Floats:
    """Each batch's debiased sum: rewards plus centred noise."""
    sizes = np.array([batch.size for batch in batches])
    arms = np.array([batch.arm for batch in batches])
    sums = rng.binomial(sizes, reward_means[arms]).astype(np.float64)
    for size in np.unique(sizes):
        alike = sizes == size
        sums[alike] += draw_noise(noises(int(size))[0], int(alike.sum()), rng)
    return sums


def draw_noise(noise: AnyNoise, count: int, rng: np.random.Generator) -> Floats:
    """Centred totals of one batch's noise, `count` times."""
    match noise:
        case BinomialNoise(trials, success):
            ones: Floats = rng.binomial(int(trials), success, count).astype(np.float64)
            return ones - float(trials) * float(success)
        case LaplaceNoise(shape, epsilon):
            stop = -np.expm1(-epsilon)
            up = rng.negative_binomial(shape, stop, count)
            return (up - rng.negative_binomial(shape, stop, count)).astype(np.float64)
        case NoNoise():
            return np.zeros(count)


def _finish(
    agent: Agent, states: Sequence[State], paths: Sequence[list[tuple[int, float]]], gaps: Floats
) -> Block:
    """Serve every user that is left, and measure."""
    last = users_of(agent.experiment)
    points = grid(last)
    regrets, curve = np.empty(len(states)), np.zeros(len(points))
    for i, (state, path) in enumerate(zip(states, paths, strict=True)):
        users, regret = path[-1]
        if users < last:
            serve = state.serve if state.serve is not None else agent.leader(state)
            path.append((last, regret + (last - users) * float(gaps[serve])))
        xs, ys = zip(*path, strict=True)
        curve += np.interp(points, xs, ys)
        regrets[i] = np.interp(last, xs, ys)
    best = np.flatnonzero(gaps == 0)
    return Block(
        regret=regrets,
        decided_at=np.array([s.users if s.status is Status.DECIDED else np.nan for s in states]),
        best_kept=np.array([any(s.arms[b].viable for b in best) for s in states]),
        curve=curve,
    )


@lru_cache(maxsize=32)
def _agent(experiment: Experiment, noises: Noises) -> Agent:
    return Agent(experiment, noises)
