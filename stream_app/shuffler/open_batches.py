"""Which batches a partition's assignments open and close, and which numbers are taken.

The agent that writes assignments is not trusted: terms that do not hash to their batch id, that do
not keep their promise, that exceed this stage's limits, or that come second under a sequence number
are refused. Nothing here knows reports or windows.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from stream_app.core.batch_id import sequence_of
from stream_app.core.terms import Checks, Limits, Terms
from stream_app.errors import InvalidInput
from stream_app.runtime.refusals import Refusals
from stream_app.shuffler.released import ReleasedBatches
from stream_app.wire.assignment import decode_offer


@dataclass(slots=True)
class _Known:
    """What is remembered of an experiment's batches."""

    highest: int = 0  # sequence number
    listed: dict[int, str] = field(default_factory=dict)  # newest assignment: sequence -> batch id
    readable: bool = False  # whether an assignment of it could be read


@dataclass(frozen=True, slots=True)
class Change:
    """What a new assignment means."""

    opened: list[tuple[str, Terms]]  # batch ids, in the order of their numbers
    closed: list[str]


class OpenBatches:
    """The newest assignment of each experiment."""

    def __init__(self, limits: Limits, refusals: Refusals) -> None:
        self._limits = limits
        self._refusals = refusals
        self._known: dict[bytes, _Known] = {}

    def note(self, released: Iterable[tuple[bytes, int]]) -> None:
        """These sequence numbers have a sum."""
        for key, sequence in released:
            known = self._known.setdefault(key, _Known())
            known.highest = max(known.highest, sequence)

    def has_had(self, key: bytes | None, sequence: int) -> bool:
        """Whether a batch of this number was open once, as far as is known."""
        known = self._known.get(key) if key is not None else None
        return known is not None and sequence <= known.highest

    def readable(self, key: bytes) -> bool:
        """Whether it is known which batches of an experiment are open."""
        return key in self._known and self._known[key].readable

    def take(
        self,
        key: bytes | None,
        value: bytes | None,
        released: ReleasedBatches | None = None,
    ) -> Change:
        """Take an assignment. At recovery `released` tells which sequence numbers have a sum.

        A number is opened once: when it is higher than all before, or at recovery if the newest
        assignment lists it and no sum has it.
        """
        change = Change([], [])
        listed = self._listed(key, value)
        if listed is None or key is None:
            return change
        known = self._known.setdefault(key, _Known())
        known.readable = True
        fresh: dict[int, str] = {}
        for batch_id, terms in sorted(listed.items(), key=lambda entry: sequence_of(entry[0])):
            sequence = sequence_of(batch_id)
            again = terms is None
            new = released is not None or sequence > known.highest
            if sequence in fresh or not (again or new):
                self._refusals.add(
                    f"batch {batch_id}", "second terms under a known sequence number"
                )
                continue
            fresh[sequence] = batch_id
            known.highest = max(known.highest, sequence)
            if terms is not None and (released is None or (key, sequence) not in released):
                change.opened.append((batch_id, terms))
        left = set(fresh.values())
        change.closed.extend(batch_id for batch_id in known.listed.values() if batch_id not in left)
        known.listed = fresh
        return change

    def _listed(self, key: bytes | None, value: bytes | None) -> dict[str, Terms | None] | None:
        """The batches of an assignment with their checked terms; None if it cannot be used at all.

        A batch that the last assignment listed too has no terms here: its id certifies them.
        """
        try:
            offer = decode_offer(value)
            if key is None or offer.experiment.encode() != key:
                raise InvalidInput("its key is not its experiment")
        except InvalidInput as error:
            self._refusals.add(f"assignment of {(key or b'')[:80]!r}", str(error))
            return None
        before = set(self._known[key].listed.values()) if key in self._known else set()
        listed: dict[str, Terms | None] = {}
        checks = Checks(self._limits)
        for batch_id, raw in offer.open:
            if batch_id in before:
                listed[batch_id] = None
                continue
            try:
                terms = checks.check(batch_id, raw)
                if terms.experiment.encode() != key:
                    raise InvalidInput(f"batch {batch_id[:80]}: its terms are another experiment's")
            except InvalidInput as error:
                self._refusals.add(f"batch {batch_id[:80]}", str(error))
                continue
            listed[batch_id] = terms
        return listed
