"""The definition of an experiment, complete and valid once built, and the presets by name.

Values only: where they come from (a TOML file, a topic) is not known here.
"""

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any, ClassVar

from stream_app.core.mechanisms import Mechanism, MechanismName, calibrate
from stream_app.core.promise import MAX_BATCH_SIZE, Calibration, Promise
from stream_app.errors import ConfigurationError

# An assignment lists every arm, and perhaps a batch for each: it must fit into a record (RULES 20).
MAX_ARMS = 1000
# More users than there are people, and far below 2**53, up to which floats count exactly.
MAX_HORIZON = 10**12
# A Kafka key, a metric's label and part of a URL: nothing that one of them would have to quote.
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


class Comparison(StrEnum):
    """How arms are compared (MATH 4)."""

    __test__ = False  # not a test class, whatever its name

    PAPER = "paper"
    CHERNOFF = "chernoff"
    PAIRWISE = "pairwise"
    KL_UCB = "kl-ucb"


class Guarantee(StrEnum):
    """What holds: the winner's name with high probability, or the expected regret only."""

    HIGH_PROBABILITY = "high-probability"
    EXPECTED = "expected"


class ScheduleName(StrEnum):
    """How batch sizes grow (MATH 5)."""

    FIXED = "fixed"
    DOUBLING = "doubling"
    GEOMETRIC = "geometric"


class Order(StrEnum):
    """One open batch at a time, or all of a phase at once."""

    SEQUENTIAL = "sequential"
    INTERLEAVED = "interleaved"


@dataclass(frozen=True, slots=True)
class Privacy:
    """The promise to each user, and the noise that keeps it."""

    epsilon: Decimal
    delta: Decimal
    mechanism: MechanismName
    calibration: Calibration
    honest_fraction: Decimal = Decimal("0.9")

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    def for_batch(self, size: int) -> Mechanism:
        """The mechanism of a batch of this size."""
        promise = Promise(self.epsilon, self.delta, size, self.honest_fraction)
        return calibrate(promise, self.mechanism, self.calibration)


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """How the agent compares arms and sizes batches."""

    preset: str
    test: Comparison
    guarantee: Guarantee
    schedule: ScheduleName
    order: Order = Order.SEQUENTIAL
    # First (or fixed) batch size; None: the schedule's own default of MATH 5.
    batch_size: int | None = None
    growth: Decimal = Decimal("1.5")
    # False: the horizon is unknown, `horizon` is the first guess, doubled when it is reached.
    horizon_known: bool = True

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if self.guarantee is Guarantee.EXPECTED and self.test in (
            Comparison.PAPER,
            Comparison.CHERNOFF,
        ):
            raise ConfigurationError(
                f"agent.guarantee = expected: test {self.test} gives high-probability only; "
                "use test = pairwise or kl-ucb"
            )
        if self.test is Comparison.PAPER and self.schedule is ScheduleName.GEOMETRIC:
            raise ConfigurationError(
                "agent.schedule = geometric: test paper takes unweighted batches; "
                "use schedule = fixed or doubling"
            )
        if self.batch_size is not None and not 1 <= self.batch_size <= MAX_BATCH_SIZE:
            raise ConfigurationError(
                f"agent.batch_size = {self.batch_size}: must be from 1 to {MAX_BATCH_SIZE}"
            )
        if not Decimal("1.05") <= self.growth <= 10:
            raise ConfigurationError(f"agent.growth = {self.growth}: must be from 1.05 to 10")


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a simulation pretends: each arm's true mean, and how many users come."""

    means: tuple[float, ...]
    users: int | None = None  # None: as many as the horizon

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        for mean in self.means:
            if not 0 <= mean <= 1:
                raise ConfigurationError(f"simulation.means = {mean}: must be in [0, 1]")
        if self.users is not None and not 1 <= self.users <= MAX_HORIZON:
            raise ConfigurationError(
                f"simulation.users = {self.users}: must be from 1 to {MAX_HORIZON}"
            )


@dataclass(frozen=True, slots=True)
class Experiment:
    """A whole experiment: which arms, for how many users, how private, by which agent."""

    name: str
    arms: tuple[str, ...]
    horizon: int
    privacy: Privacy
    agent: AgentSettings
    # How long a client waits for a reward before it reports, whatever happened.
    attribution_s: Decimal = Decimal(0)
    simulation: Simulation | None = None

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigurationError(
                f"name = {self.name[:80]!r}: must be 1 to 64 of a-z 0-9 . _ -, beginning with a "
                "letter or digit"
            )
        self._check_arms()
        if not len(self.arms) <= self.horizon <= MAX_HORIZON:
            raise ConfigurationError(
                f"horizon = {self.horizon}: must be from the number of arms ({len(self.arms)}) "
                f"to {MAX_HORIZON}"
            )
        if not 0 <= self.attribution_s <= 30 * 24 * 3600:
            raise ConfigurationError(
                f"attribution_s = {self.attribution_s}: must be from 0 to 2592000 (30 days)"
            )
        if self.simulation is not None and len(self.simulation.means) != len(self.arms):
            raise ConfigurationError(
                f"simulation.means: {len(self.simulation.means)} values for {len(self.arms)} arms; "
                "give one mean per arm"
            )
        # Refuses bad privacy settings here, once: for a usual batch, and for the largest that the
        # schedule could ask for, in which the least delta can be kept.
        self.privacy.for_batch(1_000)
        self.privacy.for_batch(self._largest_batch)

    def _check_arms(self) -> None:
        if not 2 <= len(self.arms) <= MAX_ARMS:
            raise ConfigurationError(f"arms: {len(self.arms)} given; must be 2 to {MAX_ARMS}")
        seen: set[str] = set()
        for arm in self.arms:
            if not 0 < len(arm) <= 100 or not arm.isprintable():
                raise ConfigurationError(
                    f"arms = {arm[:80]!r}: must be 1 to 100 printable characters"
                )
            if arm in seen:
                raise ConfigurationError(f"arms = {arm!r}: given twice; names must differ")
            seen.add(arm)

    @property
    def _largest_batch(self) -> int:
        return min(self.horizon, MAX_BATCH_SIZE) if self.agent.horizon_known else MAX_BATCH_SIZE

    @property
    def attribution_ms(self) -> int:
        """The attribution window in whole milliseconds."""
        return math.floor(self.attribution_s * 1000)


# The paper's noise, radius and guarantee; its two algorithms differ by their schedule.
_PAPER = {
    "privacy": {"mechanism": "binomial", "calibration": "paper"},
    "agent": {"test": "paper", "guarantee": "high-probability"},
}
# The least noise and growing batches (MATH 6 compares the regrets).
_SHARP = {
    "privacy": {"mechanism": "discrete-laplace", "calibration": "exact"},
    "agent": {"schedule": "geometric", "guarantee": "expected"},
}
# What a preset's name stands for; an experiment file's own settings override it.
PRESETS: dict[str, dict[str, dict[str, str]]] = {
    # Algorithm 1: batches of one size, the paper's radius and noise.
    "sdp-ae": {**_PAPER, "agent": {**_PAPER["agent"], "schedule": "fixed"}},
    # Algorithm 2: batches that double.
    "vb-sdp-ae": {**_PAPER, "agent": {**_PAPER["agent"], "schedule": "doubling"}},
    # The default: the least noise, growing batches, comparison of pairs.
    "optimal": {**_SHARP, "agent": {**_SHARP["agent"], "test": "pairwise"}},
    # No elimination: the next batch goes to the arm with the largest upper bound.
    "kl-ucb": {**_SHARP, "agent": {**_SHARP["agent"], "test": "kl-ucb"}},
}
# The least regret among those that eliminate arms, so that an experiment ends with an answer.
DEFAULT_PRESET = "optimal"
