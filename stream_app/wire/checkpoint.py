"""Records of `windows`: checkpoints, and the list of releases. As secret as reports."""

import base64
import dataclasses
import operator
from collections.abc import Iterable, Mapping

import orjson

from stream_app.core.terms import MAX_INTEGER
from stream_app.core.window import Delta
from stream_app.errors import InvalidInput
from stream_app.wire.envelope import VERSION, integer, json_object, parse_position

# Of the largest total that is read again: every total takes so much room, whatever it is.
_TOTAL_DIGITS = len(str(MAX_INTEGER))


def delta_key(experiment: bytes, batch_id: str, number: int) -> bytes:
    """The key of a checkpoint in `windows`: experiment/batch/number."""
    return b"%b/%b/%d" % (experiment, batch_id.encode(), number)


def encode_delta(delta: Delta) -> bytes:
    """A checkpoint's record, with spaces behind it where its total has few digits.

    Sizes are seen by those who may not know what the reports say (metrics, brokers' counts): this
    one follows from the number of ids and from numbers that become public with the sum.
    """
    body = orjson.dumps(
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
    return body + b" " * (_TOTAL_DIGITS - len(str(delta.total)))


def decode_delta(value: bytes | None) -> Delta:
    """A checkpoint's record. Raises InvalidInput, always in the same words.

    What is wrong, and at which character, would depend on the total: it goes into the log.
    """
    try:
        return _parse_delta(value)
    except InvalidInput:
        raise InvalidInput(f"not a checkpoint of version {VERSION}") from None


def _parse_delta(value: bytes | None) -> Delta:
    raw = json_object(value, "batch", "number", "ids", "total", "first", "reached")
    try:
        ids = base64.b64decode(raw["ids"], validate=True)
        batch_id = str(raw["batch"])
    except (ValueError, TypeError) as error:
        raise InvalidInput(str(error)) from None
    if len(ids) % 16:
        raise InvalidInput("ids must be 16 bytes each")
    return Delta(
        batch_id,
        integer(raw, "number"),
        ids,
        integer(raw, "total"),
        parse_position(raw["first"]),
        integer(raw, "reached"),
    )


def encode_released(
    reached: int, through: Mapping[bytes, int], beyond: Iterable[tuple[bytes, int]]
) -> bytes:
    """The record of what is released: see `shuffler.released`. Any bytes are Latin-1."""
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
    raw = json_object(value, "reached", "through", "beyond")
    try:
        through = {
            key.encode("latin-1"): operator.index(number) for key, number in raw["through"].items()
        }
        beyond = {(key.encode("latin-1"), operator.index(number)) for key, number in raw["beyond"]}
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidInput(f"released: {error}") from None
    return integer(raw, "reached"), through, beyond
