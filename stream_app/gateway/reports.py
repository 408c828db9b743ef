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
from stream_app.gateway.admission import Admission, TokenFault
from stream_app.wire.report import encode_report

MAX_REPORTS = 1000
# The longest attribution window that a client takes by default, and a minute for what it adds.
MAX_LEFT_MS = 7 * 24 * 3600 * 1000 + 60_000
_REPORT_ID = re.compile(r"[0-9a-f]{32}")
_REPORT_KEYS = {"batch", "id", "ones"}
_KEYS_WITH_TOKEN = {*_REPORT_KEYS, "token"}


_OPEN = Admission(None, keeps_tokens=False)


class Outcome(StrEnum):
    """What became of one report."""

    ACCEPTED = "accepted"  # acknowledged by Kafka
    MALFORMED = "malformed"
    OUT_OF_RANGE = "out_of_range"
    UNKNOWN_BATCH = "unknown_batch"  # its terms cannot be used
    LATE = "late"  # its batch is closed
    TOKEN_MISSING = TokenFault.MISSING  # this gateway admits nobody without
    TOKEN_INVALID = TokenFault.INVALID  # of another batch, report, experiment or key


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


def read_handover(body: bytes) -> tuple[str, Any, int]:
    """The experiment, the unchecked report and the time that is left. Raises InvalidInput."""
    try:
        raw = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise InvalidInput("the body is not JSON") from None
    if not isinstance(raw, dict) or raw.keys() != {"experiment", "left_ms", "report"}:
        raise InvalidInput("the body must be an object with experiment, left_ms and report")
    experiment = raw["experiment"]
    left_ms = raw["left_ms"]
    if not isinstance(experiment, str):
        raise InvalidInput("experiment: must be text")
    if type(left_ms) is not int or not 0 <= left_ms <= MAX_LEFT_MS:
        raise InvalidInput(f"left_ms: must be a whole number from 0 to {MAX_LEFT_MS}")
    return experiment, raw["report"], left_ms


def sift(
    posting: Posting, reports: list[Any], admission: Admission = _OPEN
) -> tuple[list[Outcome], list[bytes]]:
    """Each report's outcome once Kafka has acknowledged the values, which are those accepted."""
    outcomes: list[Outcome] = []
    values: list[bytes] = []
    for report in reports:
        outcome = judge(posting, report)
        if outcome is Outcome.ACCEPTED:
            outcome = _admitted(posting, report, admission)
        outcomes.append(outcome)
        if outcome is Outcome.ACCEPTED:
            values.append(_encoded(report, admission))
    return outcomes, values


def sift_handover(
    posting: Posting, report: Any, admission: Admission = _OPEN
) -> tuple[Outcome, bytes]:
    """The outcome of a handover, and the value that will leave if it is accepted.

    Whether its batch is open is asked when it leaves, as for the report of a page that stays.
    """
    outcome = judge(posting, report)
    if outcome in (Outcome.ACCEPTED, Outcome.LATE):
        outcome = _admitted(posting, report, admission)
    if outcome is Outcome.ACCEPTED:
        return outcome, _encoded(report, admission)
    return outcome, b""


def _admitted(posting: Posting, report: dict[str, Any], admission: Admission) -> Outcome:
    fault = admission.fault(posting.experiment, report)
    return Outcome.ACCEPTED if fault is None else Outcome(fault)


def _encoded(report: dict[str, Any], admission: Admission) -> bytes:
    """The record: without its token, unless the shuffle stage wants to see it."""
    token: dict[str, Any] = {"token": report["token"]} if admission.keeps_tokens else {}
    return encode_report(report["batch"], bytes.fromhex(report["id"]), report["ones"], **token)


def judge(posting: Posting, report: Any) -> Outcome:
    """What the newest assignment says of a report, whatever its token is."""
    if not isinstance(report, dict) or report.keys() not in (_REPORT_KEYS, _KEYS_WITH_TOKEN):
        return Outcome.MALFORMED
    batch_id = report["batch"]
    report_id = report["id"]
    ones = report["ones"]
    if type(ones) is not int or not isinstance(batch_id, str) or not isinstance(report_id, str):
        return Outcome.MALFORMED
    if not _REPORT_ID.fullmatch(report_id) or not isinstance(report.get("token", ""), str):
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
