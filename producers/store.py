"""What a client must remember: who has reported, what each user spent, which reports still wait.

Users are kept as a keyed hash, the key in the same store. A reward is not kept: a waiting report
holds nothing of it until it is encoded, then only the noisy count. All of a store is as secret as
the topic `reports`. `producers.file_store.FileStore` is a file for one process; a product with a
database of its own implements `Store` on it.
"""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple, Protocol

from producers.batches import PendingReport
from stream_app.core.promise import Promise
from stream_app.settings import ClientSettings


@dataclass(frozen=True, slots=True, eq=False)
class Spent:
    """A user's history; users with the same one share it."""

    epsilon: Decimal = Decimal(0)
    delta: Decimal = Decimal(0)
    experiments: frozenset[str] = frozenset()


# Of a user who never came: shared, so that all new users have the same history.
NOTHING = Spent()


@dataclass(frozen=True, slots=True)
class Budget:
    """What one user may spend over all experiments of a store, by adding up (basic composition)."""

    max_user_epsilon: Decimal = ClientSettings().max_user_epsilon
    max_user_delta: Decimal = ClientSettings().max_user_delta

    def allows(self, spent: Spent, promise: Promise) -> bool:
        """Whether a user who has spent this may take part in a batch with this promise."""
        return (
            spent.epsilon + promise.epsilon <= self.max_user_epsilon
            and spent.delta + promise.delta <= self.max_user_delta
        )


class SavedReport(NamedTuple):
    """A report that an earlier run of the client left behind."""

    batch_id: str
    arm: str
    report_id: bytes
    user: bytes
    deadline_ms: int | None
    ones: int | None
    terms: Any  # as they came; None if the report is encoded

    def __repr__(self) -> str:
        return f"SavedReport(batch_id={self.batch_id!r}, report_id={self.report_id!r})"


class Store(Protocol):
    """A client's memory. All methods but `sync` are called from the event loop: none may wait."""

    def tag(self, user: str) -> bytes:
        """The user's keyed hash; empty for one who is known to be new and never comes back."""

    def spent(self, user: bytes) -> Spent:
        """What the user with this hash has spent, and in which experiments."""

    def chosen(self, report: PendingReport) -> None:
        """A user was bound to a batch: charge its terms, keep the report."""

    def encoded(self, report: PendingReport) -> None:
        """The report has its count of ones, drawn once and for all."""

    def ended(self, reports: Sequence[PendingReport]) -> None:
        """The reports are acknowledged or given up: forget them, not their users."""

    def sync(self) -> None:
        """Return once all of the above is durable. Called in a thread; raises OSError."""

    def unsent(self, experiment: str) -> list[SavedReport]:
        """The reports of earlier runs that have not ended."""


class Ledger:
    """Users and what they spent, in memory: about 200 bytes a user."""

    def __init__(self) -> None:
        self.users: dict[bytes, Spent] = {}
        self._next: dict[tuple[Spent, str, Decimal, Decimal], Spent] = {}

    def spent(self, user: bytes) -> Spent:
        """A user's history."""
        return self.users.get(user, NOTHING)

    def charge(self, user: bytes, experiment: str, epsilon: Decimal, delta: Decimal) -> None:
        """Add one report's cost."""
        before = self.users.get(user, NOTHING)
        step = (before, experiment, epsilon, delta)
        after = self._next.get(step)
        if after is None:
            after = Spent(
                before.epsilon + epsilon, before.delta + delta, before.experiments | {experiment}
            )
            self._next[step] = after
        self.users[user] = after

    def restore(self, user: bytes, epsilon: Decimal, delta: Decimal, names: Sequence[str]) -> None:
        """Set a user's history."""
        key = "\n".join(sorted(names))
        step = (NOTHING, key, epsilon, delta)
        history = self._next.setdefault(step, Spent(epsilon, delta, frozenset(names)))
        self.users[user] = history


class MemoryStore:
    """A store that lasts as long as its process: for tests, or where users never come back."""

    def __init__(self) -> None:
        self._salt = secrets.token_bytes(32)
        self._ledger = Ledger()

    def tag(self, user: str) -> bytes:
        """The user's keyed hash."""
        return _tag(self._salt, user)

    def spent(self, user: bytes) -> Spent:
        """A user's history."""
        return self._ledger.spent(user)

    def chosen(self, report: PendingReport) -> None:
        """Charge the user."""
        assert report.batch is not None
        promise = report.batch.terms.mechanism.promise
        self._ledger.charge(report.user, report.experiment, promise.epsilon, promise.delta)

    def encoded(self, report: PendingReport) -> None:
        """Nothing to keep."""

    def ended(self, reports: Sequence[PendingReport]) -> None:
        """Nothing to forget."""

    def sync(self) -> None:
        """Nothing is durable."""

    def unsent(self, experiment: str) -> list[SavedReport]:
        """There was no earlier run."""
        return []


def _tag(salt: bytes, user: str) -> bytes:
    return hashlib.blake2b(user.encode(), digest_size=16, key=salt).digest()
