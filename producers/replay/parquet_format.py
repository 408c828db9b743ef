"""Parquet, by pyarrow (the extra `replay`)."""

from collections.abc import Iterator

from producers.replay import arrow
from producers.replay.files import Source, damaged
from producers.replay.log_format import LogFormat
from producers.replay.records import ROWS, Table, require_columns


def _read(source: Source, named: dict[str, str]) -> Iterator[Table]:
    pyarrow = arrow.module("pyarrow")
    parquet = arrow.module("pyarrow.parquet")
    try:
        file = parquet.ParquetFile(source.path)
        require_columns(source, named, file.schema_arrow.names)
        wanted = list(named)
        yield from arrow.tables(file.iter_batches(ROWS, columns=wanted), wanted, [])
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise damaged(source, error) from None


def _column_names(source: Source) -> list[str]:
    return list(arrow.module("pyarrow.parquet").ParquetFile(source.path).schema_arrow.names)


PARQUET = LogFormat(
    "parquet",
    "Parquet",
    _read,
    _column_names,
    endings=(".parquet",),
    first_bytes=b"PAR1",  # of the format's specification
)
