"""Kafka record batches of equally long values, written and read by column.

Theory of operation
===================

aiokafka writes and reads one record at a time. What stands around the reports of a batch (Kafka's
record format, version 2) hardly varies, so numpy sets it beside them, or sees that it is there, in
a fraction of the time. aiokafka sends such a batch like one of its own.

A batch is a head and its records; numbers of variable length are doubled (so that the sign has a
bit) and written seven bits to a byte, the last byte below 128:

    head     first offset, length, epoch, format, checksum | attributes, last offset, times,
             producer's id, epoch and sequence, count                                (61 bytes)
    record   its length | attributes 0 | time after the batch's | offset after the batch's |
             key's length, key | value's length, value | number of headers 0

**Writing.** All records of a batch have the same key, time and length of value, so only the offset
differs. What is before each value is the same row of bytes for each length that an offset can have:
one byte up to 63, two up to 8191, and a batch has no more records than that. The rows are made once
for a key and a length, and set beside the values.

**Reading.** Whoever writes to a topic is not trusted, so nothing is taken for granted, and the
simple way stays the judge: `block` gives None for any batch that is in any way unusual, and it is
then read record by record. Places where values could begin are looked for by their length and first
character. Then everything between these places must be just what makes them the values of exactly
as many records as the head says: each record's length ends where the next one begins, offsets count
up, no headers, no attributes, and the batch ends with the last record. What looks like a value
inside a key or a value breaks one of these. So a batch is read by column to the same records as one
by one, or not at all; and this is what must hold after any change here.

**Twins.** Both ways have a simple twin in aiokafka, and tests compare them: written batches byte
for byte with aiokafka's builder (tests/kafka/test_record_batches.py), read ones with aiokafka's
records, for every byte of a batch changed (tests/kafka/test_aiokafka_patch.py). What they gain is
measured by tests/benchmarks: sending takes 850 000 reports/s, and the shuffle stage about half the
time of a bare loop over aiokafka's records.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.record.util import calc_crc32c
from numpy.lib.stride_tricks import sliding_window_view

# Larger batches are faster, since each waits for the one before (measured: 135 000 reports/s at
# 128 KB, 400 000 at 512 KB; later 735 000 and 850 000 at 512 KB and this). Kafka takes 1 MiB.
BATCH_BYTES = 900_000

# First offset, length from here on, leader's epoch, format, checksum of what follows.
_HEAD = Struct(">qiibI")
# The head's length counts what is behind itself: an offset of 8 bytes and the length's own 4.
_LENGTH_FROM = 12
# Attributes, last offset, first and last time, producer's id, epoch and sequence, count.
_TAIL = Struct(">hiqqqhii")
_FORMAT = 2  # the only one that brokers since Kafka 4 take
# Bits of a batch's attributes: the codec, whether the broker set its time, a transaction's marker.
_COMPRESSED = 0x07
_LOG_TIME = 0x08
_CONTROL = 0x20
# Fewer records are read sooner one by one.
_FEWEST_BY_COLUMN = 128
# No report is shorter; with it, what is read before a value lies within the batch.
_SHORTEST_VALUE = 16
# Before a value stand at least its record's length, attributes, time, offset, key's length and the
# value's own length, a byte each.
_LEAST_BEFORE_VALUE = 6

Rows = npt.NDArray[np.uint8]  # one value a row
_Positions = npt.NDArray[np.int64]


def _varints(numbers: range, size: int) -> Rows:
    """`_varint` of numbers that take `size` bytes."""
    doubled = 2 * np.array(numbers)
    columns = [doubled >> 7 * index & 0x7F | 0x80 for index in range(size)]
    columns[-1] &= 0x7F
    return np.stack(columns, axis=1).astype(np.uint8)


# Offsets in a batch, first those that take one byte, then those of two.
_OFFSETS = (_varints(range(1 << 6), 1), _varints(range(1 << 6, 1 << 13), 2))
_MOST_RECORDS = sum(map(len, _OFFSETS))


class RecordBatch(BatchBuilder):  # type: ignore[misc]
    """A batch that is complete when it is made, with the part of `BatchBuilder` that sends it."""

    def __init__(self, buffer: bytearray, count: int, time_ms: int) -> None:
        """`buffer` has the records, and before them room for what describes the batch."""
        self._buffer = buffer
        self._relative_offset = count
        self._time_ms = time_ms
        self._closed = True
        self._set_producer_state(-1, -1, -1)

    def _set_producer_state(self, producer_id: int, epoch: int, sequence: int) -> None:
        self._producer = (producer_id, epoch, sequence)
        self._described = False

    def _build(self) -> bytearray:
        if not self._described:
            buffer = self._buffer
            count = self._relative_offset
            time_ms = self._time_ms
            tail = (0, count - 1, time_ms, time_ms, *self._producer, count)
            _TAIL.pack_into(buffer, _HEAD.size, *tail)
            checksum = calc_crc32c(memoryview(buffer)[_HEAD.size :])
            _HEAD.pack_into(buffer, 0, 0, len(buffer) - _LENGTH_FROM, -1, _FORMAT, checksum)
            self._described = True
        return self._buffer

    def size(self) -> int:
        """In bytes."""
        return len(self._buffer)


def batches(key: bytes, parts: Iterable[Rows], time_ms: int) -> Iterator[RecordBatch]:
    """All rows in their order, each the value of a record; a part is taken when it is needed."""
    for rows in parts:
        most = rows_in_batch(key, rows.shape[1])
        for first in range(0, len(rows), most):
            values = rows[first : first + most]
            yield RecordBatch(_records(key, values), len(values), time_ms)


def rows_in_batch(key: bytes, length: int) -> int:
    """How many values of a length a batch has room for."""
    # Beside them a record has at most two numbers below 2**28 and three bytes more.
    size = len(_key_and_length(key, length)) + length + 11
    return min(_MOST_RECORDS, max(1, (BATCH_BYTES - _HEAD.size - _TAIL.size) // size))


def _records(key: bytes, values: Rows) -> bytearray:
    """The records of a batch, behind the room for its description."""
    parts = []
    done = 0
    end = _HEAD.size + _TAIL.size
    for heads in _heads_of_records(key, values.shape[1]):
        part = values[done : done + len(heads)]
        width = heads.shape[1] + part.shape[1] + 1  # the last byte: there are 0 headers
        start = end
        end = start + len(part) * width
        parts.append((slice(start, end), width, heads[: len(part)], part))
        done += len(part)
    buffer = bytearray(end)
    for span, width, heads, part in parts:
        rows = np.frombuffer(buffer, np.uint8)[span].reshape(-1, width)
        rows[:, : heads.shape[1]] = heads
        rows[:, heads.shape[1] : -1] = part
    return buffer


@lru_cache(maxsize=8)
def _heads_of_records(key: bytes, length: int) -> list[Rows]:
    """What stands before each value, first where offsets are short, then where they are longer:
    the record's length, attributes and time after the batch's (both 0), offset, key and length.
    """
    heads = []
    key_and_length = _key_and_length(key, length)
    for offsets in _OFFSETS:
        inner = 2 + offsets.shape[1] + len(key_and_length) + length + 1
        left, right = (
            np.broadcast_to(np.frombuffer(text, np.uint8), (len(offsets), len(text)))
            for text in (_varint(inner) + b"\0\0", key_and_length)
        )
        heads.append(np.concatenate((left, offsets, right), axis=1))
    return heads


def _key_and_length(key: bytes, length: int) -> bytes:
    return _varint(len(key)) + key + _varint(length)


class LikeRecord(ABC):
    """Many fetched records as one item, with all that a consumer's record has.

    Instrumentation that wraps aiokafka's consumer (OpenTelemetry's does) reads these attributes of
    whatever was fetched, and would stop the stage if one was missing. Of the records' contents they
    tell nothing.
    """

    __slots__ = ()
    timestamp = 0
    timestamp_type = 0
    key = None
    value = None
    checksum = None
    serialized_key_size = -1
    serialized_value_size = -1
    headers = ()

    @abstractmethod
    def since(self, offset: int, topic: str, partition: int) -> Any:
        """Without the records before an offset, and with the partition that they are of."""


@dataclass(frozen=True, slots=True)
class RecordBlock(LikeRecord):
    """Records that follow each other in the log, by column."""

    first: int  # offset
    keys: list[bytes]
    times: npt.NDArray[np.int64]  # in ms
    rows: Rows
    topic: str = ""
    partition: int = -1

    @property
    def offset(self) -> int:
        """Of the last record."""
        return self.first + len(self.rows) - 1

    def since(self, offset: int, topic: str, partition: int) -> "RecordBlock":
        """Without the records before an offset."""
        cut = max(0, offset - self.first)
        return RecordBlock(
            self.first + cut,
            self.keys[cut:],
            self.times[cut:],
            self.rows[cut:],
            topic,
            partition,
        )


class _Unusual(Exception):
    """A batch does not have the form that is read by column."""


def block(batch: memoryview, length: int) -> RecordBlock | None:
    """The records of a batch whose checksum is right, if its values are JSON objects of one length.

    Keys must be given, and no headers. Values are looked for; then all that is around them must be
    just what makes them the values of so many records. None if a batch is in any way different, and
    if it has few records, since then this does not pay.
    """
    start = _HEAD.size + _TAIL.size
    if len(batch) <= start + length:
        return None
    first, _, _, version, _ = _HEAD.unpack_from(batch)
    attributes, last, began, ended, *_, count = _TAIL.unpack_from(batch, _HEAD.size)
    if (
        version != _FORMAT
        or attributes & (_COMPRESSED | _CONTROL)
        or not _FEWEST_BY_COLUMN <= count == last + 1
    ):
        return None
    data = np.frombuffer(batch, np.uint8)
    values = _possible_values(data, _varint(length) + b"{", start, length)
    if len(values) != count:
        return None
    try:
        keys, after = _keys_and_times(data, values, start, length)
    except _Unusual:
        return None
    times = np.full(count, ended) if attributes & _LOG_TIME else began + after
    return RecordBlock(first, keys, times, sliding_window_view(data, length)[values])


def _possible_values(data: Rows, before: bytes, start: int, length: int) -> _Positions:
    """Where values could begin: `before` is their length and first character."""
    found = start + np.flatnonzero(data[start:-length] == before[0])
    for i, byte in enumerate(before[1:], 1):
        found = found[data[found + i] == byte]
    return found + len(before) - 1


def _keys_and_times(
    data: Rows, values: _Positions, start: int, length: int
) -> tuple[list[bytes], _Positions]:
    """Keys, and times after the batch's, of records with these values and nothing else.

    Raises _Unusual.
    """
    ends = values + length + 1  # behind a value is the number of headers
    starts = np.concatenate(([start], ends[:-1]))
    # So that the numbers which are read below are within the data.
    _require(
        length >= _SHORTEST_VALUE,
        ends[-1] == len(data),
        (values - starts >= _LEAST_BEFORE_VALUE).all(),
    )
    sizes, attributes = _numbers(data, starts)
    times, behind_times = _numbers(data, attributes + 1)
    offsets, behind_offsets = _numbers(data, behind_times)
    key_sizes, keys = _numbers(data, behind_offsets)
    key_ends = keys + key_sizes // 2
    _require(
        not (sizes & 1).any(),
        (attributes + sizes // 2 == ends).all(),
        not data[attributes].any(),
        (offsets == 2 * np.arange(len(values))).all(),
        not (key_sizes & 1).any(),  # there are no negative ones, so no missing keys
        (key_ends + len(_varint(length)) == values).all(),
        not data[ends - 1].any(),
    )
    return _slices(data, keys, key_ends), times >> 1 ^ -(times & 1)


def _slices(data: Rows, starts: _Positions, ends: _Positions) -> list[bytes]:
    """The bytes from each start to its end; most often, all are the same."""
    length = int(ends[0] - starts[0])
    if length and (ends - starts == length).all():
        rows = sliding_window_view(data, length)[starts]
        if (rows == rows[0]).all():
            return [rows[0].tobytes()] * len(rows)
    raw = data.tobytes()
    bounds = zip(starts.tolist(), ends.tolist(), strict=True)
    return [raw[first:last] for first, last in bounds]


def _require(*conditions: bool | np.bool_) -> None:
    if not all(conditions):
        raise _Unusual


def _numbers(data: Rows, starts: _Positions) -> tuple[_Positions, _Positions]:
    """Numbers in variable length as they are there, doubled, and the positions behind them."""
    byte = data[starts]
    numbers = (byte & 0x7F).astype(np.int64)
    behind = starts + 1
    longer = np.flatnonzero(byte > 0x7F)
    for shift in (7, 14, 21, 28):
        if not len(longer):
            break
        byte = data[behind[longer]]
        numbers[longer] |= (byte & 0x7F).astype(np.int64) << shift
        behind[longer] += 1
        longer = longer[byte > 0x7F]
    _require(not len(longer))
    return numbers, behind


def _varint(number: int) -> bytes:
    """A number that is not negative in Kafka's variable length: doubled, seven bits to a byte."""
    number *= 2
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*written, number))
