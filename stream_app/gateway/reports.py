"""What a sender's body says, and which of its reports may go on. Pure: bytes in, outcomes out.

The check is a cheap one, against the newest assignment that this gateway has read; the shuffle
stage alone decides what is counted. A report for a batch that is newer than that goes on: another
gateway may have shown it to the sender already.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import orjson

from stream_app.core.batch_id import parse_batch_id
from stream_app.core.promise import MAX_REPORT_BITS
from stream_app.core.state import Status
from stream_app.errors import InvalidInput
from stream_app.wire.report import encode_report

MAX_REPORTS = 1000
_REPORT_ID = re.compile(r"[0-9a-f]{32}")
_REPORT_KEYS = {"batch", "id", "ones"}


class Outcome(StrEnum):
    """What became of one report."""

    ACCEPTED = "accepted"  # acknowledged by Kafka
    MALFORMED = "malformed"
    OUT_OF_RANGE = "out_of_range"
    UNKNOWN_BATCH = "unknown_batch"  # its terms cannot be used
    LATE = "late"  # its batch is closed


@dataclass(frozen=True, slots=True)
class Posting:
    """What the newest assignment of an experiment says, ready to be served and checked against."""

    experiment: str
    partition: int
    body: bytes = field(repr=False)
    etag: str
    status: Status
    max_ones: Mapping[str, int | None]  # of its open batches; None: terms that nobody can use
    newest: int  # the largest sequence number of a batch that was ever seen open

    @property
    def key(self) -> bytes:
        """The key of its records."""
        return self.experiment.encode()


def read(body: bytes) -> tuple[str, list[Any]]:
    """The experiment and the reports of a request's body, these unchecked. Raises InvalidInput."""
    try:
        raw = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise InvalidInput("the body is not JSON") from None
    if not isinstance(raw, dict) or raw.keys() != {"experiment", "reports"}:
        raise InvalidInput("the body must be an object with experiment and reports")
    experiment = raw["experiment"]
    reports = raw["reports"]
    if not isinstance(experiment, str):
        raise InvalidInput("experiment: must be text")
    if not isinstance(reports, list) or not 1 <= len(reports) <= MAX_REPORTS:
        raise InvalidInput(f"reports: must be a list of 1 to {MAX_REPORTS}")
    return experiment, reports


def sift(posting: Posting, reports: list[Any]) -> tuple[list[Outcome], list[bytes]]:
    """Each report's outcome once Kafka has acknowledged the values, which are those accepted."""
    outcomes: list[Outcome] = []
    values: list[bytes] = []
    for report in reports:
        outcome = _judge(posting, report)
        outcomes.append(outcome)
        if outcome is Outcome.ACCEPTED:
            values.append(
                encode_report(report["batch"], bytes.fromhex(report["id"]), report["ones"])
            )
    return outcomes, values


def _judge(posting: Posting, report: Any) -> Outcome:
    if not isinstance(report, dict) or report.keys() != _REPORT_KEYS:
        return Outcome.MALFORMED
    batch_id = report["batch"]
    report_id = report["id"]
    ones = report["ones"]
    if type(ones) is not int or not isinstance(batch_id, str) or not isinstance(report_id, str):
        return Outcome.MALFORMED
    if not _REPORT_ID.fullmatch(report_id):
        return Outcome.MALFORMED
    most = posting.max_ones.get(batch_id, -1)
    if most == -1:
        stated = parse_batch_id(batch_id)
        if stated is None:
            return Outcome.MALFORMED
        if posting.status is not Status.RUNNING or stated.sequence <= posting.newest:
            return Outcome.LATE
        most = 1 + MAX_REPORT_BITS
    if most is None:
        return Outcome.UNKNOWN_BATCH
    return Outcome.ACCEPTED if 0 <= ones <= most else Outcome.OUT_OF_RANGE
