"""Finding and opening logs: files, folders, standard input; plain, gzip or zstd.

Standard input is first copied to a temporary file, so that a damaged end is known before anything
is sent and so that a log can be read twice. Knows nothing of columns.
"""

import gzip
import hashlib
import io
import sys
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from producers.replay.columns import Format
from stream_app.errors import ConfigurationError, InvalidInput, Unavailable

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_PARQUET = b"PAR1"
_FORMATS = {
    ".csv": Format.CSV,
    ".tsv": Format.CSV,
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
    ".json": Format.JSONL,
    ".dsjson": Format.DSJSON,
    ".parquet": Format.PARQUET,
}
_COMPRESSED = (".gz", ".zst")
_SPAN = 1 << 16


@dataclass(frozen=True, slots=True)
class Source:
    """One log file, and how messages call it."""

    path: Path
    name: str

    @property
    def suffix(self) -> str:
        """The ending that tells the format."""
        inner = [part for part in Path(self.name).suffixes if part not in _COMPRESSED]
        return inner[-1].lower() if inner else ""


@contextmanager
def sources(given: Sequence[str]) -> Iterator[list[Source]]:
    """The files behind arguments: a file, a folder's files by name, `-` for standard input."""
    found: list[Source] = []
    with tempfile.TemporaryDirectory(prefix="shufflebandit-replay-") as folder:
        for argument in given:
            if argument == "-":
                found.append(_spooled(sys.stdin.buffer, Path(folder)))
            else:
                found += _named(Path(argument))
        for source in found:
            _readable(source)
        yield found


def _named(path: Path) -> list[Source]:
    if not path.is_dir():
        return [Source(path, str(path))]
    inside = [Source(entry, str(entry)) for entry in sorted(path.rglob("*")) if entry.is_file()]
    logs = [source for source in inside if source.suffix in _FORMATS]
    if not logs:
        raise ConfigurationError(
            f"{path}: a folder without log files; files must end in {', '.join(_FORMATS)}, "
            "perhaps with .gz or .zst behind"
        )
    return logs


def _spooled(stream: BinaryIO, folder: Path) -> Source:
    path = folder / "stdin"
    with path.open("wb") as copy:
        while block := stream.read(1 << 20):
            copy.write(block)
    return Source(path, "standard input")


def _readable(source: Source) -> None:
    try:
        with source.path.open("rb") as file:
            if not file.read(1):
                raise ConfigurationError(f"{source.name}: the file is empty")
    except OSError as error:
        raise ConfigurationError(f"{source.name}: cannot be read: {error.strerror}") from None


def fingerprint(found: Sequence[Source]) -> str:
    """Tells one log from another by sizes, beginnings and ends: enough to refuse a wrong resume."""
    digest = hashlib.blake2b(digest_size=16)
    for source in found:
        size = source.path.stat().st_size
        with source.path.open("rb") as file:
            digest.update(b"%d," % size + file.read(_SPAN))
            file.seek(max(0, size - _SPAN))
            digest.update(file.read(_SPAN))
    return digest.hexdigest()


@contextmanager
def opened(source: Source) -> Iterator[IO[bytes]]:
    """The file's content, decompressed; errors of the compression in one line."""
    with source.path.open("rb") as raw:
        head = raw.read(4)
        raw.seek(0)
        stream: IO[bytes] = raw
        if head.startswith(_GZIP):
            stream = cast(IO[bytes], gzip.GzipFile(fileobj=raw))
        elif head == _ZSTD:
            stream = _zstd(raw)
        try:
            yield stream
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise damaged(source, error) from None


def damaged(source: Source, error: object) -> InvalidInput:
    """One line for a file that ends early or is not what it claims."""
    return InvalidInput(f"{source.name}: truncated or damaged: {str(error).splitlines()[0]}")


def _zstd(raw: IO[bytes]) -> IO[bytes]:
    try:
        import zstandard  # noqa: PLC0415 - an optional extra
    except ImportError:
        raise Unavailable("zstd needs zstandard: pip install 'shufflebandit[replay]'") from None
    return cast(IO[bytes], io.BufferedReader(_Zstd(raw, zstandard), 1 << 20))


class _Zstd(io.RawIOBase):
    """A zstd stream; unlike zstandard's own reader, one that ends in mid-frame is an error."""

    def __init__(self, raw: IO[bytes], module: Any) -> None:
        self._raw = raw
        self._module = module
        self._frame = module.ZstdDecompressor().decompressobj()
        self._out = b""
        self._begun = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        while not self._out:
            block = self._raw.read(1 << 17)
            if not block:
                if self._begun:
                    raise EOFError("the zstd stream ends before its frame does")
                return 0
            self._out = self._decompressed(block)
        size = min(len(view), len(self._out))
        view[:size] = self._out[:size]
        self._out = self._out[size:]
        return size

    def _decompressed(self, block: bytes) -> bytes:
        pieces = []
        while block:
            try:
                pieces.append(self._frame.decompress(block))
            except self._module.ZstdError as error:
                raise EOFError(str(error)) from None
            self._begun = not self._frame.eof
            block = self._frame.unused_data
            if self._frame.eof:
                self._frame = self._module.ZstdDecompressor().decompressobj()
        return b"".join(pieces)


def detect(source: Source, asked: Format) -> Format:
    """The format: as asked, by the file's ending, else by its first bytes."""
    if asked is not Format.AUTO:
        return asked
    known = _FORMATS.get(source.suffix)
    if known is not None:
        return known
    with opened(source) as stream:
        head = stream.read(64).lstrip()
    if head.startswith(_PARQUET):
        return Format.PARQUET
    return Format.JSONL if head.startswith(b"{") else Format.CSV
