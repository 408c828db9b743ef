"""Reading the columns of a log in chunks: CSV, JSON lines, DSJSON, Parquet. Memory stays flat.

Every column comes as codes and the different values behind them, so that a value is looked at
once per chunk. Rows have numbers: the record's place in its file from 1, a CSV's header included
(its line, unless values span lines). Nothing is judged here but whether a row can be read at all.
pyarrow reads CSV where it is installed (the extra `replay`), the csv module elsewhere.
"""

import csv
import importlib.util
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np
import orjson
from numpy.typing import NDArray

from producers.replay.columns import Format
from producers.replay.files import Source, damaged, opened
from stream_app.errors import ConfigurationError, InvalidInput, Unavailable

HAS_ARROW = importlib.util.find_spec("pyarrow") is not None
_BLOCK_BYTES = 1 << 22
_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class Column:
    """Codes into the different values; -1 where there is none."""

    codes: NDArray[np.int32]
    values: list[Any]

    def map(self, function: Callable[[Any], Any], absent: Any, dtype: Any) -> NDArray[Any]:
        """Each row's value through a function that is called once per different value."""
        table = np.array([*(function(value) for value in self.values), absent], dtype=dtype)
        mapped: NDArray[Any] = table[self.codes]
        return mapped


@dataclass(frozen=True, slots=True)
class Table:
    """Some consecutive rows of one file."""

    columns: dict[str, Column]
    numbers: NDArray[np.int64]
    # Rows that cannot be read: (reason, number).
    unreadable: list[tuple[str, int]] = field(default_factory=list)


def read(source: Source, form: Format, named: dict[str, str]) -> Iterator[Table]:
    """The rows of a file with the columns that are named. Raises ConfigurationError, InvalidInput.

    `named` has the option that asks for each column, for the message if it is not there.
    """
    if form is Format.PARQUET:
        yield from _parquet(source, named)
        return
    with opened(source) as stream:
        if form in (Format.JSONL, Format.DSJSON):
            yield from _json_lines(source, stream, named, dsjson=form is Format.DSJSON)
            return
        separator = "\t" if source.suffix == ".tsv" else ","
        header = _header(source, separator)
        _present(source, named, header)
        reader = _arrow_csv if HAS_ARROW else _plain_csv
        yield from reader(source, stream, header, list(named), separator)


def column_names(source: Source, form: Format) -> list[str]:
    """The columns that a file has; those of its first record for JSON lines."""
    if form is Format.PARQUET:
        return list(_arrow("pyarrow.parquet").ParquetFile(source.path).schema_arrow.names)
    if form in (Format.JSONL, Format.DSJSON):
        with opened(source) as stream:
            first = _object(stream.readline())
        return list(_decision(first) if first and form is Format.DSJSON else first or {})
    return _header(source, "\t" if source.suffix == ".tsv" else ",")


def encode(values: Sequence[Any]) -> Column:
    """A column from plain values."""
    codes: dict[Any, int] = {}
    found = np.empty(len(values), dtype=np.int32)
    for i, value in enumerate(values):
        key = value if value is None or isinstance(value, str) else (type(value), repr(value))
        found[i] = -1 if key is None or key == "" else codes.setdefault(key, len(codes))
    different: list[Any] = [None] * len(codes)
    for i, code in enumerate(found.tolist()):
        if code >= 0:
            different[code] = values[i]
    return Column(found, different)


def _present(source: Source, named: dict[str, str], header: Sequence[str]) -> None:
    for name, option in named.items():
        if name not in header:
            listed = ", ".join(header[:12]) + (", ..." if len(header) > 12 else "")
            raise ConfigurationError(
                f"{option} {name}: {source.name} has no such column; it has {listed}"
            )


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
    arrow, reading = _arrow("pyarrow"), _arrow("pyarrow.csv")
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
    """Tables of arrow's batches; the rows that arrow skipped count in the numbers of the rest."""
    position, told = first, 0
    for batch in batches:
        numbers = np.arange(position, position + batch.num_rows, dtype=np.int64)
        while told < len(skipped) and len(numbers) and skipped[told] <= numbers[-1]:
            numbers[numbers >= skipped[told]] += 1
            told += 1
        position = int(numbers[-1]) + 1 if len(numbers) else position
        columns = {name: _column(batch.column(name)) for name in wanted}
        yield Table(columns, numbers)
    yield Table(
        {name: Column(np.empty(0, np.int32), []) for name in wanted},
        np.empty(0, np.int64),
        [("wrong number of columns", number) for number in skipped],
    )


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
            if len(kept) == _ROWS:
                yield table()
                kept, numbers, unreadable = [], [], []
        yield table()
    except (csv.Error, UnicodeDecodeError) as error:
        raise damaged(source, error) from None


def _parquet(source: Source, named: dict[str, str]) -> Iterator[Table]:
    arrow, parquet = _arrow("pyarrow"), _arrow("pyarrow.parquet")
    try:
        file = parquet.ParquetFile(source.path)
        _present(source, named, file.schema_arrow.names)
        wanted = list(named)
        yield from _numbered(file.iter_batches(_ROWS, columns=wanted), wanted, [])
    except (arrow.ArrowInvalid, OSError) as error:
        raise damaged(source, error) from None


def _json_lines(
    source: Source, stream: IO[bytes], named: dict[str, str], *, dsjson: bool
) -> Iterator[Table]:
    rows: list[dict[str, Any]] = []
    numbers: list[int] = []
    unreadable: list[tuple[str, int]] = []
    checked = False

    def table() -> Table:
        columns = {name: encode([_at(row, name) for row in rows]) for name in named}
        return Table(columns, np.array(numbers, dtype=np.int64), unreadable)

    for number, line in enumerate(stream, start=1):
        row = _object(line)
        if row is not None and dsjson:
            row = _decision(row)
        if row is None:
            reason = "blank line" if not line.strip() else "not a JSON object"
            unreadable.append((reason, number))
            continue
        if not row:
            unreadable.append(("not a decision", number))
            continue
        rows.append(row)
        numbers.append(number)
        if len(rows) == _ROWS:
            checked = checked or _some_present(source, named, rows)
            yield table()
            rows, numbers, unreadable = [], [], []
    if rows and not checked:
        _some_present(source, named, rows)
    yield table()


def _some_present(source: Source, named: dict[str, str], rows: list[dict[str, Any]]) -> bool:
    """A key may be absent from some records, but not from all of them."""
    for name, option in named.items():
        if all(_at(row, name) is None for row in rows):
            _present(source, {name: option}, list(rows[0]))
            raise InvalidInput(f"{option} {name}: {source.name} has no value there")
    return True


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def _at(row: dict[str, Any], path: str) -> Any:
    """A key's value; dots reach into inner objects."""
    if path in row:
        return row[path]
    value: Any = row
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _decision(row: dict[str, Any]) -> dict[str, Any]:
    """What a DSJSON event says of its decision; empty for one that is not to be learned from."""
    actions, chances = row.get("a"), row.get("p")
    cost = row.get("_label_cost")
    if row.get("_skipLearn") or not isinstance(cost, int | float) or not actions:
        return {}
    action = row.get("_label_Action", actions[0] if isinstance(actions, list) else None)
    chance = row.get("_label_probability", chances[0] if isinstance(chances, list) else None)
    return {**row, "action": action, "probability": chance, "reward": 0.0 - cost}
