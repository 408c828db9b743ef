"""Which batch a user goes to, and the random draws behind it. Pure: no Kafka, clock, file or log.

Nothing in an assignment is trusted: every batch's terms are checked against the client's own
limits before a single draw is made for it (PROTOCOL.md, "Duties of a client"). All randomness is
the operating system's, drawn in blocks, and forgotten in a forked process.
"""

import os
import secrets
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple
from weakref import WeakSet

from stream_app.core.samplers import Entropy, Sampler
from stream_app.core.state import Status
from stream_app.core.terms import Checks, Limits, Terms
from stream_app.errors import InvalidInput
from stream_app.wire.assignment import Offer

# 128 bits: ids that devices draw apart from one another never meet.
_ID_BYTES = 16
# Draws of a block: 8 KiB, at which a call of the operating system costs next to nothing per draw.
_PIECES = 512


class Shown(NamedTuple):
    """What to show a user, and what to `report` on. A product may store it."""

    arm: str
    batch_id: str  # empty: nobody reports on it
    report_id: bytes = b""


class Draws:
    """128 random bits at a time, drawn in blocks, each used once."""

    __slots__ = ("__weakref__", "_entropy", "_pieces")

    def __init__(self, entropy: Entropy = secrets.token_bytes) -> None:
        self._entropy = entropy
        self._pieces: list[bytes] = []
        forgets_on_fork(self)

    def take(self) -> bytes:
        """The next 16 bytes."""
        if not self._pieces:
            block = self._entropy(_PIECES * _ID_BYTES)
            self._pieces = [block[i : i + _ID_BYTES] for i in range(0, len(block), _ID_BYTES)]
        return self._pieces.pop()

    def discard(self) -> None:
        """Forget what was drawn."""
        self._pieces.clear()


@dataclass(slots=True, eq=False, weakref_slot=True)
class CheckedBatch:
    """A batch whose terms were checked, with the sampler for its noise."""

    batch_id: str
    terms: Terms
    sampler: Sampler = field(repr=False)
    # Of the terms, at hand for every choice.
    arm: str = field(init=False)
    size: int = field(init=False)
    attribution_ms: int = field(init=False)
    encode: Callable[[float], int] = field(init=False, repr=False)  # the sampler's

    def __post_init__(self) -> None:
        self.encode = self.sampler.encode
        self.arm = self.terms.arm
        self.attribution_ms = self.terms.attribution_ms
        self.size = self.terms.mechanism.promise.batch_size

    def discard(self) -> None:
        """Forget drawn noise."""
        self.sampler.discard()


@dataclass(slots=True, eq=False)
class PendingReport:
    """One user's report, from the choice to the acknowledgement. What it says is never printed."""

    experiment: str
    shown: Shown
    user: bytes = field(repr=False)
    deadline_ms: int | None  # None: it leaves when the reward is known
    # None if an earlier run has encoded it.
    batch: CheckedBatch | None = field(default=None, repr=False)
    ones: int | None = field(default=None, repr=False)
    left: bool = False  # its time has come, or it was given up


class OpenBatches:
    """What the newest assignment offers, as far as this client accepts it."""

    def __init__(
        self, experiment: str, limits: Limits, entropy: Entropy = secrets.token_bytes
    ) -> None:
        self.status: Status | None = None
        self.serve: str | None = None
        self.open: dict[str, CheckedBatch] = {}
        self.refused = 0  # how many terms were refused
        self._experiment = experiment
        self._limits = limits
        self._entropy = entropy
        self._draws = Draws(entropy)
        self._ids: dict[int, str] = {}  # by sequence number
        self._newest = -1
        self._refused: set[str] = set()  # of the newest assignment, to count each once
        self._order: list[CheckedBatch] = []
        self._reach: list[int] = []
        self._arms: list[str] = []

    def take(self, offer: Offer) -> list[str]:
        """Follow an assignment; returns why terms were refused, each once. Raises InvalidInput."""
        if offer.experiment != self._experiment:
            raise InvalidInput(f"assignment: it is for experiment {offer.experiment[:80]!r}")
        accepted: dict[str, CheckedBatch] = {}
        refused: dict[str, str] = {}
        checks = Checks(self._limits)
        for batch_id, raw in offer.open:
            try:
                accepted[batch_id] = self.open.get(batch_id) or self.admit(batch_id, raw, checks)
            except InvalidInput as error:
                refused[batch_id] = str(error)
        reasons = [reason for key, reason in refused.items() if key not in self._refused]
        self.refused += len(reasons)
        self._refused = set(refused)
        self.status = offer.status
        self.serve = offer.serve
        self.open = accepted
        self._order = list(accepted.values())
        self._reach = list(accumulate(batch.size for batch in self._order))
        self._arms = [batch.arm for batch in self._order] or self._arms
        return reasons

    def admit(self, batch_id: str, raw: object, checks: Checks | None = None) -> CheckedBatch:
        """A batch whose terms hold, under a new sequence number. Raises InvalidInput.

        `checks` are those of the assignment that lists it, if it is one of several.
        """
        terms = self._checked(batch_id, raw, checks or Checks(self._limits))
        if self._ids.get(terms.sequence) != batch_id and terms.sequence <= self._newest:
            raise InvalidInput(
                f"batch {batch_id[:80]}: sequence number {terms.sequence} is not a new one"
            )
        self._newest = max(self._newest, terms.sequence)
        return self._batch(batch_id, terms)

    def readmit(self, batch_id: str, raw: object) -> CheckedBatch:
        """A batch of an earlier run; the newest assignment may list older ones than this."""
        return self._batch(batch_id, self._checked(batch_id, raw, Checks(self._limits)))

    def _checked(self, batch_id: str, raw: object, checks: Checks) -> Terms:
        terms = checks.check(batch_id, raw)
        if terms.experiment != self._experiment:
            raise InvalidInput(f"batch {batch_id[:80]}: its terms are for another experiment")
        if self._ids.get(terms.sequence, batch_id) != batch_id:
            raise InvalidInput(
                f"batch {batch_id[:80]}: sequence number {terms.sequence} has other terms already"
            )
        return terms

    def _batch(self, batch_id: str, terms: Terms) -> CheckedBatch:
        self._ids[terms.sequence] = batch_id
        sampler = terms.mechanism.sampler(self._entropy)
        batch = CheckedBatch(batch_id, terms, sampler)
        forgets_on_fork(batch)
        return batch

    def pick(self) -> CheckedBatch | None:
        """One of the open batches at random, by their sizes; None if nobody reports."""
        if len(self._order) < 2:
            return self._order[0] if self._order else None
        # Proportional but for 2**-88: there are at most 1000 sizes of at most 1e9.
        draw = int.from_bytes(self._draws.take()) * self._reach[-1] >> 8 * _ID_BYTES
        return self._order[bisect_right(self._reach, draw)]

    def fallback(self) -> str | None:
        """What to show when no batch is open: the arm to serve, else one that was open before."""
        if self.serve is not None or not self._arms:
            return self.serve
        return secrets.choice(self._arms)

    def report_id(self) -> bytes:
        """A new report's id."""
        return self._draws.take()


# Whatever holds drawn randomness: a child process must not use its parent's.
_DRAWN: WeakSet[Any] = WeakSet()


def forgets_on_fork(holder: Any) -> None:
    """Have `holder.discard()` called in every forked child."""
    _DRAWN.add(holder)


def _discard_all() -> None:
    for holder in list(_DRAWN):
        holder.discard()


os.register_at_fork(after_in_child=_discard_all)
