"""Windows: exactly their size, distinct ids, and a checkpoint that nobody can tell from none."""

import gc
import os
import tracemalloc
from collections import Counter
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_app.core import window as windows
from stream_app.core.ids import Ids
from stream_app.core.mechanisms import calibrate
from stream_app.core.promise import Promise
from stream_app.core.terms import Terms
from stream_app.core.window import (
    MAX_DELTA_IDS,
    LogPosition,
    Refusal,
    Release,
    Window,
    open_window,
)

pytestmark = pytest.mark.usefixtures("early_arrays")


def terms(size: int) -> Terms:
    promise = Promise(Decimal("0.5"), Decimal("0.000001"), size, Decimal("0.9"))
    return Terms("demo", 1, "blue", calibrate(promise))


def fresh(size: int = 3) -> Window:
    batch = terms(size)
    return open_window(batch.batch_id, batch)


def identity(number: int) -> bytes:
    return number.to_bytes(16, "big")


Report = tuple[int, int]  # number of its id, ones


def fill(window: Window, reports: list[Report], start: int = 0) -> Release | None:
    """Offer reports in the order of the log until the window is full."""
    for offset, (number, ones) in enumerate(reports, start):
        window.accept(identity(number), ones, offset, 1_000 + offset)
        if window.full:
            return window.release()
    return None


@given(st.integers(1, 8), st.lists(st.tuples(st.integers(0, 12), st.integers(-2, 60))))
def test_first_m_valid_distinct(size: int, reports: list[Report]) -> None:
    """A release is the first m reports in range with distinct ids, in the order of the log."""
    window = fresh(size)
    chosen: dict[int, tuple[int, int]] = {}
    for offset, (number, ones) in enumerate(reports):
        if 0 <= ones <= window.max_ones and number not in chosen and len(chosen) < size:
            chosen[number] = (ones, offset)
    offsets = [offset for _, offset in chosen.values()]

    release = fill(window, reports)

    if len(chosen) < size:
        assert release is None
        assert not window.full
    else:
        assert release == Release(
            window.batch_id,
            window.terms,
            sum(ones for ones, _ in chosen.values()),
            Ids(identity(number) for number in chosen).digest(),
            LogPosition(offsets[0], 1_000 + offsets[0]),
            LogPosition(offsets[-1], 1_000 + offsets[-1]),
        )


@pytest.mark.parametrize("ones", [-1, 1 << 40])
def test_out_of_range(ones: int) -> None:
    """A count that no client can have drawn is refused and takes no place."""
    window = fresh()

    assert window.accept(identity(1), ones, 0, 0) is Refusal.OUT_OF_RANGE
    assert window.accept(identity(1), 0, 1, 0) is None
    assert window.accept(identity(2), window.max_ones, 2, 0) is None
    assert window.accept(identity(3), window.max_ones + 1, 3, 0) is Refusal.OUT_OF_RANGE
    assert len(window.ids) == 2


def test_duplicate() -> None:
    """An id counts once, with its first value."""
    window = fresh(2)

    assert window.accept(identity(1), 5, 0, 0) is None
    assert window.accept(identity(1), 9, 1, 0) is Refusal.DUPLICATE
    assert window.accept(identity(2), 0, 2, 0) is None
    assert window.release().total == 5


def test_not_full_is_not_released() -> None:
    """Nothing leaves an open window, not even by asking."""
    window = fresh(2)
    window.accept(identity(1), 5, 0, 0)

    with pytest.raises(AssertionError):
        window.release()


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(-1, 56)), min_size=1, max_size=40),
    st.sets(st.integers(0, 40)),
    st.integers(0, 3),
    st.data(),
)
def test_restart_changes_nothing(
    reports: list[Report], checkpoints: set[int], piece: int, data: st.DataObject
) -> None:
    """Checkpoints, a crash anywhere and a reread from before: the same release as without."""
    size = data.draw(st.integers(1, 12))
    untouched = fill(fresh(size), reports)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows, "MAX_DELTA_IDS", piece + 1)
        window = fresh(size)
        stored = []
        crash = data.draw(st.integers(0, len(reports)))
        saved = 0
        release = None
        for offset, (number, ones) in enumerate(reports[:crash]):
            window.accept(identity(number), ones, offset, 1_000 + offset)
            if window.full:
                release = window.release()
                break
            if offset in checkpoints:
                deltas = window.checkpoint(offset + 1)
                stored += deltas
                saved = offset + 1
    if release is None:
        restored = fresh(size)
        for delta in stored:
            restored.restore(delta)
        again = data.draw(st.integers(0, saved))
        release = fill(restored, reports[again:], again)

    assert release == untouched


def test_deltas_are_split() -> None:
    """No delta is larger than its limit; together they are the window."""
    count = 2 * MAX_DELTA_IDS + 1
    window = fresh(count + 1)
    for number in range(count):
        window.accept(identity(number), 1, number, 7)

    deltas = window.checkpoint(count)
    restored = fresh(count + 1)
    for delta in deltas:
        restored.restore(delta)

    assert [len(delta.ids) // 16 for delta in deltas] == [MAX_DELTA_IDS, MAX_DELTA_IDS, 1]
    assert [delta.number for delta in deltas] == [0, 1, 2]
    assert {delta.reached for delta in deltas} == {count}
    assert window.checkpoint(count + 5) == []
    assert replace(restored, last=window.last) == window


def test_numbers_go_on() -> None:
    """A checkpoint never takes the number of an earlier one, before or after a restart."""
    window = fresh(9)
    window.accept(identity(1), 1, 0, 0)
    first = window.checkpoint(1)
    restored = fresh(9)
    restored.restore(first[0])
    restored.accept(identity(2), 1, 1, 0)

    assert [delta.number for delta in restored.checkpoint(2)] == [1]


def test_reread_is_not_counted() -> None:
    """What a checkpoint covers is skipped by its offset, be it counted or refused before."""
    window = fresh(9)
    window.accept(identity(1), 3, 4, 0)
    window.checkpoint(8)

    assert window.accept(identity(1), 3, 4, 0) is Refusal.REREAD
    assert window.accept(identity(2), 3, 7, 0) is Refusal.REREAD
    assert window.accept(identity(2), 3, 8, 0) is None


def test_memory() -> None:
    """An open window needs less than 64 bytes a report."""
    count = 200_000
    window = fresh(count + 1)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(0, count, 1_000):
        ids = [os.urandom(16) for _ in range(1_000)]
        assert window.accept_all(ids, [1] * 1_000, range(1_000), lambda _: LogPosition(9, 0)) == {}
        del ids
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()

    assert used / count < 64


@given(
    st.integers(1, 9),
    st.lists(st.lists(st.tuples(st.integers(0, 20), st.integers(-1, 60)), min_size=1, max_size=4)),
    st.integers(0, 6),
    st.integers(0, 4),
)
def test_together_as_one_by_one(
    size: int, chunks: list[list[Report]], saved: int, back: int
) -> None:
    """Chunks count as their reports one by one; so they do when some are read again."""
    single = fresh(size)
    many = fresh(size)
    offset = 0
    for number, chunk in enumerate(chunks):
        if number == saved:
            assert single.checkpoint(offset) == many.checkpoint(offset)
            offset = max(0, offset - back)
        reports = chunk[: many.room]
        refused = many.accept_all(
            [identity(n) for n, _ in reports],
            [ones for _, ones in reports],
            range(offset, offset + len(reports)),
            lambda index: LogPosition(index, 1_000),
        )
        results = [
            single.accept(identity(n), ones, index, 1_000)
            for index, (n, ones) in enumerate(reports, offset)
        ]
        assert refused == Counter(result for result in results if result)
        assert single == many
        offset += len(reports)
        if single.full:
            assert single.release() == many.release()
            return
