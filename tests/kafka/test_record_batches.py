"""Record batches put together by column are, byte for byte, those of aiokafka's builder."""

from collections.abc import Iterator

import numpy as np
import pytest
from aiokafka.producer.message_accumulator import BatchBuilder

from stream_app.kafka.record_batches import BATCH_BYTES, Rows, batches

STATE = (2**40 + 7, 3, 65_000)  # a producer's id, epoch and sequence
NOW_MS = 1_700_000_000_123


def built(batch: BatchBuilder) -> bytes:
    batch._set_producer_state(*STATE)
    return bytes(batch._build())


def rows(count: int, length: int) -> Rows:
    return np.random.default_rng(count).integers(0, 256, (count, length), np.uint8)


def by_builder(key: bytes, values: Rows) -> bytes:
    builder = BatchBuilder(BATCH_BYTES, 0, is_transactional=False)
    for value in values:
        assert builder.append(timestamp=NOW_MS, key=key, value=value.tobytes()) is not None
    return built(builder)


@pytest.mark.parametrize("key", [b"", b"demo", b"k" * 63, b"k" * 64, b"k" * 200])
@pytest.mark.parametrize("length", [0, 1, 50, 136, 8_200])
@pytest.mark.parametrize("count", [1, 2, 64, 65, 10_000])
def test_as_aiokafka_writes_it(key: bytes, length: int, count: int) -> None:
    """Where lengths and offsets take more bytes, too; the batches have all rows between them."""
    values = rows(min(count, 3_000_000 // (length + 1)), length)

    made = list(batches(key, [values], NOW_MS))

    done = 0
    for batch in made:
        some = values[done : done + batch.record_count()]
        assert built(batch) == by_builder(key, some)
        assert batch.size() == len(built(batch)) <= BATCH_BYTES
        done += len(some)
    assert done == len(values)


def test_a_batch_is_filled() -> None:
    """As far as 97 % of the bytes go."""
    first, *_ = batches(b"demo", [rows(10_000, 136)], NOW_MS)

    assert first.size() > 0.97 * BATCH_BYTES


def test_a_value_that_is_longer_than_a_batch() -> None:
    """It has one of its own; Kafka says what it thinks of that."""
    values = rows(2, BATCH_BYTES + 1)

    assert [batch.record_count() for batch in batches(b"demo", [values], NOW_MS)] == [1, 1]


def test_parts_are_taken_when_they_are_needed() -> None:
    """So that they are made while earlier ones are on their way; an empty one is no batch."""
    taken = []

    def parts() -> Iterator[Rows]:
        for number in (3, 0, 2):
            taken.append(number)
            yield rows(number, 5)

    made = batches(b"demo", parts(), NOW_MS)

    assert next(made).record_count() == 3
    assert taken == [3]
    assert [batch.record_count() for batch in made] == [2]


def test_a_batch_cannot_be_changed() -> None:
    """Nothing can be appended, and it is the same bytes however often it is sent."""
    [batch] = batches(b"demo", [rows(3, 136)], NOW_MS)

    assert batch.closed()
    assert batch.append(timestamp=1, key=b"", value=b"") is None
    assert batch._build() is batch._build()
