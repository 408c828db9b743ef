"""Reading the columns of a log in chunks: CSV, JSON lines, DSJSON, Parquet. Memory stays flat.

Rows have numbers: the record's place in its file from 1, a CSV's header included
(its line, unless values span lines). Nothing is judged here but whether a row can be read at all.
pyarrow reads CSV where it is installed (the extra `replay`), the csv module elsewhere.
"""

import csv
import importlib.util
import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from producers.replay.columns import Format, seconds
from producers.replay.files import Source, damaged, opened
from producers.replay.records import (
    ROWS,
    Column,
    Table,
    decision,
    encode,
    json_lines,
    json_object,
    present,
)
from stream_app.errors import Unavailable

READER = "replay-reader"  # the name of its thread
HAS_ARROW = importlib.util.find_spec("pyarrow") is not None
# arrow reads up to 32 blocks ahead, whatever was asked: 64 MB. No row may be longer than a block.
# At every block it waits for the interpreter, which an agent may hold for 5 ms: few are faster.
_BLOCK_BYTES = 1 << 21


def read(source: Source, form: Format, named: dict[str, str]) -> Iterator[Table]:
    """The rows of a file with the columns that are named. Raises ConfigurationError, InvalidInput.

    `named` has the option that asks for each column, for the message if it is not there.
    """
    if form is Format.PARQUET:
        yield from _parquet(source, named)
        return
    with opened(source) as stream:
        if form in (Format.JSONL, Format.DSJSON):
            yield from json_lines(source, stream, named, dsjson=form is Format.DSJSON)
            return
        separator = "\t" if source.suffix == ".tsv" else ","
        header = _header(source, separator)
        present(source, named, header)
        reader = _arrow_csv if HAS_ARROW else _plain_csv
        yield from reader(source, stream, header, list(named), separator)


def column_names(source: Source, form: Format) -> list[str]:
    """The columns that a file has; those of its first record for JSON lines."""
    if form is Format.PARQUET:
        return list(_arrow("pyarrow.parquet").ParquetFile(source.path).schema_arrow.names)
    if form in (Format.JSONL, Format.DSJSON):
        with opened(source) as stream:
            first = json_object(stream.readline())
        return list(decision(first) if first and form is Format.DSJSON else first or {})
    return _header(source, "\t" if source.suffix == ".tsv" else ",")


def timestamps(column: Column) -> NDArray[np.float64]:
    """Each row's time in seconds since 1970 UTC; nan where there is none."""
    table = _arrow_seconds(column.values) if HAS_ARROW else None
    if table is None:
        return column.map(seconds, None, np.float64)
    return np.append(table, np.nan)[column.codes]


def _arrow_seconds(values: list[Any]) -> NDArray[np.float64] | None:
    """ISO 8601 texts, all with or all without a zone, read by arrow; None if they are not that."""
    if len(values) < 100 or not isinstance(values[0], str):
        return None
    arrow = _arrow("pyarrow")
    try:
        texts = arrow.array(values, arrow.string())
        # Without a zone it is UTC.
        zone = "UTC" if values[0].endswith("Z") or values[0][-6:-5] in ("+", "-") else None
        stamps = texts.cast(arrow.timestamp("us", zone)).cast(arrow.int64()).to_numpy()
    except (arrow.ArrowInvalid, arrow.ArrowTypeError):
        return None
    found: NDArray[np.float64] = stamps / 1e6
    return found


def _header(source: Source, separator: str) -> list[str]:
    with opened(source) as stream:
        lines = io.TextIOWrapper(stream, "utf-8-sig", "replace", newline="")
        header: list[str] = next(csv.reader(lines, delimiter=separator), [])
        lines.detach()
    return header


def _arrow(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise Unavailable("Parquet needs pyarrow: pip install 'shufflebandit[replay]'") from None


def _arrow_csv(
    source: Source, stream: IO[bytes], header: list[str], wanted: list[str], separator: str
) -> Iterator[Table]:
    arrow = _arrow("pyarrow")
    reading = _arrow("pyarrow.csv")
    skipped: list[int] = []

    def skip(row: Any) -> str:
        skipped.append(row.number)
        return "skip"

    text = arrow.dictionary(arrow.int32(), arrow.string())
    try:
        batches = reading.open_csv(
            stream,
            reading.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
            reading.ParseOptions(
                delimiter=separator,
                newlines_in_values=True,
                ignore_empty_lines=False,
                invalid_row_handler=skip,
            ),
            reading.ConvertOptions(
                include_columns=wanted,
                column_types=dict.fromkeys(wanted, text),
                null_values=[""],
                strings_can_be_null=True,
            ),
        )
        yield from _numbered(batches, wanted, skipped, first=2)
    except arrow.ArrowInvalid as error:
        raise damaged(source, error) from None


def _numbered(
    batches: Any, wanted: list[str], skipped: list[int], first: int = 1
) -> Iterator[Table]:
    """Tables of arrow's batches; the rows that arrow skipped count in the numbers of the rest.

    `skipped` is emptied as its rows are told of.
    """
    position = first
    for batch in _ahead(batches):
        numbers = np.arange(position, position + batch.num_rows, dtype=np.int64)
        told = 0
        while told < len(skipped) and len(numbers) and skipped[told] <= numbers[-1]:
            numbers[numbers >= skipped[told]] += 1
            told += 1
        position = int(numbers[-1]) + 1 if len(numbers) else position
        columns = {name: _column(batch.column(name)) for name in wanted}
        yield Table(columns, numbers, _wrong(skipped[:told]))
        del skipped[:told]
    nothing = {name: Column(np.empty(0, np.int32), []) for name in wanted}
    yield Table(nothing, np.empty(0, np.int64), _wrong(skipped))


def _ahead(batches: Any) -> Iterator[Any]:
    """Arrow's batches; a thread reads the next one while one is used, and nothing else.

    To be closed: if the garbage collector does it, waiting for the thread can be a deadlock.
    """
    coming = iter(batches)
    with ThreadPoolExecutor(1, READER) as thread:
        reading = thread.submit(next, coming, None)
        while (batch := reading.result()) is not None:
            reading = thread.submit(next, coming, None)
            yield batch


def _wrong(numbers: list[int]) -> list[tuple[str, int]]:
    return [("wrong number of columns", number) for number in numbers]


def _column(array: Any) -> Column:
    if hasattr(array.type, "unit"):  # nanoseconds do not fit Python's datetime
        array = array.cast(_arrow("pyarrow").timestamp("us", array.type.tz), safe=False)
    coded = array if hasattr(array, "dictionary") else array.dictionary_encode()
    codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
    return Column(codes, coded.dictionary.to_pylist())


def _plain_csv(
    source: Source, stream: IO[bytes], header: list[str], wanted: list[str], separator: str
) -> Iterator[Table]:
    places = [header.index(name) for name in wanted]
    lines = io.TextIOWrapper(stream, "utf-8-sig", "strict", newline="")
    kept: list[list[str]] = []
    numbers: list[int] = []
    unreadable: list[tuple[str, int]] = []

    def table() -> Table:
        columns = {
            name: encode([row[place] for row in kept])
            for name, place in zip(wanted, places, strict=True)
        }
        return Table(columns, np.array(numbers, dtype=np.int64), unreadable)

    try:
        for number, row in enumerate(csv.reader(lines, delimiter=separator), start=1):
            if number == 1:
                continue
            if row and len(row) != len(header):
                unreadable.append(("wrong number of columns", number))
                continue
            kept.append(row or [""] * len(header))
            numbers.append(number)
            if len(kept) == ROWS:
                yield table()
                kept = []
                numbers = []
                unreadable = []
        yield table()
    except (csv.Error, UnicodeDecodeError) as error:
        raise damaged(source, error) from None


def _parquet(source: Source, named: dict[str, str]) -> Iterator[Table]:
    arrow = _arrow("pyarrow")
    parquet = _arrow("pyarrow.parquet")
    try:
        file = parquet.ParquetFile(source.path)
        present(source, named, file.schema_arrow.names)
        wanted = list(named)
        yield from _numbered(file.iter_batches(ROWS, columns=wanted), wanted, [])
    except (arrow.ArrowInvalid, OSError) as error:
        raise damaged(source, error) from None
