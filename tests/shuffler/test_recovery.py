"""Aborted sums are found wherever they stand, on a real broker, and nothing else is."""

import random
import secrets

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_app import kafka
from stream_app.errors import InvalidInput
from stream_app.local.broker import LocalBroker
from stream_app.runtime.stage import Log, Readers
from stream_app.shuffler.released import ReleasedBatches, aborted_sums, read_released
from stream_app.wire.sum import peek_sequence
from tests.integration.service import settings_for, topics


def a_sum(sequence: int) -> bytes:
    return b'{"version":1,"batch":"%d.x","terms":{}}' % sequence


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
async def test_every_aborted_sum_is_found(broker: LocalBroker, seed: int) -> None:
    """Random transactions, some aborted, some empty there, some of several records, some twice.

    Whatever was saved on the way is as good as all the sums before it.
    """
    chance = random.Random(seed)
    settings = settings_for(broker.bootstrap)
    await topics(settings, 1)
    sums, other = (kafka.topic(settings.kafka, name) for name in ("sums", "windows"))
    committed: set[int] = set()
    aborted: dict[int, bytes] = {}
    saved: list[bytes | None] = [None]
    noted = ReleasedBatches()
    transactional_id = f"test-{secrets.token_hex(4)}"
    async with kafka.producer(
        settings.kafka, transactional_id=transactional_id, retry_backoff_ms=10
    ) as producer:
        for number in range(1, 30):
            await producer.begin_transaction()
            await producer.send_and_wait(other, b"{}", key=b"k", partition=0)
            share = chance.choice([0, 0.3, 1])
            again = [n for n in aborted if n not in committed and chance.random() < share]
            fresh = [10 * number + i for i in range(chance.choice([0, 1, 1, 2, 5]))]
            for sequence in (*again, *fresh):
                last = await producer.send_and_wait(sums, a_sum(sequence), key=b"k", partition=0)
            if chance.random() < 0.6:
                await producer.commit_transaction()
                committed.update(again, fresh)
                for sequence in (*again, *fresh):
                    noted.add(b"k", sequence)
                    noted.reached = last.offset + 1
                if noted.reached and aborted.keys() <= committed:  # as it is once a worker is open
                    saved.append(noted.save())
            else:
                await producer.abort_transaction()
                aborted.update((n, a_sum(n)) for n in fresh)
    assert len(saved) > 2
    async with (
        kafka.consumer(settings.kafka) as reader,
        kafka.consumer(settings.kafka, committed=False) as all_reader,
    ):
        log = Log(settings.kafka, 0, Readers(reader, all_reader))
        for value in saved:
            found = ReleasedBatches.saved(value)
            gaps = await read_released(log, found)
            lost = await aborted_sums(log, found, gaps)

            assert {n for n in range(1, 400) if (b"k", n) in found} == committed
            assert {(b"k", n): v for n, v in aborted.items() if n not in committed} == lost


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b"]), st.integers(1, 12))))
def test_released_numbers_are_a_set(numbers: list[tuple[bytes, int]]) -> None:
    """In whatever order they come: what was added is in it, and nothing else."""
    found = ReleasedBatches()
    for key, sequence in numbers:
        found.add(key, sequence)

    everything = [(key, n) for key in (b"a", b"b", b"c") for n in range(1, 14)]
    assert {number for number in everything if number in found} == set(numbers)
    assert {*found.through.items(), *found.beyond} <= set(numbers)


@pytest.mark.parametrize(
    ("value", "sequence"),
    [
        (b'{"version":1,"batch":"12.abc","terms":{}}', 12),
        (b'{"batch":"12.abc","version":2}', 12),
        (b'{"version": 1, "batch": "7.abc"}', 7),
    ],
)
def test_sequence_of_a_sum(value: bytes, sequence: int) -> None:
    assert peek_sequence(value) == sequence


@pytest.mark.parametrize(
    "value",
    [None, b"", b"{}", b'{"version":1,"batch":"', b'{"version":1,"batch":"x.y"}', b'{"batch":7}',
     b'{"version":1,"batch":"1x.y"}', b'{"version":1,"batch":""}'],
)  # fmt: skip
def test_what_is_no_sum_is_refused(value: bytes | None) -> None:
    """What cannot be read could hide a release."""
    with pytest.raises(InvalidInput):
        peek_sequence(value)
