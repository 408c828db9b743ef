"""Records of `held`: reports of pages that were left, until they are due. As secret as reports.

Two kinds stand there. A handover is a report and the time, by a gateway's clock, at which it shall
leave for `reports`. A note of progress says which handovers have left, so that a new owner of the
partition does not send them again.
"""

from dataclasses import dataclass

import orjson

from stream_app.errors import InvalidInput

_BEGIN = b'{"due_ms":'
_MIDDLE = b',"report":'
_END = b"}"


@dataclass(frozen=True, slots=True)
class Handover:
    """A report as it will stand in `reports`, and when it leaves."""

    due_ms: int
    report_id: str
    report: bytes


@dataclass(frozen=True, slots=True)
class Progress:
    """All handovers at offsets below `before` that were due by `until_ms` have left."""

    before: int
    until_ms: int


def encode_handover(due_ms: int, report: bytes) -> bytes:
    """A handover; the report's bytes stay as they are, so all have one length."""
    return b"".join((_BEGIN, b"%d" % due_ms, _MIDDLE, report, _END))


def encode_progress(progress: Progress) -> bytes:
    """A note of progress."""
    return orjson.dumps({"before": progress.before, "until_ms": progress.until_ms})


def decode_held(value: bytes) -> Handover | Progress:
    """What a record says. Raises InvalidInput."""
    try:
        raw = orjson.loads(value)
        if "before" in raw:
            return Progress(int(raw["before"]), int(raw["until_ms"]))
        report = value[value.index(_MIDDLE) + len(_MIDDLE) : -len(_END)]
        return Handover(int(raw["due_ms"]), str(raw["report"]["id"]), report)
    except (ValueError, KeyError, TypeError):
        raise InvalidInput("held: neither a handover nor a note of progress") from None
