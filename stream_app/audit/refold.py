"""The agent's work done again from the public topics: does its last assignment follow from `sums`?

Pure: what the topics hold comes as arguments, what is wrong goes out as sentences. A sum is folded
exactly if the stage folds it: its batch is open, by number and by id.
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import orjson

from stream_app.core.agents import agent_for
from stream_app.core.experiment import Experiment
from stream_app.core.promise import plain
from stream_app.core.state import OpenBatch, State, Status
from stream_app.errors import InvalidInput
from stream_app.registry import Entry
from stream_app.wire.assignment import Assignment, terms_of
from stream_app.wire.sum import Sum, decode_sum

# Sums of floats may be taken in another order on another machine.
_RELATIVE = 1e-9


@dataclasses.dataclass(frozen=True, slots=True)
class Refolded:
    """The sums that were read, and the differences that were found, in words."""

    sums: list[Sum]
    differences: list[str]


def refold(entry: Entry, records: Iterable[tuple[int, bytes | None]]) -> Refolded:
    """Check an experiment's committed sums, given by offset in the log's order."""
    assignment = entry.assignment
    experiment = entry.experiment if assignment is None else assignment.experiment
    if experiment is None:
        return Refolded([], [f"its records cannot be read: {entry.problem}"])
    again = _Refold(experiment, assignment)
    for offset, value in records:
        again.add(offset, value)
    return Refolded(again.sums, again.differences + _compare_assignment(entry, again))


class _Refold:
    """The agent's fold over `sums`, and what is wrong on the way."""

    def __init__(self, experiment: Experiment, assignment: Assignment | None) -> None:
        self.experiment = experiment
        self.folded = -1 if assignment is None else assignment.folded
        self.stopped = assignment is not None and assignment.state.status is Status.STOPPED
        self.agent = agent_for(experiment)
        self.state = self.agent.begin()
        self.at_folded: State = self.state  # the state that the assignment must show
        self.newest = -1
        self.sums: list[Sum] = []
        self.differences: list[str] = []
        self._released: set[int] = set()
        self._certified: dict[object, float] = {}

    def add(self, offset: int, value: bytes | None) -> None:
        """Check the next sum of the log, and fold it if its batch is open."""
        self.newest = offset
        try:
            found = decode_sum(value)
        except InvalidInput as error:
            self.differences.append(f"the sum at offset {offset} is not valid: {error}")
            return
        self.sums.append(found)
        stated = orjson.loads(value or b"").get("estimate")
        if not _close(stated, found.estimate):
            self._differ(found, f"its estimate is {stated}, recomputed {found.estimate}")
        self._check_certificate(found)
        batch = self._open_batch(found)
        if batch is None:
            return
        self._released.add(batch.sequence)
        if self.stopped and offset > self.folded:
            # Released while the operator stopped the experiment: the agent no longer folds it.
            left = tuple(b for b in self.state.open if b is not batch)
            self.state = dataclasses.replace(self.state, open=left)
            return
        self.state = self.agent.fold(self.state, batch.sequence, found.estimate)
        if offset <= self.folded:
            self.at_folded = self.state

    def _open_batch(self, found: Sum) -> OpenBatch | None:
        """The open batch that the sum is of: same number, same terms, so the same id."""
        sequence = found.terms.sequence
        batch = next((b for b in self.state.open if b.sequence == sequence), None)
        if batch is None:
            known = sequence in self._released
            self._differ(found, "it is released twice" if known else "the agent did not open it")
            return None
        due = terms_of(self.experiment, batch)
        if due.batch_id == found.batch_id:
            return batch
        there = found.terms.as_json()
        here = due.as_json()
        key = next(key for key in here if here[key] != there[key])
        self._differ(found, f"its terms have {key} = {there[key]}, the experiment's {here[key]}")
        return None

    def _check_certificate(self, found: Sum) -> None:
        mechanism = found.terms.mechanism
        if mechanism not in self._certified:
            self._certified[mechanism] = mechanism.certified_delta
        if self._certified[mechanism] > mechanism.promise.delta:
            self._differ(
                found,
                f"its noise gives delta = {self._certified[mechanism]:.3g}, more than the "
                f"stated {plain(mechanism.promise.delta)}",
            )

    def _differ(self, found: Sum, what: str) -> None:
        self.differences.append(f"batch {found.batch_id}: {what}")


def _compare_assignment(entry: Entry, again: _Refold) -> list[str]:
    """What the last assignment states and the sums do not give."""
    found = [f"its records cannot be read: {entry.problem}"] if entry.problem else []
    if entry.assignment is None or entry.record is None:
        return [*found, "there are sums, but no assignment"] if again.sums else found
    if entry.definition is not None and entry.definition.experiment != again.experiment:
        found.append("the agent runs another definition than the operator's")
    if again.folded > again.newest:
        found.append(f"the assignment counts a sum at offset {again.folded}; there is none")
    state = again.at_folded
    due = Assignment(
        again.experiment, again.agent.stop(state) if again.stopped else state, again.folded
    )
    return found + differing(orjson.loads(entry.record), orjson.loads(due.encode()), "assignment")


def differing(stated: Any, due: Any, path: str) -> list[str]:
    """Where two JSON values differ, by path; floats are compared to 1e-9."""
    if isinstance(stated, dict) and isinstance(due, dict):
        return [
            line
            for key in sorted(stated | due)
            for line in differing(stated.get(key), due.get(key), f"{path}.{key}")
        ]
    if isinstance(stated, list) and isinstance(due, list) and len(stated) == len(due):
        return [
            line
            for i, (one, other) in enumerate(zip(stated, due, strict=True))
            for line in differing(one, other, f"{path}[{i}]")
        ]
    if _close(stated, due):
        return []
    return [f"{path} is {_short(stated)}, recomputed {_short(due)}"]


def _short(value: Any) -> str:
    return orjson.dumps(value).decode()[:120]


def _close(stated: Any, due: Any) -> bool:
    if isinstance(due, float) and type(stated) in (int, float):
        return math.isclose(stated, due, rel_tol=_RELATIVE, abs_tol=_RELATIVE)
    return type(stated) is type(due) and bool(stated == due)
