"""Sets of ids: what a Python set says, in less memory."""

import gc
import hashlib
import os
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_app.core import ids as module
from stream_app.core.ids import Ids

pytestmark = pytest.mark.usefixtures("early_arrays")

SMALL = module._SMALL
HALVES = st.sampled_from([bytes(8), bytes(7) + b"\x01", b"\x7f" + bytes(7), b"\xff" * 8])
# Many share a half, so that ties are the rule.
ONE = st.one_of(st.tuples(HALVES, HALVES).map(b"".join), st.binary(min_size=16, max_size=16))


@given(st.lists(st.lists(ONE, min_size=1, max_size=9), max_size=12))
def test_as_a_set(chunks: list[list[bytes]]) -> None:
    """Chunk by chunk: the same new ones, size, order and digest as a set's."""
    found = Ids()
    model = set[bytes]()
    for chunk in chunks:
        again = []
        for place, one in enumerate(chunk):
            if one in model:
                again.append(place)
            model.add(one)
        assert found.add_all(chunk) == again
        assert len(found) == len(model)
    assert found.sorted() == b"".join(sorted(model))
    assert found == Ids(model)
    assert found.digest() == hashlib.sha256(b"".join(sorted(model))).hexdigest()


@given(st.sets(ONE, min_size=1))
def test_one_less_is_another(model: set[bytes]) -> None:
    """Equality and digest tell sets apart."""
    less = Ids(list(model)[1:])

    assert less != Ids(model)
    assert less.digest() != Ids(model).digest()


@pytest.mark.parametrize("count", [5_000, 25_000, 200_000])
def test_memory(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 45 bytes an id, beside the half megabyte that a small set may take."""
    monkeypatch.setattr(module, "_SMALL", SMALL)
    gc.collect()
    tracemalloc.start()
    found = Ids()
    most = 0
    for size in range(1_000, count + 1, 1_000):
        chunk = [os.urandom(16) for _ in range(1_000)]
        assert found.add_all(chunk) == []
        del chunk
        most = max(most, tracemalloc.get_traced_memory()[0] - 45 * size)
    tracemalloc.stop()

    assert len(found) == count
    assert most < 500_000
