"""Wire records of the five topics, and the only validation of what comes in.

Everything is JSON, keyed by the experiment's name; README, "Wire format", describes it for clients
in other languages. Parsers raise InvalidInput and nothing else, whatever the bytes. This module
knows formats, not Kafka: no consumer, producer or clock.
"""

import base64
import dataclasses
import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from stream_app.config import dump_experiment, parse_experiment
from stream_app.core.agents import ArmState, OpenBatch, State, Status
from stream_app.core.experiment import MAX_HORIZON, Experiment
from stream_app.core.terms import MAX_INTEGER, Terms, parse
from stream_app.core.window import Delta, Place, Release
from stream_app.errors import InvalidInput

VERSION = 1
# Every report has this length, whatever it says: 15 digits of sequence, 10 digits of ones.
REPORT_BYTES = 136
# Nothing longer is even parsed.
MAX_REPORT_BYTES = 512


def encode_report(batch_id: str, report_id: bytes, ones: int) -> bytes:
    """One report, padded with spaces so that all have the same length."""
    body = f'{{"batch":"{batch_id}","id":"{report_id.hex()}","ones":{ones}}}'
    return body.encode().ljust(REPORT_BYTES)


def decode_report(value: bytes) -> tuple[str, bytes, int]:
    """Batch id, report id, count of ones; ValueError, KeyError or TypeError if malformed.

    The hot path: the shuffle stage counts and drops, so no exception is translated here.
    """
    raw = orjson.loads(value)
    batch_id, report_id, ones = raw["batch"], bytes.fromhex(raw["id"]), raw["ones"]
    if len(report_id) != 16 or type(ones) is not int or type(batch_id) is not str or len(raw) != 3:
        raise ValueError
    return batch_id, report_id, ones


@dataclass(frozen=True, slots=True)
class Definition:
    """A record of `experiments`: what the operator asks for."""

    experiment: Experiment
    stopped: bool = False

    def encode(self) -> bytes:
        """The record's value."""
        return b'{"definition":%b,"stopped":%b,"version":%d}' % (
            dump_experiment(self.experiment),
            b"true" if self.stopped else b"false",
            VERSION,
        )


def decode_definition(value: bytes | None) -> Definition:
    """A record of `experiments`. Raises InvalidInput."""
    raw = _object(value, "definition", "stopped")
    if type(raw["stopped"]) is not bool:
        raise InvalidInput("stopped: must be true or false")
    return Definition(parse_experiment(_dump(raw["definition"])), raw["stopped"])


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
        experiment, state = self.experiment, self.state
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
    raw = _object(
        value, "definition", "state", "serve", "phase", "epoch", "spent", "sequence", "folded",
        "arms", "open",
    )  # fmt: skip
    experiment = parse_experiment(_dump(raw["definition"]))
    try:
        arms = tuple(_arm(arm) for arm in raw["arms"])
        opened = tuple(_open_batch(experiment, entry) for entry in raw["open"])
        serve = None if raw["serve"] is None else experiment.arms.index(raw["serve"])
        state = State(
            Status(raw["state"]),
            _integer(raw, "phase"),
            arms,
            opened,
            _integer(raw, "sequence"),
            serve,
            _integer(raw, "epoch"),
            _integer(raw, "spent"),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"assignment: {type(error).__name__}: {error}") from None
    # The agent never doubles a horizon beyond the largest one.
    reached = state.epoch == 0 or (
        state.epoch < 64 and experiment.horizon << state.epoch <= MAX_HORIZON
    )
    if len(arms) != len(experiment.arms) or not reached:
        raise InvalidInput("assignment: its arms or epoch do not fit its definition")
    return Assignment(experiment, state, _integer(raw, "folded", least=-1))


def _arm(raw: dict[str, Any]) -> ArmState:
    index = raw["index"]
    return ArmState(
        bool(raw["viable"]),
        _integer(raw, "batches"),
        _integer(raw, "users"),
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
    head, tail = b'{"definition":', b',"stopped":false,"version":%d}' % VERSION
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
    raw = _object(value, "experiment", "state", "serve", "open")
    name, serve = raw["experiment"], raw["serve"]
    if not isinstance(name, str) or not (serve is None or isinstance(serve, str)):
        raise InvalidInput("assignment: experiment and serve must be text")
    if raw["state"] not in list(Status):
        raise InvalidInput(f"assignment: state must be one of {', '.join(Status)}")
    entries = raw["open"]
    if not isinstance(entries, list) or len(entries) > 1000:
        raise InvalidInput("assignment: open must be a list of at most 1000 batches")
    opened = []
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("batch"), str):
            raise InvalidInput("assignment: an open batch must have its id and terms")
        opened.append((entry["batch"], entry.get("terms")))
    return Offer(name, Status(raw["state"]), serve, tuple(opened))


@dataclass(frozen=True, slots=True)
class Sum:
    """A record of `sums`: one batch's only value, and how an auditor finds its reports."""

    batch_id: str
    terms: Terms
    total: int
    estimate: float
    digest: str
    first: Place
    last: Place


def encode_sum(release: Release) -> bytes:
    """The record of a release: the same bytes for the same release."""
    return orjson.dumps(
        {
            "version": VERSION,
            "batch": release.batch_id,
            "terms": release.terms.as_json(),
            "total": release.total,
            "estimate": release.terms.mechanism.debias(release.total),
            "digest": release.digest,
            "first": dataclasses.asdict(release.first),
            "last": dataclasses.asdict(release.last),
        }
    )


def decode_sum(value: bytes | None) -> Sum:
    """A record of `sums`; the estimate is recomputed, not believed. Raises InvalidInput."""
    raw = _object(value, "batch", "terms", "total", "digest", "first", "last")
    terms = parse(raw["terms"])
    if raw["batch"] != terms.batch_id:
        raise InvalidInput(f"sum: batch {str(raw['batch'])[:80]} is not what its terms hash to")
    total = _integer(raw, "total")
    promise = terms.mechanism.promise
    if total > promise.batch_size * terms.mechanism.bits:
        raise InvalidInput(f"sum: total = {total} is more than its reports can hold")
    if not isinstance(raw["digest"], str):
        raise InvalidInput("sum: digest must be text")
    return Sum(
        terms.batch_id,
        terms,
        total,
        terms.mechanism.debias(total),
        raw["digest"],
        _place(raw["first"]),
        _place(raw["last"]),
    )


def delta_key(experiment: bytes, batch_id: str, number: int) -> bytes:
    """The key of a checkpoint in `windows`: experiment/batch/number."""
    return b"%b/%b/%d" % (experiment, batch_id.encode(), number)


def encode_delta(delta: Delta) -> bytes:
    """A checkpoint's record."""
    return orjson.dumps(
        {
            "version": VERSION,
            "batch": delta.batch_id,
            "number": delta.number,
            "ids": base64.b64encode(delta.ids).decode(),
            "total": delta.total,
            "first": dataclasses.asdict(delta.first),
            "reached": delta.reached,
        }
    )


def decode_delta(value: bytes | None) -> Delta:
    """A checkpoint's record. Raises InvalidInput."""
    raw = _object(value, "batch", "number", "ids", "total", "first", "reached")
    try:
        ids = base64.b64decode(raw["ids"], validate=True)
        batch_id = str(raw["batch"])
    except (ValueError, TypeError) as error:
        raise InvalidInput(f"window: {error}") from None
    if len(ids) % 16:
        raise InvalidInput("window: ids must be 16 bytes each")
    return Delta(
        batch_id,
        _integer(raw, "number"),
        ids,
        _integer(raw, "total"),
        _place(raw["first"]),
        _integer(raw, "reached"),
    )


def encode_released(
    reached: int, through: Mapping[bytes, int], beyond: Iterable[tuple[bytes, int]]
) -> bytes:
    """The record of what is released: see `stages.recovery.Released`. Any bytes are Latin-1."""
    return orjson.dumps(
        {
            "version": VERSION,
            "reached": reached,
            "through": {key.decode("latin-1"): number for key, number in through.items()},
            "beyond": [[key.decode("latin-1"), number] for key, number in sorted(beyond)],
        }
    )


def decode_released(value: bytes) -> tuple[int, dict[bytes, int], set[tuple[bytes, int]]]:
    """What `encode_released` was given. Raises InvalidInput."""
    raw = _object(value, "reached", "through", "beyond")
    try:
        through = {
            key.encode("latin-1"): operator.index(number) for key, number in raw["through"].items()
        }
        beyond = {(key.encode("latin-1"), operator.index(number)) for key, number in raw["beyond"]}
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidInput(f"released: {error}") from None
    return _integer(raw, "reached"), through, beyond


def _dump(raw: object) -> bytes:
    try:
        return orjson.dumps(raw)
    except TypeError as error:  # nested deeper than orjson writes, though not than it reads
        raise InvalidInput(str(error)) from None


def peek_sequence(value: bytes | None) -> int:
    """The sequence number of a sum, of this or a later version. Raises InvalidInput.

    Read for every sum at every start: what `encode_sum` wrote is not parsed as a whole.
    """
    value = value or b""
    if usual := _SUM_HEAD.match(value):
        return int(usual[1])
    try:
        return int(orjson.loads(value)["batch"].partition(".")[0])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"not a sum: {error}") from None


_SUM_HEAD = re.compile(rb'\{"version":%d,"batch":"([0-9]{1,15})\.' % VERSION)


def _object(value: bytes | None, *keys: str) -> dict[str, Any]:
    try:
        raw = orjson.loads(value or b"")
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"not JSON: {error}") from None
    if not isinstance(raw, dict) or raw.get("version") != VERSION:
        raise InvalidInput(f"must be a JSON object of version {VERSION}")
    for key in keys:
        if key not in raw:
            raise InvalidInput(f"{key}: missing")
    return raw


def _integer(raw: dict[str, Any], key: str, least: int = 0) -> int:
    value = raw[key]
    if type(value) is not int or not least <= value <= MAX_INTEGER:
        raise InvalidInput(f"{key}: must be a whole number from {least} to {MAX_INTEGER}")
    return value


def _place(raw: object) -> Place:
    if not isinstance(raw, dict) or set(raw) != {"offset", "time_ms"}:
        raise InvalidInput("a place must have offset and time_ms")
    return Place(_integer(raw, "offset"), _integer(raw, "time_ms", least=-1))
