"""The elimination stage: sums and definitions in, assignments out.

State of one partition: every experiment's newest assignment, which holds the agent's whole memory
and the offset of the last sum in it. So recovery is: read the assignments, read the definitions,
go on after the last folded sum. A sum whose batch is not open is skipped.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from stream_app.core.agents import Agent, agent_for
from stream_app.core.experiment import Experiment
from stream_app.core.state import Status
from stream_app.definitions import dump_experiment
from stream_app.errors import ConfigurationError, InvalidInput
from stream_app.metrics.instruments import REFUSED, Assigned, Metrics
from stream_app.runtime.refusals import Refusals
from stream_app.runtime.runner import Runner
from stream_app.runtime.stage import Log, Output, Record, Stage, newest
from stream_app.settings import Settings
from stream_app.wire.assignment import Assignment, decode_assignment, is_defined_so, terms_of
from stream_app.wire.definition import decode_definition
from stream_app.wire.sum import Sum, decode_sum

log = logging.getLogger("shufflebandit.agent")
# Kafka takes records of 1 MB; an assignment grows a little while its numbers do.
MAX_ASSIGNMENT_BYTES = 700_000


class EliminationPartition:
    """The experiments of one partition."""

    def __init__(self) -> None:
        self._assignments: dict[bytes, Assignment] = {}
        self._agents: dict[bytes, Agent] = {}
        self._changed: set[bytes] = set()
        self._released_ms: dict[bytes, list[int]] = {}  # of the sums folded since the last `take`
        self._unreadable: set[bytes] = set()
        self._refusals = Refusals(log)

    def feed(self, records: Sequence[Record], *, refreshed: bool) -> None:
        """Fold sums."""
        for record in records:
            try:
                self._fold(record, decode_sum(record.value))
            except InvalidInput as error:
                self._refusals.add(f"sum at offset {record.offset}", str(error))

    def _fold(self, record: Record, released: Sum) -> None:
        key = record.key
        offset = record.offset
        assignment = self._assignments.get(key) if key is not None else None
        if assignment is None or key is None or offset <= assignment.folded:
            return
        if not is_open(assignment, released):
            return
        agent = self._agent(key, assignment)
        state = agent.fold(assignment.state, released.terms.sequence, released.estimate)
        self._put(key, replace(assignment, state=state, folded=offset))
        self._released_ms.setdefault(key, []).append(record.timestamp)
        if state.status is not Status.RUNNING and state.serve is not None:
            log.info(
                "%s: %s after %d users, serve %r (guarantee: %s)",
                assignment.experiment.name, state.status, state.users,
                assignment.experiment.arms[state.serve], assignment.experiment.agent.guarantee,
            )  # fmt: skip

    def control(self, records: Sequence[Record]) -> None:
        """Take up new definitions, stop those that the operator stopped."""
        for record in records:
            try:
                self._define(record.key, record.value)
            except InvalidInput as error:
                self._refusals.add(f"experiment {(record.key or b'')[:80]!r}", str(error))

    def _define(self, key: bytes | None, value: bytes | None) -> None:
        definition = decode_definition(value)
        experiment = definition.experiment
        if key is None or experiment.name.encode() != key:
            raise InvalidInput("its key is not its name")
        assignment = self._assignments.get(key)
        if key in self._unreadable:
            raise InvalidInput("its newest assignment cannot be read, so it cannot go on")
        if assignment is None:
            assignment = self._begin(key, experiment)
        elif dump_experiment(assignment.experiment) != dump_experiment(experiment):
            raise InvalidInput("a running definition cannot be changed; use another name")
        if definition.stopped and assignment.state.status is Status.RUNNING:
            stopped = self._agent(key, assignment).stop(assignment.state)
            self._put(key, replace(assignment, state=stopped))

    def _goes_on(self, record: Record, newest: Mapping[bytes, bytes | None]) -> bool:
        """Whether a definition is surely the one that its assignment has."""
        value = newest.get(record.key) if record.key in self._assignments else None
        return value is not None and is_defined_so(record.value, value)

    def _begin(self, key: bytes, experiment: Experiment) -> Assignment:
        """The first assignment, if the definition can be carried out at all."""
        agent = agent_for(experiment)
        try:
            assignment = Assignment(experiment, agent.begin())
            size = len(assignment.encode())
        except (ConfigurationError, ArithmeticError, ValueError) as error:
            raise InvalidInput(f"cannot be carried out: {error}") from None
        if size > MAX_ASSIGNMENT_BYTES:
            raise InvalidInput(
                f"its assignments would take {size} bytes, more than {MAX_ASSIGNMENT_BYTES}: use "
                "fewer arms, shorter names, or order = sequential"
            )
        self._agents[key] = agent
        self._put(key, assignment)
        return assignment

    def _agent(self, key: bytes, assignment: Assignment) -> Agent:
        agent = self._agents.get(key)
        if agent is None:
            agent = self._agents[key] = agent_for(assignment.experiment)
        return agent

    def _put(self, key: bytes, assignment: Assignment) -> None:
        self._assignments[key] = assignment
        self._changed.add(key)

    def take(self) -> list[Output]:
        """The newest assignment of each experiment that changed."""
        changed = sorted(self._changed)
        self._changed = set()
        times = self._released_ms
        self._released_ms = {}
        return [
            Output(
                "assignments",
                key,
                self._assignments[key].encode(),
                Assigned(tuple(times.get(key, ()))),
            )
            for key in changed
        ]

    @property
    def refused(self) -> int:
        """Sums and definitions that were refused."""
        return self._refusals.count

    def counts(self) -> dict[str, int]:
        """See `metrics.instruments.Counted`."""
        return {REFUSED: self.refused}

    async def recover(self, log: Log, restart_offset: int | None) -> int:
        """Read assignments and definitions; go on after the last folded sum.

        All sums of a chunk are folded in one transaction, in order, so every sum before the last
        folded one of any experiment has been seen.
        """
        assigned = await newest(log, "assignments")
        for key, value in assigned.items():
            try:
                self._assignments[key] = decode_assignment(value)
            except InvalidInput as error:
                self._unreadable.add(key)
                self._refusals.add(f"assignment of {key[:80]!r}", str(error))
        async for records in log.read("experiments"):
            self.control([record for record in records if not self._goes_on(record, assigned)])
        return max((a.folded + 1 for a in self._assignments.values()), default=0)


def is_open(assignment: Assignment, released: Sum) -> bool:
    """Whether a sum's batch is one that the assignment lists, by number and by id."""
    return any(
        batch.sequence == released.terms.sequence
        and terms_of(assignment.experiment, batch).batch_id == released.batch_id
        for batch in assignment.state.open
    )


def make_runner(settings: Settings, metrics: Metrics | None = None) -> Runner:
    """The elimination stage of a worker."""
    agent = settings.agent
    stage = Stage(
        "agent", "sums", "experiments", True, agent.group, agent.instance_id, EliminationPartition
    )
    return Runner(settings.kafka, stage, metrics)
