"""Kafka record batches of equally long values, written and read by column.

aiokafka writes and reads one record at a time. What stands around the reports of a batch (Kafka's
record format, version 2) hardly varies, so numpy sets it beside them, or sees that it is there, in
a fraction of the time. aiokafka sends such a batch like one of its own.
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
_LENGTH_FROM = 12
# Attributes, last offset, first and last time, producer's id, epoch and sequence, count.
_TAIL = Struct(">hiqqqhii")
_FORMAT = 2
_COMPRESSED = 0x07
_LOG_TIME = 0x08
_CONTROL = 0x20  # attributes
_FEW = 128  # fewer records are read sooner one by one

Rows = npt.NDArray[np.uint8]  # one value a row
_Places = npt.NDArray[np.int64]


def _varints(numbers: range, size: int) -> Rows:
    """`_varint` of numbers that take `size` bytes."""
    doubled = 2 * np.array(numbers)
    places = [doubled >> 7 * place & 0x7F | 0x80 for place in range(size)]
    places[-1] &= 0x7F
    return np.stack(places, axis=1).astype(np.uint8)


# Offsets in a batch, first those that take one byte, then those of two.
_OFFSETS = (_varints(range(1 << 6), 1), _varints(range(1 << 6, 1 << 13), 2))
_MOST = sum(map(len, _OFFSETS))


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
            some = rows[first : first + most]
            yield RecordBatch(_records(key, some), len(some), time_ms)


def rows_in_batch(key: bytes, length: int) -> int:
    """How many values of a length a batch has room for."""
    # Beside them a record has at most two numbers below 2**28 and three bytes more.
    size = len(_between(key, length)) + length + 11
    return min(_MOST, max(1, (BATCH_BYTES - _HEAD.size - _TAIL.size) // size))


def _records(key: bytes, values: Rows) -> bytearray:
    """The records of a batch, behind the room for its description."""
    parts = []
    done = 0
    end = _HEAD.size + _TAIL.size
    for before in _heads(key, values.shape[1]):
        some = values[done : done + len(before)]
        width = before.shape[1] + some.shape[1] + 1  # the last byte: there are 0 headers
        start = end
        end = end + len(some) * width
        parts.append((slice(start, end), width, before[: len(some)], some))
        done += len(some)
    buffer = bytearray(end)
    for place, width, before, some in parts:
        rows = np.frombuffer(buffer, np.uint8)[place].reshape(-1, width)
        rows[:, : before.shape[1]] = before
        rows[:, before.shape[1] : -1] = some
    return buffer


@lru_cache(maxsize=8)
def _heads(key: bytes, length: int) -> list[Rows]:
    """What stands before each value, first where offsets are short, then where they are longer:
    the record's length, attributes and time after the batch's (both 0), offset, key and length.
    """
    heads = []
    between = _between(key, length)
    for offsets in _OFFSETS:
        inner = 2 + offsets.shape[1] + len(between) + length + 1
        left, right = (
            np.broadcast_to(np.frombuffer(text, np.uint8), (len(offsets), len(text)))
            for text in (_varint(inner) + b"\0\0", between)
        )
        heads.append(np.concatenate((left, offsets, right), axis=1))
    return heads


def _between(key: bytes, length: int) -> bytes:
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


class _Different(Exception):
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
    if version != _FORMAT or attributes & (_COMPRESSED | _CONTROL) or not _FEW <= count == last + 1:
        return None
    data = np.frombuffer(batch, np.uint8)
    values = _found(data, _varint(length) + b"{", start, length)
    if len(values) != count:
        return None
    try:
        keys, after = _beside(data, values, start, length)
    except _Different:
        return None
    times = np.full(count, ended) if attributes & _LOG_TIME else began + after
    return RecordBlock(first, keys, times, sliding_window_view(data, length)[values])


def _found(data: Rows, before: bytes, start: int, length: int) -> _Places:
    """Where values could begin: `before` is their length and first character."""
    places = start + np.flatnonzero(data[start:-length] == before[0])
    for i, byte in enumerate(before[1:], 1):
        places = places[data[places + i] == byte]
    return places + len(before) - 1


def _beside(data: Rows, values: _Places, start: int, length: int) -> tuple[list[bytes], _Places]:
    """Keys, and times after the batch's, of records with these values and nothing else."""
    ends = values + length + 1  # behind a value is the number of headers
    starts = np.concatenate(([start], ends[:-1]))
    # The least that is before a value; so the numbers read below are within the data.
    _must(length >= 16, ends[-1] == len(data), (values - starts >= 6).all())
    sizes, attributes = _numbers(data, starts)
    times, places = _numbers(data, attributes + 1)
    offsets, places = _numbers(data, places)
    key_sizes, keys = _numbers(data, places)
    key_ends = keys + key_sizes // 2
    _must(
        not (sizes & 1).any(),
        (attributes + sizes // 2 == ends).all(),
        not data[attributes].any(),
        (offsets == 2 * np.arange(len(values))).all(),
        not (key_sizes & 1).any(),  # there are no negative ones, so no missing keys
        (key_ends + len(_varint(length)) == values).all(),
        not data[ends - 1].any(),
    )
    return _cut(data, keys, key_ends), times >> 1 ^ -(times & 1)


def _cut(data: Rows, starts: _Places, ends: _Places) -> list[bytes]:
    """The bytes from each start to its end; most often, all are the same."""
    length = int(ends[0] - starts[0])
    if length and (ends - starts == length).all():
        rows = sliding_window_view(data, length)[starts]
        if (rows == rows[0]).all():
            return [rows[0].tobytes()] * len(rows)
    raw = data.tobytes()
    bounds = zip(starts.tolist(), ends.tolist(), strict=True)
    return [raw[first:last] for first, last in bounds]


def _must(*conditions: bool | np.bool_) -> None:
    if not all(conditions):
        raise _Different


def _numbers(data: Rows, places: _Places) -> tuple[_Places, _Places]:
    """Numbers in variable length as they are there, doubled, and the places behind them."""
    byte = data[places]
    numbers = (byte & 0x7F).astype(np.int64)
    behind = places + 1
    longer = np.flatnonzero(byte > 0x7F)
    for shift in (7, 14, 21, 28):
        if not len(longer):
            break
        byte = data[behind[longer]]
        numbers[longer] |= (byte & 0x7F).astype(np.int64) << shift
        behind[longer] += 1
        longer = longer[byte > 0x7F]
    _must(not len(longer))
    return numbers, behind


def _varint(number: int) -> bytes:
    """A number that is not negative in Kafka's variable length: doubled, seven bits to a byte."""
    number *= 2
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*written, number))
