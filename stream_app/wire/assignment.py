"""Records of `assignments`: the agent's whole state, and the batches that it opens."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import orjson

from stream_app.core.experiment import MAX_ARMS, MAX_HORIZON, Experiment
from stream_app.core.state import ArmState, OpenBatch, State, Status
from stream_app.core.terms import Terms, parse
from stream_app.definitions import dump_experiment, parse_experiment
from stream_app.errors import InvalidInput
from stream_app.wire.envelope import VERSION, dump_json, integer, json_object


@dataclass(frozen=True, slots=True)
class Assignment:
    """A record of `assignments`: the agent's whole state, and what clients may report to."""

    experiment: Experiment
    state: State
    folded: int = -1  # offset of the newest sum in it

    def terms(self, batch: OpenBatch) -> Terms:
        """The terms of one of its open batches."""
        return terms_of(self.experiment, batch)

    def encode(self) -> bytes:
        """The record's value."""
        experiment = self.experiment
        state = self.state
        opened = [self.terms(batch) for batch in state.open]
        return orjson.dumps(
            {
                "version": VERSION,
                "experiment": experiment.name,
                "state": str(state.status),
                "guarantee": str(experiment.agent.guarantee),
                "serve": None if state.serve is None else experiment.arms[state.serve],
                "phase": state.phase,
                "epoch": state.epoch,
                "spent": state.spent,
                "sequence": state.sequence,
                "folded": self.folded,
                "arms": [
                    {"name": name, **dataclasses.asdict(arm)}
                    for name, arm in zip(experiment.arms, state.arms, strict=True)
                ],
                "open": [{"batch": t.batch_id, "terms": t.as_json()} for t in opened],
                "definition": orjson.Fragment(dump_experiment(experiment)),
            }
        )


def terms_of(experiment: Experiment, batch: OpenBatch) -> Terms:
    """What a batch of the experiment promises."""
    return Terms(
        experiment.name,
        batch.sequence,
        experiment.arms[batch.arm],
        experiment.privacy.for_batch(batch.size),
        experiment.attribution_ms,
    )


def decode_assignment(value: bytes | None) -> Assignment:
    """A record of `assignments`, for those who refold it. Raises InvalidInput."""
    raw = json_object(
        value, "definition", "state", "serve", "phase", "epoch", "spent", "sequence", "folded",
        "arms", "open",
    )  # fmt: skip
    experiment = parse_experiment(dump_json(raw["definition"]))
    try:
        arms = tuple(_arm(arm) for arm in raw["arms"])
        opened = tuple(_open_batch(experiment, entry) for entry in raw["open"])
        serve = None if raw["serve"] is None else experiment.arms.index(raw["serve"])
        state = State(
            Status(raw["state"]),
            integer(raw, "phase"),
            arms,
            opened,
            integer(raw, "sequence"),
            serve,
            integer(raw, "epoch"),
            integer(raw, "spent"),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"assignment: {type(error).__name__}: {error}") from None
    # The agent never doubles a horizon beyond the largest one.
    reached = state.epoch == 0 or (
        state.epoch < 64 and experiment.horizon << state.epoch <= MAX_HORIZON
    )
    if len(arms) != len(experiment.arms) or not reached:
        raise InvalidInput("assignment: its arms or epoch do not fit its definition")
    return Assignment(experiment, state, integer(raw, "folded", least=-1))


def _arm(raw: dict[str, Any]) -> ArmState:
    index = raw["index"]
    return ArmState(
        bool(raw["viable"]),
        integer(raw, "batches"),
        integer(raw, "users"),
        float(raw["weighted"]),
        float(raw["total"]),
        None if index is None else float(index),
    )


def _open_batch(experiment: Experiment, entry: dict[str, Any]) -> OpenBatch:
    terms = parse(entry["terms"])
    size = terms.mechanism.promise.batch_size
    return OpenBatch(terms.sequence, experiment.arms.index(terms.arm), size)


def is_defined_so(definition: bytes | None, assignment: bytes) -> bool:
    """Whether a record of `experiments` surely says what the assignment's definition says.

    By their bytes, as `encode` writes them: nothing is parsed, and False means nothing.
    """
    head = b'{"definition":'
    tail = b',"stopped":false,"version":%d}' % VERSION
    if definition is None or not definition.startswith(head) or not definition.endswith(tail):
        return False
    return assignment.endswith(b',"definition":%b}' % definition[len(head) : -len(tail)])


@dataclass(frozen=True, slots=True)
class Offer:
    """What clients and the shuffle stage take from an assignment: nothing in it is trusted yet."""

    experiment: str
    status: Status
    serve: str | None
    open: tuple[tuple[str, Any], ...]  # batch id, raw terms


def decode_offer(value: bytes | None) -> Offer:
    """The part of an assignment that clients and shuffle stage need. Raises InvalidInput."""
    raw = json_object(value, "experiment", "state", "serve", "open")
    name = raw["experiment"]
    serve = raw["serve"]
    if not isinstance(name, str) or not (serve is None or isinstance(serve, str)):
        raise InvalidInput("assignment: experiment and serve must be text")
    if raw["state"] not in list(Status):
        raise InvalidInput(f"assignment: state must be one of {', '.join(Status)}")
    entries = raw["open"]
    if not isinstance(entries, list) or len(entries) > MAX_ARMS:
        raise InvalidInput(f"assignment: open must be a list of at most {MAX_ARMS} batches")
    opened = []
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("batch"), str):
            raise InvalidInput("assignment: an open batch must have its id and terms")
        opened.append((entry["batch"], entry.get("terms")))
    return Offer(name, Status(raw["state"]), serve, tuple(opened))
