"""What a client must remember: who has reported, what each user spent, which reports still wait.

Users are kept as a keyed hash. All of a store is as secret as the topic `reports`.
`producers.file_store.FileStore` is a file that all processes of one machine share; a product with
a database of its own implements `Store` on it.

What a shared store owes its clients, whatever it is made of:

1. One process gets a user. Whoever's claim came second is told by `Inbox.lost`, at the latest when
   `sync` returns; nothing of a report leaves before that.
2. Nothing that is durable before a report's deadline tells whether or when its reward came.
3. The reports of a process that ended come to another one, by `Inbox.adopted`.
4. What is acknowledged (`ended`) is forgotten; what its user spent is not.
"""

import hashlib
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple, Protocol

from producers.batches import CheckedBatch, PendingReport, Shown
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
    """A report that another client left behind."""

    batch_id: str
    arm: str
    report_id: bytes
    user: bytes
    deadline_ms: int | None
    noise: int | None  # None: not drawn yet (a journal of version 0.1.0)
    bit: int | None  # None: no reward so far
    final: bool  # its time had come: it leaves as it is
    terms: Any  # as they came

    def __repr__(self) -> str:
        return f"SavedReport(batch_id={self.batch_id!r}, report_id={self.report_id!r})"


@dataclass(slots=True, eq=False)
class Inbox:
    """What a store tells one client. A store may fill it from any thread."""

    experiment: str
    lost: deque[bytes] = field(default_factory=deque)  # report ids: another process has the user
    rewards: deque[tuple[bytes, int]] = field(default_factory=deque, repr=False)  # given elsewhere
    adopted: deque[SavedReport] = field(default_factory=deque)
    notify: Callable[[], None] = lambda: None  # there is something new

    def __bool__(self) -> bool:
        return bool(self.lost or self.rewards or self.adopted)


class Store(Protocol):
    """A client's memory. All methods but `sync` are called from the event loop: none may wait."""

    # How long after its deadline a report may leave: what other processes were told by then has
    # arrived by then.
    settle_ms: int

    def attach(self, experiment: str) -> Inbox:
        """A client begins."""

    def detach(self, inbox: Inbox, reports: Sequence[PendingReport]) -> None:
        """A client ends: others may have these, after the next `sync`."""

    def tag(self, user: str) -> bytes:
        """The user's keyed hash; empty for one who is known to be new and never comes back."""

    def spent(self, user: bytes) -> Spent:
        """What the user with this hash has spent, and in which experiments."""

    def shown(self, user: bytes, experiment: str) -> Shown | None:
        """What another client has shown this user, as long as a reward may come."""

    def chosen(self, report: PendingReport) -> None:
        """A user was bound to a batch: charge its terms, keep the report."""

    def answered(self, report_id: bytes, bit: int) -> None:
        """A report that has a deadline has its reward."""

    def forward(self, shown: Shown, bit: int) -> bool:
        """A reward for another client's report; False if there is no such report."""

    def encoded(self, report: PendingReport) -> None:
        """The report's time has come: it leaves as it is now."""

    def ended(self, reports: Sequence[PendingReport]) -> None:
        """The reports are acknowledged or given up: forget them, not their users."""

    def over(self, experiment: str) -> None:
        """The experiment has ended: nobody is bound to it any more."""

    def sync(self) -> None:
        """Return once all of the above is durable. Called in a thread; raises OSError."""


# Steps from one history to the next that are kept at hand: of the open batches, and some before.
_STEPS = 1_000


class Ledger:
    """What users spend, step by step: those who took the same steps share one `Spent`."""

    def __init__(self) -> None:
        self._of_batch: dict[tuple[Spent, CheckedBatch], Spent] = {}
        self._of_cost: dict[tuple[Spent, str, Decimal, Decimal], Spent] = {}

    def after(self, before: Spent, report: PendingReport) -> Spent:
        """What is spent once this report is charged."""
        assert report.batch is not None
        after = self._of_batch.get((before, report.batch))
        if after is None:
            if len(self._of_batch) >= _STEPS:
                self._of_batch.clear()
            promise = report.batch.terms.mechanism.promise
            after = self._charged(before, report.experiment, promise.epsilon, promise.delta)
            self._of_batch[before, report.batch] = after
        return after

    def _charged(self, before: Spent, name: str, epsilon: Decimal, delta: Decimal) -> Spent:
        step = (before, name, epsilon, delta)
        if step not in self._of_cost:
            names = before.experiments | {name}
            self._of_cost[step] = Spent(before.epsilon + epsilon, before.delta + delta, names)
        return self._of_cost[step]


class MemoryStore:
    """A store that lasts as long as its process: for tests, or where users never come back."""

    settle_ms = 0

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._users: dict[bytes, Spent] = {}  # about 200 bytes a user
        self._ledger = Ledger()

    def attach(self, experiment: str) -> Inbox:
        """Nothing will come."""
        return Inbox(experiment)

    def detach(self, inbox: Inbox, reports: Sequence[PendingReport]) -> None:
        """What waits is lost."""

    def tag(self, user: str) -> bytes:
        """The user's keyed hash."""
        return keyed_tag(self._key, user)

    def spent(self, user: bytes) -> Spent:
        """A user's history."""
        return self._users.get(user, NOTHING)

    def shown(self, user: bytes, experiment: str) -> Shown | None:
        """Nothing is kept of it."""
        return None

    def chosen(self, report: PendingReport) -> None:
        """Charge the user."""
        users = self._users
        users[report.user] = self._ledger.after(users.get(report.user, NOTHING), report)

    def answered(self, report_id: bytes, bit: int) -> None:
        """Nothing to keep."""

    def forward(self, shown: Shown, bit: int) -> bool:
        """There is no other client."""
        return False

    def encoded(self, report: PendingReport) -> None:
        """Nothing to keep."""

    def ended(self, reports: Sequence[PendingReport]) -> None:
        """Nothing to forget."""

    def over(self, experiment: str) -> None:
        """Its users are forgotten with the process."""

    def sync(self) -> None:
        """Nothing is durable."""


def keyed_tag(key: bytes, user: str) -> bytes:
    """A user's keyed hash: with 16 bytes, 10^9 users meet by chance with probability 10^-20."""
    named = user.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(named, digest_size=16, key=key).digest()
