"""Bounded histories of what was released: each arm's estimates, phases, eliminations, users.

Pure. When there are more points than fit, every second one goes, but never the first or the last.
Estimates are computed when they are asked for, all at once and each once: a bound takes
milliseconds, and most experiments are never looked at.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from stream_app.core.agents import Agent
from stream_app.core.experiment import Experiment
from stream_app.core.state import State
from stream_app.errors import ConfigurationError

# Points of one history if there are few arms: more than a chart of a page's width can tell apart.
# All arms together have about 16 times as many, so that a snapshot of 1000 arms stays small.
MAX_POINTS = 128
# With fewer a curve is no curve, however many arms there are.
_LEAST_POINTS = 8

# What an impossible state makes the bounds raise: whoever writes assignments is not trusted.
IMPOSSIBLE = (ConfigurationError, ValueError, ArithmeticError, LookupError)


def most_points(arms: int) -> int:
    """How many points each of so many histories may have."""
    return max(_LEAST_POINTS, min(MAX_POINTS, 16 * MAX_POINTS // max(arms, 1)))


def thin(points: list[Any], most: int) -> None:
    """Drop every second point if there are too many."""
    if len(points) > most:
        del points[1:-1:2]


def tidy(value: float) -> float:
    """Six digits: enough for a chart, and half as long on the wire."""
    return float(f"{value:.6g}")


@dataclass(slots=True)
class _Evidence:
    """An arm's evidence when the experiment had so many users."""

    users: int
    epoch: int
    batches: int
    weighted: float
    shown: tuple[int, float, float, float] | None = None


@dataclass(slots=True)
class Track:
    """How an experiment came to where it is, by its assignments."""

    experiment: Experiment
    evidence: list[list[_Evidence]] = field(default_factory=list)  # per arm, in time's order
    phases: list[dict[str, int]] = field(default_factory=list)
    eliminated: list[dict[str, Any]] = field(default_factory=list)
    _last: State | None = None

    def add(self, state: State) -> None:
        """Take the next state; one that is older than the newest is skipped."""
        before = self._last
        self.evidence = self.evidence or [[] for _ in state.arms]
        if before is not None and (state.users, state.sequence) < (before.users, before.sequence):
            return
        most = most_points(len(state.arms))
        for points, arm in zip(self.evidence, state.arms, strict=True):
            last = points[-1] if points else None
            if arm.batches and (
                last is None or (last.epoch, last.batches) != (state.epoch, arm.batches)
            ):
                points.append(_Evidence(state.users, state.epoch, arm.batches, arm.weighted))
                thin(points, most)
        if before is None or (before.epoch, before.phase) != (state.epoch, state.phase):
            self.phases.append({"phase": state.phase, "epoch": state.epoch, "users": state.users})
            thin(self.phases, MAX_POINTS)
        self._compare(before, state)
        self._last = replace(state, open=())

    def _compare(self, before: State | None, state: State) -> None:
        if before is None or before.epoch != state.epoch:
            self.eliminated.clear()
            return
        for name, was, arm in zip(self.experiment.arms, before.arms, state.arms, strict=True):
            if was.viable and not arm.viable:
                found = {"arm": name, "phase": before.phase, "users": state.users}
                self.eliminated.append(found)

    def shown(self, agent: Agent) -> list[list[tuple[int, float, float, float]]]:
        """Per arm: users, mean, lower and upper bound; nothing that cannot be computed."""
        missing: dict[int, list[_Evidence]] = {}
        for points in self.evidence:
            for point in points:
                if point.shown is None:
                    missing.setdefault(point.epoch, []).append(point)
        for epoch, points in missing.items():
            batches = [point.batches for point in points]
            weighted = [point.weighted for point in points]
            try:
                found = agent.estimates(epoch, batches, weighted)
            except IMPOSSIBLE:
                continue
            for point, (mean, lower, upper) in zip(points, found, strict=True):
                point.shown = (point.users, tidy(mean), tidy(lower), tidy(upper))
        return [[p.shown for p in points if p.shown is not None] for points in self.evidence]
