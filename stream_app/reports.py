"""Many reports at once: the hot path of the shuffle stage and of those who send.

`encode_reports` and `decode_reports` say what `messages.encode_report` and `decode_report` say.
Reports have one length, and their parts stand at places that depend only on the number of digits
before the batch id's dot; so numpy puts them together, and takes them apart, by column. Whatever
looks different is given to `decode_report`, which alone decides what is malformed.
"""

import binascii
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stream_app.messages import MAX_REPORT_BYTES, REPORT_BYTES, decode_report

_HEAD = b'{"batch":"'
_BEFORE_ID = b'","id":"'
_BEFORE_ONES = b'","ones":'
_HASH = 44  # characters of a batch id, from its dot on
_MOST_DIGITS = 15  # of its sequence number, before the dot
_MOST_ONES = 10  # digits
_ZERO, _DOT, _BRACE, _SPACE = b"0.} "
_BLANK = b" " * REPORT_BYTES

Rows = npt.NDArray[np.uint8]  # one report a row
_Right = npt.NDArray[np.bool_]


class Reports(NamedTuple):
    """A chunk by columns. A malformed report has no batch; a batch id may still be nonsense."""

    batches: list[bytes | None]
    ids: list[bytes]
    ones: list[int]


def encode_reports(batch_id: str, ids: bytes, ones: Sequence[int]) -> Rows:
    """Reports to one batch; `ids` has 16 bytes for each."""
    head = _HEAD + batch_id.encode() + _BEFORE_ID
    first, last = len(head), len(head) + 32
    ends = {n: (_BEFORE_ONES + b"%d}" % n).ljust(REPORT_BYTES - last) for n in set(ones)}
    rows = np.empty((len(ones), REPORT_BYTES), np.uint8)
    rows[:, :first] = np.frombuffer(head, np.uint8)
    rows[:, first:last] = np.frombuffer(binascii.hexlify(ids), np.uint8).reshape(-1, 32)
    tails = b"".join([ends[n] for n in ones])
    rows[:, last:] = np.frombuffer(tails, np.uint8).reshape(-1, REPORT_BYTES - last)
    return rows


def decode_reports(values: Sequence[bytes | None]) -> Reports:
    """What each value says; those longer than any report may be count as malformed."""
    usual = [v if v is not None and len(v) == REPORT_BYTES else _BLANK for v in values]
    data = np.frombuffer(b"".join(usual), np.uint8).reshape(-1, REPORT_BYTES)
    dots = data[:, len(_HEAD) : len(_HEAD) + _MOST_DIGITS + 1] == _DOT
    ends = dots.argmax(axis=1) + (len(_HEAD) + _HASH)
    layouts = np.flatnonzero(np.bincount(ends)).tolist()
    if len(layouts) == 1:
        reports, right = _columns(data, layouts[0])
    else:
        reports, right = Reports([None] * len(data), [b""] * len(data), [0] * len(data)), dots[:, 0]
        for end in layouts:
            rows = np.flatnonzero(ends == end)
            part, right[rows] = _columns(data[rows], end)
            for row, batch, report_id, ones in zip(rows.tolist(), *part, strict=True):
                reports.batches[row], reports.ids[row], reports.ones[row] = batch, report_id, ones
    for row in np.flatnonzero(~right).tolist():
        reports.batches[row], reports.ids[row], reports.ones[row] = _decode(values[row])
    return reports


def _columns(data: Rows, end: int) -> tuple[Reports, _Right]:
    """Reports whose batch id ends at one place, and which of the rows look like that."""
    first = end + len(_BEFORE_ID)
    last = first + 32
    number = last + len(_BEFORE_ONES)
    ones, right = _numbers(data[:, number:])
    right &= data[:, end - _HASH] == _DOT
    right &= _text(data[:, : len(_HEAD)]) == _HEAD
    right &= _text(data[:, end:first]) == _BEFORE_ID
    right &= _text(data[:, last:number]) == _BEFORE_ONES
    digits = data[:, first:last]
    try:
        ids = binascii.unhexlify(digits.tobytes())
    except binascii.Error:
        valid = np.isin(digits, np.frombuffer(b"0123456789abcdef", np.uint8)).all(axis=1)
        right &= valid
        ids = binascii.unhexlify(np.where(valid.reshape(-1, 1), digits, _ZERO).tobytes())
    batches = data[:, len(_HEAD) : end].view(f"V{end - len(_HEAD)}")[:, 0]
    return Reports(batches.tolist(), np.frombuffer(ids, "V16").tolist(), ones), right


def _text(columns: Rows) -> npt.NDArray[np.bytes_]:
    return columns.view(f"S{columns.shape[1]}")[:, 0]


def _numbers(text: Rows) -> tuple[list[int], _Right]:
    """The number at the start of each row, and where just a brace and blanks follow it."""
    lengths = (text[:, : _MOST_ONES + 1] == _BRACE).argmax(axis=1)
    blanks = (text == _SPACE).sum(axis=1)
    right = (lengths > 0) & (blanks == text.shape[1] - 1 - lengths)
    right &= (lengths == 1) | (text[:, 0] != _ZERO)
    numbers = np.zeros(len(text), np.int64)
    for place in range(int(lengths.max(initial=0))):
        digit, inside = text[:, place] - _ZERO, place < lengths
        right &= ~inside | (digit < 10)
        numbers = np.where(inside, 10 * numbers + digit, numbers)
    return numbers.tolist(), right


def _decode(value: bytes | None) -> tuple[bytes | None, bytes, int]:
    """One report that does not look like the others."""
    try:
        if value is not None and len(value) <= MAX_REPORT_BYTES:
            batch_id, report_id, ones = decode_report(value)
            return batch_id.encode(), report_id, ones
    except (ValueError, KeyError, TypeError):
        pass
    return None, b"", 0
