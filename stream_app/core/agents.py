"""Which agent an experiment has, and what the service needs of any: the door for a second family.

An agent is pure: states in, states out. Whoever holds one only calls what `Agent` lists; that the
one family so far works in phases is known to `phased_agent` and to `simulation` alone.
"""

from collections.abc import Sequence
from typing import Protocol

from stream_app.core.experiment import Experiment
from stream_app.core.phased_agent import PhasedAgent
from stream_app.core.schedules import Noises
from stream_app.core.state import State


class Agent(Protocol):
    """The state machine of one experiment. A state is the agent's whole memory."""

    def begin(self) -> State:
        """The first state."""

    def fold(self, state: State, sequence: int, value: float) -> State:
        """The state after one released sum. Raises IllegalTransition if its batch is not open."""

    def record(self, state: State, sequence: int, value: float) -> State:
        """Only add the sum: `fold` without its decision, for whoever wants to see the moment."""

    def due(self, state: State) -> bool:
        """Whether the state waits for `decide`."""

    def decide(self, state: State) -> State:
        """The state after the conclusion that is due."""

    def stop(self, state: State) -> State:
        """The state after the operator stopped it."""

    def horizon(self, state: State) -> int:
        """The number of users that the state's guarantee is for."""

    def means(self, state: State) -> list[float | None]:
        """Each arm's estimated mean; None where nothing is known."""

    def intervals(self, state: State) -> list[tuple[float, float]]:
        """Each arm's confidence interval."""

    def estimates(
        self, epoch: int, batches: Sequence[int], weighted: Sequence[float]
    ) -> list[tuple[float, float, float]]:
        """Mean, lower and upper bound of arms with this evidence in an epoch."""


def agent_for(experiment: Experiment, noises: Noises | None = None) -> Agent:
    """The agent of an experiment; other noise than its mechanism's is for comparisons only."""
    return PhasedAgent(experiment, noises)
