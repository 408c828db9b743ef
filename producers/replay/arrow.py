"""What formats share of pyarrow: its batches as tables, and texts of times by column.

pyarrow is optional (the extra `replay`). What it does for speed has a slow twin without it, which
tests compare: the csv module for its CSV reader, `columns.seconds` for its times.
"""

import importlib
import importlib.util
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from producers.replay.columns import seconds
from producers.replay.records import Column, Table, wrong_width
from stream_app.errors import Unavailable

# Looked up without an import, which takes a quarter of a second that most commands need not wait.
INSTALLED = importlib.util.find_spec("pyarrow") is not None
READER_THREAD = "replay-reader"  # the beginning of its name: a test sees that none is left
# Fewer different times take 0.2 ms without arrow: nothing to gain.
_FEWEST_TIMES = 100


def module(name: str) -> Any:
    """A module of pyarrow. Raises Unavailable."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise Unavailable("Parquet needs pyarrow: pip install 'shufflebandit[replay]'") from None


def tables(batches: Any, wanted: list[str], skipped: list[int], first: int = 1) -> Iterator[Table]:
    """Tables of arrow's batches; the rows that arrow skipped count in the numbers of the rest.

    `skipped` is emptied as its rows are told of.
    """
    next_number = first
    for batch in _ahead(batches):
        numbers = np.arange(next_number, next_number + batch.num_rows, dtype=np.int64)
        told = 0
        while told < len(skipped) and len(numbers) and skipped[told] <= numbers[-1]:
            numbers[numbers >= skipped[told]] += 1
            told += 1
        next_number = int(numbers[-1]) + 1 if len(numbers) else next_number
        columns = {name: _column(batch.column(name)) for name in wanted}
        yield Table(columns, numbers, wrong_width(skipped[:told]))
        del skipped[:told]
    nothing = {name: Column(np.empty(0, np.int32), []) for name in wanted}
    yield Table(nothing, np.empty(0, np.int64), wrong_width(skipped))


def _ahead(batches: Any) -> Iterator[Any]:
    """Arrow's batches; a thread reads the next one while one is used, and nothing else.

    To be closed: if the garbage collector does it, waiting for the thread can be a deadlock.
    """
    coming = iter(batches)
    with ThreadPoolExecutor(1, READER_THREAD) as thread:
        reading = thread.submit(next, coming, None)
        while (batch := reading.result()) is not None:
            reading = thread.submit(next, coming, None)
            yield batch


def _column(array: Any) -> Column:
    if hasattr(array.type, "unit"):  # nanoseconds do not fit Python's datetime
        array = array.cast(module("pyarrow").timestamp("us", array.type.tz), safe=False)
    coded = array if hasattr(array, "dictionary") else array.dictionary_encode()
    codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
    return Column(codes, coded.dictionary.to_pylist())


def timestamps(column: Column) -> NDArray[np.float64]:
    """Each row's time in seconds since 1970 UTC; nan where there is none.

    With arrow 13 times as fast as `columns.seconds` for each of 65 000 different times.
    """
    different = _seconds(column.values) if INSTALLED else None
    if different is None:
        return column.map(seconds, None, np.float64)
    return np.append(different, np.nan)[column.codes]


def _seconds(values: list[Any]) -> NDArray[np.float64] | None:
    """ISO 8601 texts, all with or all without a zone, read by arrow; None if they are not that."""
    if len(values) < _FEWEST_TIMES or not isinstance(values[0], str):
        return None
    pyarrow = module("pyarrow")
    try:
        texts = pyarrow.array(values, pyarrow.string())
        # Without a zone it is UTC.
        zone = "UTC" if values[0].endswith("Z") or values[0][-6:-5] in ("+", "-") else None
        stamps = texts.cast(pyarrow.timestamp("us", zone)).cast(pyarrow.int64()).to_numpy()
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError):
        return None
    found: NDArray[np.float64] = stamps / 1e6
    return found
