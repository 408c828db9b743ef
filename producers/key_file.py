"""A store's key, in a file of its own that only its owner can read.

Whoever gets a copy of the store alone cannot look for a user by trying names. Knows nothing of what
the key is used for.
"""

import contextlib
import os
import secrets
from pathlib import Path

from stream_app.errors import ConfigurationError

KEY_BYTES = 32


def load_key(path: Path, used_by: Path, key: bytes | None = None) -> bytes:
    """The key of the store `used_by`; made if neither is there, as `key` if that is given."""
    # In this order: a process that starts beside us makes the key before the store.
    used = used_by.exists() and used_by.stat().st_size > 0 and key is None
    if used and not path.exists():
        raise ConfigurationError(
            f"{path}: missing, but {used_by} was made with it; restore it from a copy (with "
            "another key, users could report a second time)"
        )
    try:
        with contextlib.suppress(FileExistsError):
            _make(path, key or secrets.token_bytes(KEY_BYTES))
        found = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"{path}: cannot be opened: {error.strerror}; check folder and rights"
        ) from None
    if len(found) != KEY_BYTES:
        raise ConfigurationError(
            f"{path}: has {len(found)} bytes, not {KEY_BYTES}; restore it from a copy"
        )
    return found


def _make(path: Path, key: bytes) -> None:
    """Whole or not at all, whichever process comes first: a link never overwrites."""
    if path.exists():
        return
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(key)
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    finally:
        draft.unlink()
