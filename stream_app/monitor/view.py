"""The view: what anybody may know of the experiments who reads what the service releases.

Pure: records of the public topics `assignments` and `sums` in, snapshots out. It may miss or
repeat a record without harm. Nothing in it depends on the rewards of an open window.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from stream_app.core.agents import Agent, agent_for
from stream_app.core.terms import MAX_INTEGER, Terms
from stream_app.errors import InvalidInput
from stream_app.monitor import wording
from stream_app.monitor.history import IMPOSSIBLE, Track, most_points, thin, tidy
from stream_app.wire.assignment import Assignment, decode_assignment
from stream_app.wire.sum import decode_sum


@dataclass(slots=True)
class _Tally:
    """What the released sums of one arm say, over all epochs."""

    sequence: int = 0
    users: int = 0
    total: float = 0.0
    history: list[tuple[int, float]] = field(default_factory=list)

    @property
    def mean(self) -> float | None:
        return self.total / self.users if self.users else None

    def add(self, sequence: int, users: int, estimate: float, most: int) -> None:
        """One more sum; an arm's batches are released in order."""
        self.sequence = sequence
        self.users += users
        self.total += estimate
        self.history.append((self.users, tidy(self.total / self.users)))
        thin(self.history, most)


@dataclass(slots=True)
class _KnownExperiment:
    """What the topics have told of one experiment."""

    assignment: Assignment | None = None
    track: Track | None = None
    tallies: dict[str, _Tally] = field(default_factory=dict)
    # Users per arm, in the order of `tallies`, after each sum.
    spread: list[tuple[int, ...]] = field(default_factory=list)
    sums: int = 0
    released_ms: int | None = None
    terms: Terms | None = None  # of the newest sum
    shown: dict[str, Any] | None = None  # the snapshot, until something changes
    version: int = 0

    def changed(self) -> None:
        self.version += 1
        self.shown = None


class View:
    """Per experiment the newest assignment and what its sums tell: O(k) and a bounded history.

    Whether reports are kept after a release (`reports_retained`) is on no public topic, and a
    reader of them has no right to look at `reports`. So it is what the settings of the process
    that shows the view say: true if all workers have the same settings.
    """

    def __init__(self, *, reports_retained: bool = False) -> None:
        self.invalid = 0
        self._reports_retained = reports_retained
        self.version = 0  # counts all changes
        self._entries: dict[str, _KnownExperiment] = {}
        # An agent is built once for many looks; more experiments than this are seldom looked at.
        self._agent = lru_cache(maxsize=64)(agent_for)

    def assignment(self, value: bytes | None) -> None:
        """Take a record of `assignments`; an invalid one is counted and skipped."""
        try:
            assignment = decode_assignment(value)
        except InvalidInput:
            self.invalid += 1
            return
        entry = self._entries.setdefault(assignment.experiment.name, _KnownExperiment())
        entry.assignment = assignment
        if entry.track is None or entry.track.experiment != assignment.experiment:
            entry.track = Track(assignment.experiment)
        entry.track.add(assignment.state)
        self._changed(entry)

    def sum(self, value: bytes | None, released_ms: int) -> None:
        """Take a record of `sums`; an invalid one is counted, one that is known is skipped."""
        try:
            found = decode_sum(value)
        except InvalidInput:
            self.invalid += 1
            return
        terms = found.terms
        entry = self._entries.setdefault(terms.experiment, _KnownExperiment())
        tally = entry.tallies.setdefault(terms.arm, _Tally())
        if terms.sequence <= tally.sequence:
            return
        most = most_points(len(entry.tallies))
        tally.add(terms.sequence, terms.mechanism.promise.batch_size, found.estimate, most)
        entry.spread.append(tuple(t.users for t in entry.tallies.values()))
        thin(entry.spread, most)
        entry.sums += 1
        entry.released_ms = released_ms
        entry.terms = terms
        self._changed(entry)

    def _changed(self, entry: _KnownExperiment) -> None:
        self.version += 1
        entry.changed()

    def version_of(self, name: str) -> int:
        """Counts the changes of one experiment; 0 if it is not known."""
        entry = self._entries.get(name)
        return 0 if entry is None else entry.version

    def experiments(self) -> list[dict[str, Any]]:
        """All experiments in short, by name."""
        return [
            {**_summary(entry.assignment), "last_release_ms": entry.released_ms}
            for _, entry in sorted(self._entries.items())
            if entry.assignment is not None
        ]

    def snapshot(self, name: str) -> dict[str, Any] | None:
        """All that is known of an experiment; None if there is no such experiment."""
        entry = self._entries.get(name)
        if entry is None or entry.assignment is None or entry.track is None:
            return None
        if entry.shown is None:
            entry.shown = self._show(entry, entry.assignment, entry.track)
        return entry.shown

    def _show(
        self, entry: _KnownExperiment, assignment: Assignment, track: Track
    ) -> dict[str, Any]:
        experiment = assignment.experiment
        state = assignment.state
        tallies = [entry.tallies.get(arm, _Tally()) for arm in experiment.arms]
        means, intervals = self._estimates(assignment)
        known = [t.mean if m is None else m for m, t in zip(means, tallies, strict=True)]
        users = [max(a.users, t.users) for a, t in zip(state.arms, tallies, strict=True)]
        certificate = _certificate(assignment, entry.terms, self._reports_retained)
        true = experiment.simulation.means if experiment.simulation else None
        shown = {
            **_summary(assignment),
            "preset": experiment.agent.preset,
            "guarantee": str(experiment.agent.guarantee),
            "horizon_known": experiment.agent.horizon_known,
            "arms": _arms(assignment, means, intervals, tallies, track.shown(self._of(assignment))),
            "open": [{"arm": experiment.arms[b.arm], "size": b.size} for b in state.open],
            "epsilon": float(experiment.privacy.epsilon),
            "delta": float(experiment.privacy.delta),
            "honest_fraction": float(experiment.privacy.honest_fraction),
            "certified_delta": certificate and certificate["certified_delta"],
            "certificate": certificate,
            "reports_retained": self._reports_retained,
            "estimated_regret": regret(users, known),
            "true_regret": regret(users, true) if true else None,
            "regret": _regret_curve(entry, experiment.arms, known, true),
            "phases": list(track.phases),
            "eliminated": list(track.eliminated),
            "sums": entry.sums,
            "last_release_ms": entry.released_ms,
        }
        return {**shown, "words": wording.describe(experiment, shown)}

    def _of(self, assignment: Assignment) -> Agent:
        return self._agent(assignment.experiment)

    def _estimates(self, of: Assignment) -> tuple[list[float | None], list[tuple[float, float]]]:
        """Means and intervals; unknown if the state is impossible: its writer is not trusted."""
        agent = self._of(of)
        try:
            return agent.means(of.state), agent.intervals(of.state)
        except IMPOSSIBLE:
            self.invalid += 1
            k = len(of.experiment.arms)
            return [None] * k, [(0.0, 1.0)] * k


def regret(users: list[int], means: list[float | None] | tuple[float, ...]) -> float | None:
    """Pseudo-regret: what the users would have gained by the best arm, by these means."""
    known = [(n, mean) for n, mean in zip(users, means, strict=True) if mean is not None]
    if not known:
        return None
    best = max(mean for _, mean in known)
    return float(sum(n * (best - mean) for n, mean in known))


def _regret_curve(
    entry: _KnownExperiment,
    arms: tuple[str, ...],
    means: list[float | None],
    true: tuple[float, ...] | None,
) -> list[tuple[int, float | None, float | None]]:
    """Users, estimated and true regret after each sum, all by the newest means."""
    curve: list[tuple[int, float | None, float | None]] = []
    for spread in entry.spread:
        # Arms that had no sum yet when this one came are not in it.
        known_users = dict(zip(entry.tallies, spread, strict=False))
        users = [known_users.get(arm, 0) for arm in arms]
        estimated = regret(users, means)
        known = regret(users, true) if true else None
        curve.append((sum(users), _tidy(estimated), _tidy(known)))
    return curve


def _tidy(value: float | None) -> float | None:
    return None if value is None else tidy(value)


def _arms(
    assignment: Assignment,
    means: list[float | None],
    intervals: list[tuple[float, float]],
    tallies: list[_Tally],
    tracks: list[list[tuple[int, float, float, float]]],
) -> list[dict[str, Any]]:
    names = assignment.experiment.arms
    states = assignment.state.arms
    return [
        {
            "name": name,
            "viable": state.viable,
            "batches": state.batches,
            "users": state.users,
            "mean": mean,
            "lower": lower,
            "upper": upper,
            "history": list(tally.history),
            "track": track,
        }
        for name, state, mean, (lower, upper), tally, track in zip(
            names, states, means, intervals, tallies, tracks, strict=True
        )
    ]


def _certificate(
    assignment: Assignment, newest: Terms | None, reports_retained: bool
) -> dict[str, Any] | None:
    """What is certified of the newest batch, and what a stranger needs to compute it again."""
    opened = assignment.state.open
    terms = assignment.terms(opened[-1]) if opened else newest
    if terms is None:
        return None
    promise = terms.mechanism.promise
    return {
        "batch": terms.batch_id,
        "arm": terms.arm,
        "size": promise.batch_size,
        "honest": promise.honest,
        "epsilon": float(promise.epsilon),
        "delta": float(promise.delta),
        "certified_delta": terms.mechanism.certified_delta,
        "mechanism": str(terms.mechanism.name),
        "calibration": str(terms.mechanism.calibration),
        "parameters": terms.as_json()["parameters"],
        "reports_retained": reports_retained,
    }


def _summary(assignment: Assignment) -> dict[str, Any]:
    experiment = assignment.experiment
    state = assignment.state
    return {
        "name": experiment.name,
        "state": str(state.status),
        "phase": state.phase,
        "epoch": state.epoch,
        "serve": None if state.serve is None else experiment.arms[state.serve],
        "viable": sum(arm.viable for arm in state.arms),
        "users": state.users,
        "horizon": min(experiment.horizon << state.epoch, MAX_INTEGER),
    }
