"""Interleaved rounds (peer, ours, peer, ours), medians, ratios: machines are noisy."""

import logging
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

Measure = Callable[[], float]  # one round; returns seconds, or any cost where less is better


@dataclass(frozen=True)
class Outcome:
    """One comparison: the median of each side and what the ratio ours/peer should be at most."""

    name: str
    peer: str
    peer_cost: float
    our_cost: float
    target: float
    spread: tuple[float, float] | None = None  # the least and the largest ratio of a round

    @property
    def ratio(self) -> float:
        return self.our_cost / self.peer_cost

    @property
    def reached(self) -> bool:
        return self.ratio <= self.target

    @property
    def verdict(self) -> str:
        return "" if self.reached else "missed"


def seconds(work: Callable[[], object]) -> Measure:
    """A round that takes the time of some work."""

    def measure() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return measure


def compare(
    name: str, peer_name: str, peer: Measure, ours: Measure, target: float, rounds: int = 5
) -> Outcome:
    """Run both sides in turn; the first round of each only warms up."""
    peer(), ours()
    costs = [(peer(), ours()) for _ in range(rounds)]
    return of_rounds(name, peer_name, costs, target)


def of_rounds(
    name: str, peer_name: str, costs: Sequence[tuple[float, float]], target: float
) -> Outcome:
    """Of the costs of some rounds, the peer's first."""
    peer_cost, our_cost = (statistics.median(side) for side in zip(*costs, strict=True))
    ratios = [ours / peer for peer, ours in costs]
    return Outcome(name, peer_name, peer_cost, our_cost, target, (min(ratios), max(ratios)))


def measured(name: str) -> list[Outcome]:
    """All comparisons of a module of this package, each told as soon as it is known."""
    logging.disable(logging.WARNING)  # aiokafka's, of topics that were made a moment ago
    outcomes = []
    for outcome in import_module(f"tests.benchmarks.{name}").outcomes():
        outcomes.append(outcome)
        print(f"{outcome.ratio:8.3g} {outcome.verdict:7} {outcome.name}", flush=True)
    return outcomes
