"""Records of `sums`: the only thing that is ever learned of a batch."""

import dataclasses
import re
from dataclasses import dataclass

import orjson

from stream_app.core.batch_id import SEQUENCE_PATTERN, sequence_of
from stream_app.core.terms import Terms, parse
from stream_app.core.window import LogPosition, Release
from stream_app.errors import InvalidInput
from stream_app.wire.envelope import VERSION, integer, json_object, parse_position

# How `encode_sum` begins: enough to read the sequence number of its batch.
_SUM_HEAD = re.compile(rb'\{"version":%d,"batch":"(%b)\.' % (VERSION, SEQUENCE_PATTERN.encode()))


@dataclass(frozen=True, slots=True)
class Sum:
    """A record of `sums`: one batch's only value, and how an auditor finds its reports."""

    batch_id: str
    terms: Terms
    total: int
    estimate: float
    digest: str
    first: LogPosition
    last: LogPosition


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
    raw = json_object(value, "batch", "terms", "total", "digest", "first", "last")
    terms = parse(raw["terms"])
    if raw["batch"] != terms.batch_id:
        raise InvalidInput(f"sum: batch {str(raw['batch'])[:80]} is not what its terms hash to")
    total = integer(raw, "total")
    promise = terms.mechanism.promise
    if total > promise.batch_size * terms.mechanism.max_ones:
        raise InvalidInput(f"sum: total = {total} is more than its reports can hold")
    if not isinstance(raw["digest"], str):
        raise InvalidInput("sum: digest must be text")
    return Sum(
        terms.batch_id,
        terms,
        total,
        terms.mechanism.debias(total),
        raw["digest"],
        parse_position(raw["first"]),
        parse_position(raw["last"]),
    )


def peek_sequence(value: bytes | None) -> int:
    """The sequence number of a sum, of this or a later version. Raises InvalidInput.

    Read for every sum at every start: what `encode_sum` wrote is not parsed as a whole.
    """
    value = value or b""
    if usual := _SUM_HEAD.match(value):
        return int(usual[1])
    try:
        return sequence_of(orjson.loads(value)["batch"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"not a sum: {error}") from None
