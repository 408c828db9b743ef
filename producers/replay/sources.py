"""Finding logs: the files behind a command's arguments. Knows endings, not what a file holds.

Standard input is first copied to a temporary file, so that a damaged end is known before anything
is sent and so that a log can be read twice.
"""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from producers.replay.files import Source
from producers.replay.formats import ENDINGS
from stream_app.errors import ConfigurationError

_COPIED_BYTES = 1 << 20  # of standard input at once: few calls, and little memory


@contextmanager
def sources(given: Sequence[str]) -> Iterator[list[Source]]:
    """The files behind arguments: a file, a folder's files by name, `-` for standard input."""
    found: list[Source] = []
    with tempfile.TemporaryDirectory(prefix="shufflebandit-replay-") as folder:
        for argument in given:
            if argument == "-":
                found.append(_copied(sys.stdin.buffer, Path(folder)))
            else:
                found += _at_path(Path(argument))
        for source in found:
            _require_content(source)
        yield found


def _at_path(path: Path) -> list[Source]:
    if not path.is_dir():
        return [Source(path, str(path))]
    inside = [Source(entry, str(entry)) for entry in sorted(path.rglob("*")) if entry.is_file()]
    logs = [source for source in inside if source.suffix in ENDINGS]
    if not logs:
        raise ConfigurationError(
            f"{path}: a folder without log files; files must end in {', '.join(ENDINGS)}, "
            "perhaps with .gz or .zst behind"
        )
    return logs


def _copied(stream: BinaryIO, folder: Path) -> Source:
    path = folder / "stdin"
    with path.open("wb") as copy:
        while block := stream.read(_COPIED_BYTES):
            copy.write(block)
    return Source(path, "standard input")


def _require_content(source: Source) -> None:
    try:
        with source.path.open("rb") as file:
            if not file.read(1):
                raise ConfigurationError(f"{source.name}: the file is empty")
    except OSError as error:
        raise ConfigurationError(f"{source.name}: cannot be read: {error.strerror}") from None
