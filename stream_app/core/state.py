"""An agent's memory: where an experiment stands, what is known of each arm, what is collected.

Frozen values of O(k) size, without any rule: `phased_agent` makes them, `wire.assignment` carries
them, and everybody may read them.
"""

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """Where an experiment stands."""

    RUNNING = "running"
    DECIDED = "decided"
    EXHAUSTED = "exhausted"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ArmState:
    """All that is known of one arm."""

    viable: bool = True
    batches: int = 0
    users: int = 0
    # Sum over its batches of weight times debiased sum; and the same without weights.
    weighted: float = 0.0
    total: float = 0.0
    # kl-ucb's index; None until computed from the newest batch.
    index: float | None = None


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """A batch to collect: its number, its arm (by position) and its size."""

    sequence: int
    arm: int
    size: int


@dataclass(frozen=True, slots=True)
class State:
    """The agent's whole memory."""

    status: Status
    phase: int
    arms: tuple[ArmState, ...]
    open: tuple[OpenBatch, ...]
    sequence: int  # of the newest batch
    serve: int | None = None  # the arm to serve once nothing is collected
    epoch: int = 0  # how often an unknown horizon was doubled
    spent: int = 0  # users of earlier epochs

    @property
    def users(self) -> int:
        """Users whose batch was released, in all epochs."""
        return self.spent + sum(arm.users for arm in self.arms)
