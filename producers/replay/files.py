"""Opening a log's file: plain, gzip or zstd. Knows nothing of formats and columns.

A file that ends early is an error and never a shorter log.
"""

import gzip
import hashlib
import io
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from stream_app.errors import InvalidInput, Unavailable

_GZIP = b"\x1f\x8b"  # RFC 1952
_ZSTD = b"\x28\xb5\x2f\xfd"  # RFC 8878
# Behind the ending that tells the format; what a file is compressed with, its first bytes tell.
_COMPRESSED = (".gz", ".zst")
# Read of each end of a file to tell logs apart: no two real logs begin and end alike for 64 KiB.
_FINGERPRINT_BYTES = 1 << 16
# zstd's largest block is 128 KiB; what comes out is some times larger, and read by the megabyte.
_ZSTD_READ_BYTES = 1 << 17
_ZSTD_BUFFER_BYTES = 1 << 20


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


def fingerprint(found: Sequence[Source]) -> str:
    """Tells one log from another by sizes, beginnings and ends: enough to refuse a wrong resume."""
    digest = hashlib.blake2b(digest_size=16)
    for source in found:
        size = source.path.stat().st_size
        with source.path.open("rb") as file:
            digest.update(b"%d," % size + file.read(_FINGERPRINT_BYTES))
            file.seek(max(0, size - _FINGERPRINT_BYTES))
            digest.update(file.read(_FINGERPRINT_BYTES))
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
    return cast(IO[bytes], io.BufferedReader(_Zstd(raw, zstandard), _ZSTD_BUFFER_BYTES))


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
            block = self._raw.read(_ZSTD_READ_BYTES)
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
